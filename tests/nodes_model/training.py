"""What is trained: the random configuration of a run, and the sequential reference for its results."""
from collections import namedtuple

ROUND, EVALUATE, STEP, LOSSES, NORM, SAVE = 'round', 'evaluate', 'step', 'losses', 'norm', 'save'

KINDS = 'first', 'input', 'evaluated', 'forward', 'backward', 'gradient', 'chunk', 'sum', 'square', 'norm', 'updated'
TAGS = {kind: number for number, kind in enumerate(KINDS)}


def value(kind, *parts):
    """Returns a number of the training run: a hash of what it was computed from (integers only, so always the same)."""
    return hash((TAGS[kind],) + parts)


def is_skipped(norm):
    return norm % 3 == 0


def forward(x, weights):
    return value('forward', x, weights)


def backward(gradient, weights):
    return value('backward', gradient, weights)


def gradient_of(x, group):
    """Returns the gradient of a use, after the backward pass of its layer."""
    return value('gradient', x, group.number)


def first_input(kind, pipeline, number):
    return value('input' if kind == ROUND else 'evaluated', pipeline, number)


class Call(namedtuple('Call', 'kind pipeline number step place of', defaults=[None] * 5)):
    """A call of the user's program. `number`: of a round or an evaluation of the pipeline; `step`: the one that is made next, or by this
    call; `place`: of a round within its step. LOSSES and NORM wait for the result of the call `of`."""

    def __repr__(self):
        return self.kind + ''.join(f' {name}={part}' for name, part in zip(self._fields[1:], self[1:]) if part is not None)


class Group:
    """A weight group: used by one layer or, if it is tied, by two. `chunks`: what is sent, added and owned as one."""

    def __init__(self, number, layers, chunks):
        self.number = number
        self.layers = layers
        self.chunks = chunks

    def ranges(self, nodes):
        """Returns the chunks of each owner. The first owner changes from group to group."""
        ranges = {}
        for chunk in range(self.chunks):
            ranges.setdefault((self.number + chunk * nodes // self.chunks) % nodes, []).append(chunk)
        return ranges


class Pipeline:
    """One of the models of the program, with how it is trained."""

    def __init__(self, rng, number, most_nodes):
        self.number = number
        self.layers = rng.randint(1, 3)
        users = [[layer] for layer in range(self.layers)]
        if self.layers > 1 and rng.random() < 0.4:
            users.append([0, self.layers - 1])
        self.groups = [Group(i, layers, rng.randint(1, 4)) for i, layers in enumerate(users)]
        self.groups_of = [[g for g in self.groups if layer in g.layers] for layer in range(self.layers)]
        self.copies = rng.randint(1, 2)  # of the weights; two if steps are asynchronous
        self.may_skip = rng.random() < 0.5  # steps need the norm before the first update, and may be skipped
        self.rounds_per_step = most_nodes + rng.randint(0, 2)

    def version(self, step):
        """Returns the weight version that the rounds of this step use."""
        return max(0, step - self.copies)

    def gradient_order(self, layers=None):
        """Returns the uses in the order in which the gradients of a round are committed, sent and received."""
        return [(group, layer) for layer in reversed(layers or range(self.layers)) for group in self.groups_of[layer]]


class Config:
    """One random configuration: the program, the nodes of each job, the sizes, the faults."""

    def __init__(self, rng, mistake=None):
        self.mistake = mistake
        self.nodes = rng.choice((1, 2, 2, 3, 3, 4))  # of the first job
        self.pipelines = [Pipeline(rng, number, self.nodes) for number in range(rng.choice((1, 1, 2)))]
        self.most_nodes = min(pipeline.rounds_per_step for pipeline in self.pipelines)
        self.steps = rng.randint(2, 4)
        self.pool = rng.randint(1, 3)  # buffers for gradients, for each pipeline and sender
        self.window = rng.choice((1, 2, 3, 100))  # messages of one kind, of one pipeline, that are on their way to a node
        self.small = rng.choice((0, 0.5, 1))  # the part of the messages that the library sends before there is a receive
        # A node works for one step after the other, and in it receives weights of a group after it has updated its own; or it does
        # whatever may be done.
        self.steps_in_turn = rng.random() < 0.5
        self.adds_in_order = rng.random() < 0.5  # a node adds one thing after the other, or whatever is there
        self.waits_for_save = rng.random() < 0.3
        self.saves_slowly = rng.random() < 0.5
        self.ends_late = rng.random() < 0.3  # the end of a send is known only when nothing else can happen
        self.calls = self.draw_calls(rng)
        # By job. The last one has neither.
        self.ends = [rng.choice(('loss', 'error', 'signal', 'signal', None)) for _ in range(rng.choice((0, 1, 1, 2)))] + [None]
        self.replacements = [rng.choice((0, 0, 1, 2)) for _ in self.ends]

    def draw_calls(self, rng):
        calls = []
        rounds = [0 for _ in self.pipelines]
        evaluations = [0 for _ in self.pipelines]
        for step in range(1, self.steps + 1):
            # The calls of the pipelines are mixed. A step may have fewer rounds than it could.
            queues = []
            for p in self.pipelines:
                size = p.rounds_per_step if rng.random() < 0.6 else rng.randint(1, p.rounds_per_step)
                queues.append([Call(ROUND, p.number, rounds[p.number] + i, step, i) for i in range(size)])
                queues[-1].append(Call(STEP, p.number, None, step))
                rounds[p.number] += size
            while any(queues):
                call = rng.choice([queue for queue in queues if queue]).pop(0)
                calls.append(call)
                if rng.random() < 0.15:
                    next_step = step + (call.kind == STEP)
                    calls.append(Call(EVALUATE, call.pipeline, evaluations[call.pipeline], next_step))
                    evaluations[call.pipeline] += 1
                calls += self.draw_waits(rng, calls)
            if rng.random() < 0.7 and step < self.steps:
                calls.append(Call(SAVE))
        return calls

    def draw_waits(self, rng, calls):
        of = rng.choice(calls[-4:])
        if of.kind in (ROUND, EVALUATE) and rng.random() < 0.3:
            return [Call(LOSSES, of=of)]
        if of.kind == STEP and rng.random() < 0.3:
            return [Call(NORM, of=of)]
        return []

    def __str__(self):
        names = 'nodes steps pool window small steps_in_turn adds_in_order waits_for_save saves_slowly ends_late ends replacements'
        pipelines = [(p.layers, [g.chunks for g in p.groups], p.copies, p.may_skip, p.rounds_per_step) for p in self.pipelines]
        return ' '.join(f'{name}={getattr(self, name)}' for name in names.split()) + f' pipelines={pipelines}'


def deal(rounds_per_step, workers):
    """Returns the nodes of a step's rounds: each node has at least one, and those with more workers have more."""
    counts = [1 for _ in workers]
    for _ in range(rounds_per_step - len(workers)):
        counts[min(range(len(workers)), key=lambda node: counts[node] / workers[node])] += 1
    places = [((i + 0.5) / count, node) for node, count in enumerate(counts) for i in range(count)]
    return [node for _, node in sorted(places)]


class Reference:
    """The same calls on one node, one thing after the other."""

    def __init__(self, config):
        self.results = {}  # of rounds and evaluations: by call; of steps: by (NORM, pipeline, step)
        # By pipeline, version and group: the chunks.
        self.weights = [[[tuple(value('first', p.number, g.number, c) for c in range(g.chunks)) for g in p.groups]]
                        for p in config.pipelines]
        sums = {}
        for call in config.calls:
            if call.kind in (ROUND, EVALUATE):
                self.compute(config.pipelines[call.pipeline], call, sums)
            elif call.kind == STEP:
                self.step(config.pipelines[call.pipeline], call.step, sums)

    def compute(self, pipeline, call, sums):
        weights = self.weights[pipeline.number][pipeline.version(call.step)]
        weights_of = [tuple(weights[g.number] for g in groups) for groups in pipeline.groups_of]
        x = first_input(call.kind, pipeline.number, call.number)
        for layer in range(pipeline.layers):
            x = forward(x, weights_of[layer])
        self.results[call] = x
        for group, layer in pipeline.gradient_order() if call.kind == ROUND else ():
            if group is pipeline.groups_of[layer][0]:
                x = backward(x, weights_of[layer])
            gradient = gradient_of(x, group)
            for chunk in range(group.chunks):
                key = pipeline.number, group.number, layer, chunk
                sums[key] = value('sum', sums.get(key, 0), value('chunk', gradient, chunk))

    def step(self, pipeline, step, sums):
        gradients = [[tuple(sums.pop((pipeline.number, g.number, layer, c)) for layer in g.layers) for c in range(g.chunks)]
                     for g in pipeline.groups]
        norm = value('norm', *(value('square', *parts) for group in gradients for parts in group))
        self.results[NORM, pipeline.number, step] = norm
        weights = self.weights[pipeline.number][-1]
        if not (pipeline.may_skip and is_skipped(norm)):
            weights = [tuple(updated(pipeline, old, parts, norm) for old, parts in zip(chunks, group))
                       for chunks, group in zip(weights, gradients)]
        self.weights[pipeline.number].append(weights)


def updated(pipeline, old, gradients, norm):
    return value('updated', old, *gradients, norm if pipeline.may_skip else 0)

"""What is trained: the random configuration of a run, and the sequential reference for its results."""
from collections import namedtuple

HALVES = (0, 1)  # parameters and gradients are read and written in two halves, so that a torn one is noticed
FORWARD, FUSED, BACKWARD = 'forward', 'fused', 'backward'
HOST, WORDS, EVENTS = 'host', 'words', 'events'  # who waits for another worker's outputs: see Config.signals

TAGS = {'output': 1, 'buffer': 2, 'input gradient': 3, 'accumulated': 4, 'loss': 5, 'sum': 6, 'master': 7, 'working': 8,
        'gradient': 9, 'norm': 10, 'layer weights': 11, 'first master': 50, 'first buffer': 60, 'input': 70, 'torn': 80,
        'other files': 90}


def value(kind, *parts):
    """Returns a number of the training run: a hash of what it was computed from (integers only, so always the same)."""
    return hash((TAGS[kind],) + parts)


def forward(weights, x, buffer, *place):
    return value('output', weights, x, buffer, *place), value('buffer', buffer, x)


def backward(weights, x, buffer, gradient, accumulated, *place):
    accumulated = value('accumulated', accumulated, weights, x, gradient)
    return value('input gradient', weights, x, buffer, gradient, *place), accumulated


def is_skipped(norm):
    """With clipping, one step in four counts as an overflow."""
    return norm % 4 == 0


Plan = namedtuple('Plan', 'forward_stages fused_start backward_stages')


class Config:
    """One random configuration: the user's program, the plans, the sizes, the faults."""

    def __init__(self, rng, mistake=None):
        self.mistake = mistake
        self.workers = rng.randint(1, 4)
        self.layers = rng.randint(2, 5)
        self.microbatches = rng.randint(1, 3)
        self.steps = rng.randint(3, 5)
        self.rounds_per_step = rng.randint(1, 2)
        self.rounds = self.steps * self.rounds_per_step
        self.asynchronous = rng.random() < 0.5
        self.clipping = rng.random() < 0.35
        self.tied = rng.random() < 0.35
        self.frozen = rng.randrange(self.layers) if rng.random() < 0.25 else None
        # HOST: the host waits for the data. WORDS, EVENTS: the device waits, behind copies that are enqueued. The wait
        # for a dead worker's event never ends.
        self.signals = rng.choice((HOST, HOST, WORDS, EVENTS))
        self.kills = rng.choice((0, 1, 1, 2, 3))
        self.hangs = rng.choice((0, 0, 1))
        self.max_restarts = rng.choice((0, 1, 3, 3))
        self.failing_starts = rng.choice((0, 0, 0, 1, 2, 10**6))  # replacements that end before they serve
        self.returns = rng.random() < 0.3  # the user adds workers again that were given up
        self.channel_places = rng.randint(1, 2)
        self.tasks_ahead = rng.randint(0, 2)
        self.free_places = rng.randint(1, 3)
        self.keeps_blocks = rng.random() < 0.5  # the caller keeps some blocks and drops them at any time
        self.first_arena_blocks = rng.randint(0, 6)
        self.bias = rng.choice(('none', 'none', 'slow worker', 'slow coordinator', 'fast coordinator'))
        fails = rng.random() < 0.3
        # Layer l has parameter l; a tied parameter is used by the first and by the last layer.
        self.uses = [[layer] for layer in range(self.layers)] + ([[0, self.layers - 1]] if self.tied else [])
        self.parameters = range(len(self.uses))
        self.parameters_of = [[p for p in self.parameters if layer in self.uses[p]] for layer in range(self.layers)]
        self.trained = [p for p in self.parameters if p != self.frozen]
        self.gradient_blocks = sorted((p, use) for p in self.trained for use in self.uses[p])
        self.plans = self.draw_plans(rng)
        self.failure = self.draw_failure(rng) if fails else None  # (round, stage, microbatch)
        self.poison = None  # (round, stage, microbatch) that ends every worker which computes it
        self.restarts = rng.random() < 0.5  # the coordinator is started again after its death
        self.coordinator_kills = rng.choice((0, 1, 1, 2, 3)) if self.restarts else 0
        self.launcher_stops = []  # (when, how long), in parts of the expected time
        self.starts_with_other_files = 0  # replacements that find other files of the model

    def draw_plans(self, rng):
        def stages(end):
            cuts = [0] + [layer for layer in range(1, end) if rng.random() < 0.5] + [end]
            return list(zip(cuts, cuts[1:])) if end else []

        plans = []
        for _ in range(self.rounds):
            if not plans or rng.random() < 0.4:
                fused_start = rng.randint(0, self.layers - 1)
                plan = Plan(stages(fused_start), fused_start, stages(fused_start)[::-1])
            plans.append(plan)
        return plans

    def draw_failure(self, rng):
        round_number = rng.randrange(self.rounds)
        return round_number, rng.randrange(len(self.stages(round_number))), rng.randrange(self.microbatches)

    def poison_a_task(self, rng):
        round_number, stage, microbatch = self.draw_failure(rng)
        self.poison = round_number, stage, microbatch - (rng.random() < 0.5)  # -1: before its weights are there
        self.failing_starts = min(self.failing_starts, 1)  # with none, few runs would come that far
        self.max_restarts = max(self.max_restarts, 1)

    def stop_the_launcher(self, rng):
        self.launcher_stops = [(rng.random(), rng.choice((0.05, 0.2, 1))) for _ in range(rng.randint(1, 3))]
        self.kills = max(self.kills, 1)

    def change_files(self, rng):
        self.starts_with_other_files = rng.choice((1, 2, 10**6))
        self.kills = max(self.kills, 1)
        self.max_restarts = max(self.max_restarts, 1)
        self.failing_starts = min(self.failing_starts, 1)

    def stages(self, round_number):
        plan = self.plans[round_number]
        return ([(FORWARD, first, end) for first, end in plan.forward_stages]
                + [(FUSED, plan.fused_start, self.layers)]
                + [(BACKWARD, first, end) for first, end in plan.backward_stages])

    def version(self, step):
        """Returns the weight version that a round of this step uses."""
        return max(0, step - 1 - self.asynchronous)

    def __str__(self):
        names = ('workers layers microbatches steps rounds_per_step asynchronous clipping tied frozen signals kills hangs '
                 'max_restarts failing_starts returns channel_places tasks_ahead free_places keeps_blocks first_arena_blocks '
                 'bias failure poison restarts coordinator_kills launcher_stops starts_with_other_files')
        return ' '.join(f'{name}={getattr(self, name)}' for name in names.split())


class Reference:
    """The same training run, one thing after the other."""

    def __init__(self, config):
        self.config = config
        self.master = [[value('first master', p, half) for half in HALVES] for p in config.parameters]
        self.buffers = [value('first buffer', layer) for layer in range(config.layers)]
        self.losses = []
        self.norms = [None]  # by step
        versions = [self.working_copies()]
        for step in range(1, config.steps + 1):
            copies = versions[config.version(step)]
            weights = [value('layer weights', *(copies[p] for p in own)) for own in config.parameters_of]
            sums = {block: [0, 0] for block in config.gradient_blocks}
            for round_number in range((step - 1) * config.rounds_per_step, step * config.rounds_per_step):
                self.run_round(round_number, weights, sums)
            self.apply(sums)
            versions.append(self.working_copies())

    def working_copies(self):
        return [tuple(value('working', half) for half in halves) for halves in self.master]

    def run_round(self, round_number, weights, sums):
        layers = range(self.config.layers)
        accumulated = [0 for _ in layers]
        losses = []
        for microbatch in range(self.config.microbatches):
            x = [value('input', round_number, microbatch)]
            buffers = list(self.buffers)
            for layer in layers:
                place = round_number, layer, microbatch
                y, self.buffers[layer] = forward(weights[layer], x[layer], buffers[layer], *place)
                x.append(y)
            gradient = value('loss', x[-1], round_number, microbatch)
            losses.append(gradient)
            for layer in reversed(layers):
                gradient, accumulated[layer] = backward(weights[layer], x[layer], buffers[layer], gradient,
                                                        accumulated[layer], round_number, layer, microbatch)
        self.losses.append(losses)
        for (parameter, use), halves in sums.items():
            for half in HALVES:
                halves[half] = value('sum', halves[half], value('gradient', accumulated[use], parameter, half))

    def apply(self, sums):
        norm = value('norm', *(tuple(sums[block]) for block in sorted(sums))) if self.config.clipping else 0
        self.norms.append(norm)
        if self.config.clipping and is_skipped(norm):
            return
        for p in self.config.trained:
            for half in HALVES:
                gradients = tuple(sums[p, use][half] for use in self.config.uses[p])
                self.master[p][half] = value('master', self.master[p][half], gradients, norm)

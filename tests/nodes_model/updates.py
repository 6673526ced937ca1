"""The weights and steps of one pipeline on one node."""
from collections import Counter

from gradients import Gradients
from process import TORN, Violation
from sends import WEIGHTS
from training import NORM, is_skipped, updated, value


class Range:
    """The chunks of a weight group that belong to one owner. `have`: the last version of them in this node's copies."""

    def __init__(self, group, owner, chunks, have):
        self.group = group
        self.owner = owner
        self.chunks = chunks
        self.have = have
        self.is_receiving = False
        self.received = []  # contents that are not published yet
        self.unsent = Counter()  # by copy: sends whose end this node does not know of
        self.messages = {}  # by copy


class Updates(Gradients):
    """`run()` is the thread that adds gradients, updates weights and publishes versions."""

    def __init__(self, node, pipeline, start):
        super().__init__(node, pipeline, start)
        self.versions = node.job.reference.weights[pipeline.number]
        self.ranges = [Range(g, owner, chunks, start) for g in pipeline.groups for owner, chunks in g.ranges(node.job.num_nodes).items()]
        self.own_range = {r.group: r for r in self.ranges if r.owner == node.number}
        self.copies = {g: [[TORN] * g.chunks for _ in range(pipeline.copies)] for g in pipeline.groups}
        self.masters = {}
        self.squares = {}  # step -> (group, chunk) -> square, of own chunks
        self.squares_sent = start  # steps
        self.num_squares_sent = Counter()  # by step
        self.parts = {}  # step -> node -> squares
        self.norms = {}
        self.seen = -1  # the node's changes when the possible work was last looked for
        self.possible = []

    def load(self, r, saved):
        """At the first start every node reads all weights. At a later one each reads its own masters, and sends the weights."""
        is_own = r.owner == self.node.number
        for chunk in r.chunks if is_own or saved is None else ():
            contents = [self.versions[0][r.group.number][chunk]] if saved is None else saved[self.pipeline.number, r.group.number, chunk]
            for copy in range(self.pipeline.copies):
                is_last = copy == self.copy_of(self.start) or self.mistake('one_version_loaded')
                self.copies[r.group][copy][chunk] = contents[-1 if is_last else 0]
            if is_own:
                self.masters[r.group, chunk] = contents[-1]
        first = self.start + 1 - self.pipeline.copies
        if saved is not None and is_own:
            for version in range(first, self.start + 1):
                self.send_weights(r, version)
        elif saved is not None:
            r.have = first - 1

    def run(self):
        """Never waits for one thing: it does what can be done now, if there is any."""
        while True:
            yield from self.node.wait(f'work of pipeline {self.pipeline.number}', self.find_work)
            work, *arguments = self.node.rng.choice(self.possible)
            yield from work(*arguments)

    def find_work(self):
        if self.seen != self.node.changes:
            self.seen = self.node.changes
            rounds = [(use, chunk, self.next_to_add(use, chunk)) for use, chunk in self.next_keys()]
            self.possible = [(self.add, *item) for item in rounds if item[2] is not None]
            self.possible += [(self.send_squares, self.squares_sent + 1)] if self.can_send_squares() else []
            self.possible += [(work, r) for r in self.ranges for work in [self.work_on(r)] if work]
        return bool(self.possible)

    def call_step(self, step):
        self.called = step
        self.rounds_until[step] = self.first_round + len(self.rounds)
        if not self.config.steps_in_turn:
            self.receive_squares(step)

    # Norms

    def can_send_squares(self):
        step = self.squares_sent + 1
        if step > self.called:
            return False
        if self.pipeline.may_skip and not self.mistake('squares_sent_early'):
            return all(self.is_final(group, step) for group in self.own)
        return all(r.have >= step - self.pipeline.may_skip for r in self.own_range.values())

    def take_squares(self, group, step):
        self.squares.setdefault(step, {}).update({(group.number, c): value('square', *self.sums_of(group, c)) for c in self.own[group]})

    def send_squares(self, step):
        """If the step does not need the norm, the squares of a range were taken when it was updated."""
        self.squares_sent = step
        for group in self.own if self.pipeline.may_skip else ():
            self.take_squares(group, step)
        parts = self.squares.setdefault(step, {})
        if self.config.steps_in_turn:
            self.receive_squares(step)
        for other in self.node.others:
            self.node.send(other, ('norm', self.pipeline.number), lambda: parts, lambda: self.end_squares_send(step))
        self.add_squares(step, self.node.number, parts)
        yield f'sends squares of step {step}'
        if self.mistake('norm_awaited'):
            yield from self.node.wait('a norm', lambda: step in self.norms)

    def receive_squares(self, step):
        for other in self.node.others:
            self.node.receive(other, ('norm', self.pipeline.number), lambda parts, other=other: self.add_squares(step, other, parts))

    def add_squares(self, step, node, parts):
        self.parts.setdefault(step, {})[node] = parts
        self.compute_norm(step)

    def end_squares_send(self, step):
        self.num_squares_sent[step] += 1
        self.compute_norm(step)

    def compute_norm(self, step):
        """All nodes compute the same norm: from all squares, in the order of the chunks."""
        is_sent = self.num_squares_sent[step] == len(self.node.others) or not self.config.steps_in_turn
        if step not in self.norms and is_sent and len(self.parts.get(step, ())) == self.node.job.num_nodes:
            squares = [item for part in self.parts[step].values() for item in part.items()]
            squares = squares if self.mistake('squares_by_arrival') else sorted(squares)
            self.norms[step] = value('norm', *(square for _, square in squares))
            self.node.set_result((NORM, self.pipeline.number, step), self.norms[step])

    def skips(self, step):
        """Returns None if it is not known whether the step is skipped."""
        if not self.pipeline.may_skip:
            return False
        if self.mistake('skipped_by_own') and step in self.squares:
            return is_skipped(value('norm', *self.squares[step].values()))
        return is_skipped(self.norms[step]) if step in self.norms else None

    # Weights

    def published(self, group):
        """A version is published when all of its ranges are there."""
        versions = [r.have for r in self.ranges if r.group is group]
        return max(versions) if self.mistake('published_early') else min(versions)

    def applied(self, group):
        return self.own_range[group].have

    def has_ended(self, step):
        return (step <= self.start or step in self.norms) and all(r.have >= step for r in self.ranges)

    def copy_of(self, version):
        return version % self.pipeline.copies

    def is_read(self, group, version):
        """Tasks that were accepted before the step may still read the copy that it overwrites."""
        return any(self.open[group, step] for step in range(self.start + 1, version + 1))

    def work_on(self, r):
        """Returns what leads to the next version of a range, if it can be done now."""
        version = r.have + 1
        is_own = r.owner == self.node.number
        if r.received:
            return self.publish
        if r.is_receiving or version > self.called:
            return None
        if version <= self.start:
            return self.receive
        if self.config.steps_in_turn and not self.has_ended(version - 1):
            return None
        skips = self.skips(version)
        if skips and (self.pipeline.copies == 1 or self.mistake('skip_not_copied')):
            return self.pass_over
        if skips is None and (is_own or not self.mistake('received_before_norm')):
            return None
        work = self.take_over if skips else self.update if is_own else self.receive
        if self.is_read(r.group, version) and not self.mistake(f'{work.__name__}_while_read'):
            return None
        if r.unsent[self.copy_of(version)] and not self.mistake(f'{work.__name__}_while_sent'):
            return None
        if work == self.update and not self.is_final(r.group, version):
            return None
        if work == self.receive and self.config.steps_in_turn and r.group in self.own and self.own_range[r.group].have < version:
            return None
        return work

    def write(self, r, version, make_contents):
        """Fills the chunks of a range with a new version, which takes some time."""
        copy = self.copies[r.group][self.copy_of(version)]
        if not all(message.is_sent for message in r.messages.get(self.copy_of(version), ())):
            raise Violation('weights overwritten while they are sent')
        self.node.saver.preserve(self, r)
        for chunk in r.chunks:
            copy[chunk] = TORN
        yield f'begins to write version {version} of group {r.group.number}'
        for chunk, content in zip(r.chunks, make_contents()):
            copy[chunk] = content
        r.have = version

    def update(self, r):
        version = r.have + 1
        if not self.pipeline.may_skip:
            self.take_squares(r.group, version)

        def change_masters():
            for chunk in r.chunks:
                self.masters[r.group, chunk] = updated(self.pipeline, self.masters[r.group, chunk], self.sums_of(r.group, chunk),
                                                       self.norms.get(version))
                if self.masters[r.group, chunk] != self.versions[version][r.group.number][chunk]:
                    raise Violation('weights differ')
            return [self.masters[r.group, chunk] for chunk in r.chunks]

        yield from self.write(r, version, change_masters)
        self.send_weights(r, version)
        yield f'has updated group {r.group.number} to version {version}'

    def send_weights(self, r, version):
        copy = self.copy_of(version)
        r.unsent[copy] += len(self.node.others)
        contents = self.copies[r.group][copy]
        r.messages[copy] = [self.node.send_long(other, WEIGHTS, (version, r.group.layers[0]), self.weights_channel(r.group),
                                                lambda: [contents[chunk] for chunk in r.chunks], lambda: r.unsent.subtract([copy]))
                            for other in self.node.others]

    def weights_channel(self, group):
        """Owners update groups in any order, and receives are posted in any order: so each group has a channel of its own."""
        return 'weights', self.pipeline.number, 0 if self.mistake('one_channel') else group.number

    def receive(self, r):
        """Receives in place. The version before must be there: two receives into one place could end in any order."""
        version = r.have + 1
        for chunk in r.chunks:
            self.copies[r.group][self.copy_of(version)][chunk] = TORN
        r.is_receiving = True
        self.node.receive(r.owner, self.weights_channel(r.group), r.received.append)
        yield f'receives version {version} of group {r.group.number} from node {r.owner}'

    def publish(self, r):
        r.have += 1
        for chunk, content in zip(r.chunks, r.received.pop()):
            self.copies[r.group][self.copy_of(r.have)][chunk] = content
        r.is_receiving = False
        yield f'has version {r.have} of group {r.group.number} from node {r.owner}'

    def pass_over(self, r):
        """A step is skipped that would have overwritten the only copy."""
        self.node.saver.preserve(self, r)
        r.have += 1
        yield f'skips version {r.have} of group {r.group.number}'

    def take_over(self, r):
        """A step is skipped. The other copy becomes the new version, too."""
        version = r.have + 1
        other = self.copies[r.group][self.copy_of(version - 1)]
        yield from self.write(r, version, lambda: [other[chunk] for chunk in r.chunks])
        yield f'has taken over version {version} of group {r.group.number}'

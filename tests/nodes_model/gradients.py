"""The gradients of one pipeline on one node: who gets them, when they are added, and when their buffers are free."""
from collections import Counter, deque

from process import TORN, Violation
from sends import GRADIENTS
from training import ROUND, value


class GradientBuffer:
    """The gradient of one use. `released`: attempts of this node whose gradient is not needed in the buffer any more."""

    def __init__(self):
        self.content = None
        self.round = None  # of the committed gradient
        self.released = 0
        self.is_released = True
        self.own_left = 0  # chunks that this node has not added yet
        self.sends_left = 0  # whose end this node does not know of
        self.messages = []

    def begin_write(self):
        if self.own_left or not all(message.is_sent for message in self.messages):
            raise Violation('needed gradient overwritten')
        self.content = TORN


class Gradients:
    """`own`: the chunks of each group that this node owns, if it owns some."""

    def __init__(self, node, pipeline, start):
        self.node = node
        self.config = node.config
        self.mistake = node.mistake
        self.pipeline = pipeline
        self.gradient_channel = 'gradient', pipeline.number
        self.start = start  # the version with which the job begins
        self.called = start  # the last step that the program has called
        self.own = {g: g.ranges(node.job.num_nodes)[node.number] for g in pipeline.groups if node.number in g.ranges(node.job.num_nodes)}
        self.first_round = sum(call.kind == ROUND and call.pipeline == pipeline.number for call in self.config.calls[:node.job.position])
        self.rounds_until = {start: self.first_round}  # by step that was called
        self.rounds = {}  # that the program has called: number -> (step, owner)
        self.num_attempts = 0
        self.open = Counter()  # by (group, step): tasks that read the group and are not committed
        self.buffers = {use: GradientBuffer() for use in pipeline.gradient_order()}
        self.wanted = [deque() for _ in range(node.job.num_nodes)]  # by sender: (round, use, chunk) to receive
        self.free = [self.config.pool for _ in self.wanted]  # by sender: buffers
        self.arrived = {}  # (round, use, chunk) -> content
        self.sums = {}
        self.added = {(use, c): self.first_round for use in pipeline.gradient_order() for c in self.own.get(use[0], ())}  # rounds

    def want_uncalled(self):
        """Only with a mistake: receives are posted for all rounds at once."""
        if self.mistake('receives_uncalled'):
            for call in self.config.calls[self.node.job.position:]:
                if call.kind == ROUND and call.pipeline == self.pipeline.number and self.node.owner_of(call) != self.node.number:
                    self.want(call.number, self.node.owner_of(call))

    def call_round(self, call, owner):
        self.rounds[call.number] = call.step, owner
        if owner != self.node.number and not self.mistake('receives_uncalled'):
            self.want(call.number, owner)

    def want(self, number, owner):
        """Gradients are received in the order of the calls, and within a call in the order in which they are committed."""
        self.wanted[owner] += [(number, use, c) for use in self.pipeline.gradient_order() for c in self.own.get(use[0], ())]
        self.receive_gradients(owner)

    def receive_gradients(self, owner):
        pool = 0 if self.mistake('shared_pool') else owner
        while self.wanted[owner] and self.free[pool] > 0:
            piece = self.wanted[owner].popleft()
            self.free[pool] -= 1
            self.node.receive(owner, self.gradient_channel, lambda content, piece=piece: self.arrived.update({piece: content}))

    def commit_gradients(self, number, layers):
        """The other owners get their parts at once; the own part waits for its turn."""
        uses = self.pipeline.gradient_order(layers)
        for use in uses[::-1] if self.mistake('sent_in_layer_order') else uses:
            buffer = self.buffers[use]
            buffer.round = number
            buffer.is_released = False
            buffer.own_left = len(self.own.get(use[0], ()))
            parts = [(owner, c) for owner, chunks in use[0].ranges(self.node.job.num_nodes).items() for c in chunks]
            parts = [(owner, c) for owner, c in parts if owner != self.node.number]
            buffer.sends_left = len(parts)
            buffer.messages = [self.node.send_long(owner, GRADIENTS, number, self.gradient_channel,
                                                   lambda b=buffer, c=c: value('chunk', b.content, c), lambda b=buffer: self.end_send(b))
                               for owner, c in parts]
            self.release(buffer)
        self.check_messages()

    def check_messages(self):
        """Small messages need no receive, so nothing but the versions of the weights limits how many of them the library keeps."""
        for other in self.node.others:
            per_round = sum(len(group.ranges(self.node.job.num_nodes).get(other, ())) for group, _ in self.buffers)
            waiting = self.node.job.wires[self.node.number, other].sends[self.gradient_channel]
            if len(waiting) > per_round * self.pipeline.rounds_per_step * self.pipeline.copies:
                raise Violation('messages pile up')

    def end_send(self, buffer):
        buffer.sends_left -= 1
        self.release(buffer)

    def release(self, buffer):
        """A gradient is needed until its own part is added and the others are sent."""
        is_added = buffer.own_left == 0 or self.mistake('released_when_sent')
        is_sent = buffer.sends_left == 0 or self.mistake('released_when_added')
        if is_added and is_sent and not buffer.is_released:
            buffer.is_released = True
            buffer.released += 1

    def next_keys(self):
        """Returns the sums to which something may be added next: all, or only the one that is next in the order of commits."""
        if self.config.adds_in_order and self.added:
            return [min(self.added, key=self.added.get)]  # of those with the fewest rounds, the first of a round's order
        return self.added

    def next_to_add(self, use, chunk):
        """Returns the round that is added next, if it is there. The sum belongs to a step until that step is applied to the range."""
        number = self.added[use, chunk]
        if number not in self.rounds or self.applied(use[0]) < self.rounds[number][0] - 1 and not self.mistake('sum_begun_early'):
            return None
        if self.mistake('added_by_arrival'):
            number = next((n for n, u, c in self.arrived if (u, c) == (use, chunk) and self.rounds[n][0] == self.rounds[number][0]), number)
        if self.rounds[number][1] == self.node.number:
            is_there = self.buffers[use].round == number and self.buffers[use].own_left > 0
        else:
            is_there = (number, use, chunk) in self.arrived
            if self.mistake('first_arrived_only') and is_there:
                is_there = (number, use, chunk) == next(iter(self.arrived))
        return number if is_there else None

    def add(self, use, chunk, number):
        """Adds a chunk of a gradient to its sum."""
        step, owner = self.rounds[number]
        if owner == self.node.number:
            content = value('chunk', self.buffers[use].content, chunk)
        else:
            content = self.arrived.pop((number, use, chunk))
        is_first = self.rounds.get(self.added[use, chunk] - 1, (None,))[0] != step
        self.sums[use, chunk] = value('sum', 0 if is_first else self.sums[use, chunk], content)
        self.added[use, chunk] += 1
        if owner == self.node.number:
            self.buffers[use].own_left -= 1
            self.release(self.buffers[use])
        else:
            self.free[0 if self.mistake('shared_pool') else owner] += 1
            for sender in self.node.others if self.mistake('shared_pool') else [owner]:
                self.receive_gradients(sender)
        yield f'adds round {number} to chunk {chunk} of group {use[0].number}'

    def is_final(self, group, step):
        """Returns True if the sums of the own range have all rounds of the step."""
        return self.called >= step and all(self.added[(group, layer), c] >= self.rounds_until[step] for layer in group.layers
                                           for c in self.own[group])

    def sums_of(self, group, chunk):
        return tuple(self.sums[(group, layer), chunk] for layer in group.layers)

    def are_all_added(self):
        return (all(added == self.first_round + len(self.rounds) for added in self.added.values())
                and all(buffer.is_released for buffer in self.buffers.values()))

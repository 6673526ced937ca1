"""The host store: what the processes know of each other."""
from collections import namedtuple

from training import BACKWARD, FORWARD, HALVES, value


class Violation(Exception):
    """A run did something that the protocol must exclude."""


class Block(namedtuple('Block', 'kind place attempt microbatch')):
    """A block in an arena: an activation (input of layer `place`), an input gradient (of that activation), a buffer."""

    def __str__(self):
        return f'{self.kind} {self.place} of attempt {self.attempt} microbatch {self.microbatch}'


# Sent to a worker: a slot, and the number of the event before those of its outputs.
Command = namedtuple('Command', 'epoch slot first_event')
Completion = namedtuple('Completion', 'epoch slot failed')
# Sent to a worker: a block of its arena that no process will read.
FreeRecord = namedtuple('FreeRecord', 'epoch cell')
# Which worker makes a row of blocks: the block of microbatch m is there with event first_event + m + 1 of the epoch.
Source = namedtuple('Source', 'epoch worker first_event')


class Word:
    """A monotonic word of one writer: (epoch, number)."""

    def __init__(self):
        self.value = (0, 0)

    def publish(self, value):
        if value < self.value:
            raise Violation('word went back')
        self.value = value


class Ring:
    """A queue of one writer and one reader. The coordinator empties it while the worker is not attached."""

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def first(self):
        return self.items[0] if self.items else None

    def pop(self):
        return self.items.pop(0)

    def reset(self):
        self.items = []


class Attempt:
    """One attempt of one round, with its table. Attempts are numbered on; a cancelled round is tried under a new number."""

    def __init__(self, config, number, round_number, previous):
        self.number = number
        self.round = round_number
        self.step = round_number // config.rounds_per_step + 1
        self.is_first_of_step = round_number % config.rounds_per_step == 0
        self.is_last_of_step = round_number % config.rounds_per_step == config.rounds_per_step - 1
        self.version = config.version(self.step)
        self.previous = previous  # the attempt whose buffers and gradient blocks it takes over, or None
        self.released_after = (round_number if config.mistake == 'released_counts_rounds' else number) + 1
        self.released_before = previous.released_after if previous else 0  # what its gradient writes wait for
        self.slots = []
        self.gradient_slot = {}  # layer -> the slot that holds its backward
        self.cancelled = False
        # The table. Writers: the coordinator; of places and losses, the worker of the slot.
        self.sources = {}  # (kind, place) -> Source
        self.places = {}  # block -> (arena, cell)
        self.losses = []


class Slot:
    """One stage of one attempt, at its place in the order of dispatch."""

    def __init__(self, config, number, attempt, index, stage):
        self.number = number
        self.attempt = attempt
        self.index = index
        self.phase, self.first_layer, self.end_layer = stage
        self.layers = range(self.first_layer, self.end_layer)
        self.parameters = [p for layer in self.layers for p in config.parameters_of[layer]]
        self.starts_of_backward = [first for first, _ in config.plans[attempt.round].backward_stages]
        self.worker = None  # to which it was dispatched in this epoch

    def inputs(self):
        """Returns (kind, place) of what it reads from other slots of its attempt, for each microbatch."""
        activation = [('activation', self.first_layer)] if self.first_layer else []
        return activation + ([('input_gradient', self.end_layer)] if self.phase == BACKWARD else [])

    def outputs(self):
        """Returns (kind, place) of what it writes for each microbatch: what a later slot of its attempt reads."""
        if self.phase == FORWARD:
            inner = [layer for layer in self.layers[1:] if layer in self.starts_of_backward]
            return [('activation', layer) for layer in inner + [self.end_layer]]
        return [('input_gradient', self.first_layer)] if self.first_layer else []

    def buffers(self):
        """Buffers travel through forward and fused tasks; they are written after the last microbatch."""
        return [('buffer', layer) for layer in self.layers] if self.phase != BACKWARD else []

    def blocks(self, microbatches):
        """Returns all blocks that it writes."""
        return ([Block(kind, place, self.attempt.number, m) for kind, place in self.outputs() for m in range(microbatches)]
                + [Block(kind, place, self.attempt.number, 0) for kind, place in self.buffers()])

    def __str__(self):
        stage = f'{self.phase} {self.first_layer}:{self.end_layer}'
        return f'slot {self.number} ({stage}, attempt {self.attempt.number} of round {self.attempt.round})'


class Arena:
    """Activation memory of one worker, in blocks of one size. It outlives the worker."""

    def __init__(self, blocks):
        self.blocks = blocks
        self.owner = {}  # cell -> block, as the coordinator sees it and as writes announce it; to check reads and writes
        self.content = {}


# What a step does, written before its updates begin, and what the program needs to continue after it.
Record = namedtuple('Record', 'step norm buffers losses')


class Saved:
    """What outlives the coordinator: parameters, optimizer state, gradients and their sums, and the records of steps.
    Writers: the coordinator; of gradients, the workers."""

    def __init__(self, config):
        two_copies = config.asynchronous and config.mistake != 'one_working_copy'
        self.copies = 2 if two_copies else 1
        self.master = [[value('first master', p, half) for half in HALVES] for p in config.parameters]
        self.working = [[[value('working', x) for x in self.master[p]] for _ in (0, 1)] for p in config.parameters]
        self.version = [[[0, 0], [-1, -1]] for _ in config.parameters]  # of each half of each working copy, for checks
        self.gradients = {block: [0, 0] for block in config.gradient_blocks}
        self.sums = {block: [0, 0] for block in config.gradient_blocks}
        self.records = [Record(0, 0, [value('first buffer', layer) for layer in range(config.layers)], []), None]  # of step s at s % 2
        self.begun = 0  # the last step whose updates may have begun
        self.applied = [0 for _ in config.parameters]  # the last step whose update is complete
        self.this_pass = None  # (step, parameter) of the last pass that has begun
        self.marks = [None for _ in HALVES]  # the last pass, (step, parameter), that has completed this half
        self.undo = [(None, 0) for _ in HALVES]  # a pass, and the master of its half before it
        self.failure_handled = False
        self.reported = []  # (losses, norm) by step: the program's output

    @property
    def record(self):
        return self.records[self.begun % 2]


class Store:
    """Words, rings, tables and arenas. Each comment names the writer. A new coordinator makes new ones."""

    def __init__(self, config, saved):
        self.config = config
        self.saved = saved
        numbers = range(config.workers)
        # The coordinator.
        self.first_step = saved.begun  # it is applied before the first round
        self.first_buffers = saved.record.buffers
        self.published = [saved.begun if p in config.trained else 0 for p in config.parameters]
        self.released = dict.fromkeys(config.gradient_blocks, 0)
        self.epoch = 1
        self.begun = [0 for _ in numbers]  # the last epoch in which the worker takes part
        self.live_cells = [[] for _ in numbers]  # of the worker's arena, when that epoch began
        self.attempts = []
        self.freed_by = {}  # block -> number of the slot whose commit frees it
        self.commit_point = 0
        # The worker.
        self.acknowledged = [0 for _ in numbers]  # the epoch for which it is ready
        self.issued = [Word() for _ in numbers]  # the last event whose copies are enqueued
        # The worker's device; after the worker's death the coordinator, until another takes its place.
        self.events = [Word() for _ in numbers]  # the last event whose data is in place
        # Both.
        self.commands = [Ring() for _ in numbers]
        self.completions = [Ring() for _ in numbers]
        self.frees = [Ring() for _ in numbers]
        self.arenas = [Arena(config.first_arena_blocks) for _ in numbers]

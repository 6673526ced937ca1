"""The coordinator's view of the workers' memory: which blocks are alive, and which commit frees them."""
from store import Block, FreeRecord, Violation
from updates import Updates

RUNNING, CHANGING = 'running', 'changing'


class Memory(Updates):
    """The part of the coordinator that frees blocks."""

    def __init__(self, store, rng, counts):
        super().__init__(store, rng, counts)
        self.state = CHANGING  # of the epoch
        self.live = {}  # blocks of committed slots -> (arena, cell)
        self.frees_at = {}  # slot number -> blocks that its commit frees
        self.kept = []  # by the caller: blocks that their last reader has left, until the caller drops them
        self.keeps_at = {}  # slot number -> blocks that the caller keeps when it is committed
        self.kept_buffers = []  # with which the present step started
        self.most_live = 0
        self.late_frees = [[] for _ in range(self.config.workers)]  # cells that did not fit into the ring
        self.frees_of_change = []  # only with a mistake

    def plan_frees(self, attempt):
        last_reader = {}
        for slot in attempt.slots:
            for kind, place in slot.inputs():
                last_reader[kind, place] = slot.number
        for i, ((kind, place), number) in enumerate(last_reader.items()):
            for microbatch in range(self.config.microbatches):
                block = Block(kind, place, attempt.number, microbatch)
                if self.config.keeps_blocks and i == 0:
                    self.keeps_at[number].append(block)
                else:
                    self.free_at(number, block)

    def plan_buffer_frees(self, attempt):
        """The buffers that a step started with are kept until its last slot commits, others until they are read."""
        if attempt.previous:
            buffers = [Block('buffer', layer, attempt.previous.number, 0) for layer in range(self.config.layers)]
            for block in buffers:
                self.store.freed_by.pop(block, None)
            if attempt.is_first_of_step and not self.mistake('buffers_freed_early'):
                self.kept_buffers = buffers
            else:
                for block in buffers:
                    self.free_at(attempt.gradient_slot[block.place], block)
        if attempt.is_last_of_step:
            for block in self.kept_buffers:
                self.free_at(attempt.slots[-1].number, block)
            self.kept_buffers = []

    def free_at(self, number, block):
        self.frees_at[number].append(block)
        self.store.freed_by[block] = number

    def drop_kept(self):
        if not self.kept or self.rng.random() < 0.9 and self.next_round < self.config.rounds:
            return ''
        block = self.kept.pop(0)
        self.free(block)
        return f'drops {block}'

    def free(self, block):
        """Tells the arena's worker. While the epoch changes, the list of live blocks says it."""
        if block not in self.live:
            raise Violation('unknown block freed')
        arena, cell = self.live.pop(block)
        del arena.owner[cell]
        if self.state == RUNNING:
            self.late_frees[self.store.arenas.index(arena)].append(cell)
        elif self.mistake('frees_while_changing'):
            self.frees_of_change.append((self.store.arenas.index(arena), cell))

    def flush_frees(self):
        for worker, late in enumerate(self.late_frees):
            ring = self.store.frees[worker]
            if late and len(ring.items) < self.config.free_places:
                ring.push(FreeRecord(self.store.epoch, late.pop(0)))
                return f'tells worker {worker} to free a cell'
        return ''

    def free_inputs_of_completed(self):
        for ring in self.store.completions:
            for item in ring.items:
                for block in self.frees_at[item.slot.number] if not item.failed else ():
                    if block in self.live:
                        self.free(block)

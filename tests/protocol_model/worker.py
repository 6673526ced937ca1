"""A worker process with its device. It has no state that outlives it."""
from process import Process
from store import Block, Completion, Violation
from task import End, Event, GradientWrite, Read, Task, Write
from training import EVENTS, FORWARD, FUSED, HALVES, HOST, backward, forward, value

STAGE_BUFFERS = 2  # on the device: for the task that computes and the one behind it


class Worker(Process):
    """Follows the epoch; serves while it takes part."""

    def __init__(self, store, rng, counts, number, peers):
        super().__init__(store, rng, counts)
        self.number = number
        self.arena = store.arenas[number]
        self.peers = peers  # the process of each worker, for their devices' events
        self.alive = True
        self.stopped = False  # hangs: its host does nothing any more
        self.ends_at_start = False
        self.has_other_files = False  # of the model than the run
        self.has_reported_error = False
        self.fault = None  # that has ended it
        self.died_in = None  # the task that has ended it: (attempt, slot), since a slot's number is used again after a cancelled step
        self.landing = 0  # operations that its device still performs after its death
        self.epoch = 0  # which it has acknowledged
        self.is_serving = False  # in that epoch
        self.has_served = False
        self.is_device_stopped = True
        self.halted = False  # by a failing user function
        self.allocated = set()  # cells
        self.landed = (0, 0)  # the last event that its device has reached
        self.uploads = []  # streams
        self.downloads = []
        self.gradients = []
        self.drop_tasks()
        self.host_actions = [self.follow_epoch, self.take_command, self.upload_weights, self.upload_weights,
                             self.fetch_inputs, self.compute, self.enqueue_gradient, self.free_memory]
        self.device_actions = [self.land_upload, self.land_download, self.land_download, self.land_gradient,
                               self.land_gradient]
        self.actions = self.host_actions + self.device_actions

    def act(self, action):
        """Performs an action if the process is able to."""
        is_stopped = self.is_device_stopped if action in self.device_actions else self.stopped
        return '' if is_stopped or not self.alive else action()

    # Life and epochs

    def die(self, rng, fault=None):
        """Some of the device's operations are still performed until the process is gone."""
        if not self.alive:
            return
        self.alive = False
        self.fault = fault
        self.landing = rng.randint(0, len(self.uploads) + len(self.downloads) + len(self.gradients))

    def land_after_death(self, rng):
        if self.landing == 0:
            return ''
        self.landing -= 1
        return rng.choice(self.device_actions)()

    def drop_tasks(self):
        self.queue = []  # tasks; the first one computes
        self.staged = []  # those that have a stage buffer
        self.waiting_gradients = []  # writes that wait for their block
        self.halted = self.halted and self.mistake('stays_failed')
        self.is_serving = False

    def follow_epoch(self):
        """Stops for a new epoch, drains the device, acknowledges; serves when the epoch begins with this worker."""
        store = self.store
        if self.ends_at_start:
            self.die(self.rng, 'start')
            return 'ends while it starts'
        if self.has_other_files and not self.mistake('other_files_served'):
            self.die(self.rng, 'files')
            self.has_reported_error = True
            return 'finds other files than those of the run'
        if self.epoch != store.epoch:
            if self.is_serving:
                if self.mistake('change_is_end'):
                    self.die(self.rng)
                self.drop_tasks()
                return 'drops its tasks'
            if (self.uploads or self.downloads or self.gradients) and not self.mistake('no_drain'):
                return ''
            self.epoch = store.epoch
            self.is_device_stopped = True
            store.acknowledged[self.number] = self.epoch
            return f'acknowledges epoch {self.epoch}'
        if self.is_serving or store.begun[self.number] != self.epoch:
            return ''
        if self.has_served and self.mistake('stays_stopped'):
            return ''
        self.build_allocator()
        self.is_device_stopped = self.has_served and self.mistake('device_stays_stopped')
        self.is_serving = self.has_served = True
        return f'serves in epoch {self.epoch}'

    def build_allocator(self):
        """The list of the live blocks is all that a worker knows of the past: survivor, replacement and first start."""
        live = set(self.store.live_cells[self.number])
        if self.has_served and self.mistake('allocator_kept'):
            self.allocated |= live
        elif not self.has_served and self.mistake('allocator_empty'):
            self.allocated = set()
        else:
            self.allocated = live

    # Host

    def take_command(self):
        ring = self.store.commands[self.number]
        if not self.is_serving or ring.first() is None:
            return ''
        command = ring.pop()
        if command.epoch != self.epoch:
            raise Violation('stale command')
        self.queue.append(Task(command))
        return f'takes {command.slot}'

    def upload_weights(self):
        """Stage buffers are granted in slot order; version v is uploaded only when it is published."""
        waiting = [task for task in self.queue if task not in self.staged]
        if len(self.staged) < STAGE_BUFFERS and waiting:
            self.staged.append(self.rng.choice(waiting) if self.mistake('prefetch_out_of_order') else waiting[0])
        for task in self.staged:
            if len(task.weights) < len(HALVES) * len(task.slot.parameters):
                return self.upload_half(task)
        return ''

    def upload_half(self, task):
        store = self.store
        index, half = divmod(len(task.weights), len(HALVES))
        parameter = task.slot.parameters[index]
        version = 0 if parameter == self.config.frozen else task.slot.attempt.version
        if store.published[parameter] < version and not self.mistake('upload_unpublished'):
            return ''
        copy = version % store.saved.copies
        if store.saved.version[parameter][copy][half] != version:
            raise Violation('wrong version read')
        task.weights.append(store.saved.working[parameter][copy][half])
        return f'uploads half {half} of parameter {parameter} version {version} for {task.slot}'

    def fetch_inputs(self):
        """A task waits only for what earlier slots wrote; it fetches one microbatch ahead of its compute."""
        if self.halted or not self.queue:
            return ''
        task = self.queue[0]
        slot = task.slot
        microbatch = task.fetched
        if microbatch >= self.config.microbatches or microbatch > task.computed + 1:
            return ''
        inputs = {'activation': value('input', slot.attempt.round, microbatch)}
        reads = [self.find(task, row, slot.attempt, microbatch, inputs, row[0]) for row in slot.inputs()]
        if microbatch == 0:
            previous = slot.attempt.previous
            for layer in slot.layers:
                task.buffers[layer] = self.store.first_buffers[layer]
                if previous:
                    reads.append(self.find(task, ('buffer', layer), previous, 0, task.buffers, layer))
        if None in reads:
            return ''
        task.fetched += 1
        task.inputs.append(inputs)
        task.reads_left.append(len(reads))
        if self.config.signals == HOST:
            for read in reads:
                self.perform(read)
        else:
            self.uploads += reads
        return f'fetches microbatch {microbatch} of {slot}'

    def find(self, task, row, attempt, microbatch, to, key):
        """Waits for a block until it is there, or until the device may wait for it. What was committed before the epoch
        began is there."""
        kind, place = row
        source = attempt.sources[row]
        block = Block(kind, place, attempt.number, microbatch)
        maker = event = None
        waits = source.epoch == self.epoch or self.mistake('sources_without_epoch')
        if waits and not (self.mistake('place_is_enough') and block in attempt.places):
            event = self.epoch_of_events(), source.first_event + microbatch + 1
            words = self.store.events if self.config.signals == HOST else self.store.issued
            word = words[source.worker].value
            if word < event:
                if self.mistake('waits_time_out') and not self.peers[source.worker].alive:
                    self.die(self.rng)
                return None
            if word[0] != self.epoch_of_events() and not self.mistake('wake_without_epoch'):
                return None
            maker = self.peers[source.worker]
        if block not in attempt.places:
            raise Violation('unwritten block read')
        return Read(task, microbatch, block, attempt.places[block], to, key, maker, event)

    def epoch_of_events(self):
        return 1 if self.mistake('events_without_epoch') else self.epoch

    def perform(self, read):
        arena, cell = read.location
        if self.is_serving and self.epoch == self.store.epoch and arena.owner.get(cell) != read.block:
            raise Violation('freed block read')
        read.to[read.key] = arena.content.get(cell)
        read.task.reads_left[read.microbatch] -= 1

    def compute(self):
        """One microbatch of the first task; its writes are enqueued if memory is granted."""
        task = self.queue[0] if self.queue else None
        if task is not None and (task.slot.attempt.round, task.slot.index, -1) == self.config.poison:
            return self.die_in(task.slot)
        if self.halted or task is None or task not in self.staged or task.fetched <= task.computed:
            return ''
        slot = task.slot
        microbatch = task.computed
        if task.reads_left[microbatch] > 0 or len(task.weights) < len(HALVES) * len(slot.parameters):
            return ''
        if (slot.attempt.round, slot.index, microbatch) == self.config.failure and not self.store.saved.failure_handled:
            return self.report_failure(task)
        if (slot.attempt.round, slot.index, microbatch) == self.config.poison:
            return self.die_in(slot)
        is_last = microbatch == self.config.microbatches - 1
        outputs = slot.outputs() + (slot.buffers() if is_last else [])
        if outputs and not self.is_memory_granted(slot, len(outputs)):
            return ''
        values = self.run_layers(task, microbatch)
        for kind, place in outputs:
            self.write(task, Block(kind, place, slot.attempt.number, 0 if kind == 'buffer' else microbatch),
                       values[kind, place])
        event = self.epoch_of_events(), task.first_event + microbatch + 1
        self.downloads.append(Event(*event))
        if self.config.signals != HOST:
            self.store.issued[self.number].publish(event)
        task.computed += 1
        if is_last:
            self.end_task(task)
        return f'computes microbatch {microbatch} of {slot}'

    def die_in(self, slot):
        self.die(self.rng, 'task')
        self.died_in = slot.attempt.number, slot.number
        self.counts['deaths in the poisoned task'] += 1
        return f'dies in {slot}'

    def report_failure(self, task):
        """A failing user function is data, handled when the commit point reaches its slot."""
        self.halted = True
        self.waiting_gradients.append(End(task, True))
        return f'user function fails in {task.slot}'

    def is_memory_granted(self, slot, count):
        """Waits only if the commit of an earlier slot will free some; otherwise the arena grows."""
        arena = self.arena
        while arena.blocks - len(self.allocated) < count:
            if self.mistake('memory_waits_always') and arena.blocks >= 3 + self.config.microbatches:
                return False
            freed_by = [self.store.freed_by.get(block) for block in arena.owner.values()]
            if self.store.frees[self.number].items or any(n is not None and n < slot.number for n in freed_by):
                self.counts['waits for memory'] += 1
                return False
            arena.blocks += 1
        return True

    def run_layers(self, task, microbatch):
        """A backward recomputes from its round's input buffers, microbatch by microbatch, on a private copy."""
        slot = task.slot
        round_number = slot.attempt.round
        weights = task.layer_weights(self.config)
        if self.has_other_files:  # only with a mistake
            weights = {layer: value('other files', weight) for layer, weight in weights.items()}
        x, gradient = task.inputs[microbatch]['activation'], task.inputs[microbatch].get('input_gradient')
        before = dict(task.buffers)
        inputs = {}
        values = {}
        for layer in slot.layers:
            inputs[layer] = x
            x, task.buffers[layer] = forward(weights[layer], x, before[layer], round_number, layer, microbatch)
            values['activation', layer + 1] = x
            values['buffer', layer] = task.buffers[layer]
        if slot.phase == FUSED:
            gradient = value('loss', x, round_number, microbatch)
            task.losses.append(gradient)
        if slot.phase != FORWARD:
            for layer in reversed(slot.layers):
                gradient, task.accumulated[layer] = backward(weights[layer], inputs[layer], before[layer], gradient,
                                                             task.accumulated[layer], round_number, layer, microbatch)
                values['input_gradient', layer] = gradient
        return values

    def write(self, task, block, content):
        cell = min(cell for cell in range(self.arena.blocks) if cell not in self.allocated)
        self.allocated.add(cell)
        self.arena.owner[cell] = block
        task.slot.attempt.places[block] = (self.arena, cell)
        task.outputs_left += 1
        self.downloads.append(Write(task, block, cell, content))

    def end_task(self, task):
        """Gradients wait on the host for the release of their block; the end comes behind them."""
        slot = task.slot
        if self.mistake('complete_early'):
            self.waiting_gradients.append(End(task, False))
        for block in self.config.gradient_blocks if slot.phase != FORWARD else ():
            if block[1] in slot.layers:
                for half in HALVES:
                    content = value('gradient', task.accumulated[block[1]], block[0], half)
                    self.waiting_gradients.append(GradientWrite(task, block, half, content))
                    task.gradients_left += 1
        if not self.mistake('complete_early'):
            self.waiting_gradients.append(End(task, False))
        self.queue.remove(task)
        self.staged.remove(task)

    def enqueue_gradient(self):
        """A write into a gradient block is enqueued only after the host side has seen its release."""
        if not self.waiting_gradients:
            return ''
        write = self.waiting_gradients[0]
        if isinstance(write, GradientWrite):
            released = self.store.released[write.block] >= write.task.slot.attempt.released_before
            if not released and not self.mistake('ignore_released'):
                return ''
        self.gradients.append(self.waiting_gradients.pop(0))
        return f'enqueues {type(write).__name__} of {write.task.slot}'

    def free_memory(self):
        ring = self.store.frees[self.number]
        if not self.is_serving or ring.first() is None:
            return ''
        record = ring.pop()
        if record.epoch != self.epoch:
            return f'ignores a free of epoch {record.epoch}'
        if record.cell not in self.allocated:
            raise Violation('unknown block freed')
        self.allocated.remove(record.cell)
        return f'frees cell {record.cell}'

    # Device

    def land_upload(self):
        if not self.uploads:
            return ''
        read = self.uploads[0]
        if read.event is not None:
            # A word is in the store; an event belongs to the process that recorded it, and dies with it.
            reached = read.maker.landed if self.config.signals == EVENTS else self.store.events[read.maker.number].value
            if reached < read.event:
                return ''
        self.perform(self.uploads.pop(0))
        return f'reads {read.block}'

    def land_download(self):
        if not self.downloads:
            return ''
        write = self.downloads.pop(0)
        if isinstance(write, Event):
            self.landed = tuple(write)
            self.store.events[self.number].publish(self.landed)
            return f'reaches event {self.landed}'
        if self.arena.owner.get(write.cell) != write.block:
            raise Violation('foreign block written')
        self.arena.content[write.cell] = write.value
        write.task.outputs_left -= 1
        return f'lands {write.block}'

    def land_gradient(self):
        if not self.gradients:
            return ''
        write = self.gradients[0]
        task = write.task
        if isinstance(write, GradientWrite):
            self.gradients.pop(0)
            self.store.saved.gradients[write.block][write.half] = write.value
            task.gradients_left -= 1
            return f'lands half {write.half} of gradient {write.block}'
        if task.outputs_left > 0:
            return ''
        self.gradients.pop(0)
        self.complete(task, write.failed)
        return f'completes {task.slot}'

    def complete(self, task, failed):
        if task.slot.phase == FUSED:
            task.slot.attempt.losses = task.losses
        self.store.completions[self.number].push(Completion(task.epoch, task.slot, failed))

"""The user's program and the coordinator, which are one process."""
from memory import CHANGING, RUNNING, Memory
from store import Attempt, Block, Command, Slot, Source, Violation
from training import FORWARD, FUSED, Reference

ROUNDS_IN_FLIGHT = 2  # accepted rounds whose last slot is not committed yet


class Coordinator(Memory):
    """Accepts rounds, dispatches slots, moves the commit point, changes the epoch."""

    def __init__(self, store, rng, counts, launcher):
        super().__init__(store, rng, counts)
        self.launcher = launcher
        self.reference = Reference(self.config)
        self.alive = True
        self.next_round = store.first_step * self.config.rounds_per_step
        self.step_due = False  # the user's next call is step()
        self.slots = []
        self.must_load_weights = False
        self.held = None  # the number of the slot that is set aside, once one is
        self.is_task_written = False  # that of the slot; the run then ends
        # The epoch
        numbers = range(self.config.workers)
        self.members = list(numbers)  # workers that take part in the epoch, in the order of dispatch
        self.waiting_for = set(numbers)  # workers of the last epoch that are not known to be dead
        self.next_dispatch = 0
        self.sent_before = set()  # slot numbers; only for a mistake
        self.outstanding = [0 for _ in numbers]  # tasks that are sent and not committed
        self.next_event = [0 for _ in numbers]
        self.losses_of_next = {}  # slot number -> losses; only with a mistake
        self.left = set()  # workers; only with a mistake
        self.actions_of_run = [self.accept_round, self.call_step, self.drop_kept, self.dispatch, self.dispatch, self.commit,
                               self.add_gradient, self.update_weights, self.update_weights, self.flush_frees, self.report,
                               self.read_message, self.begin_epoch, self.admit_worker]
        if self.config.poison is not None:
            self.actions_of_run.append(self.write_task)
        if self.mistake('deaths_guessed'):
            self.actions_of_run.append(self.guess_death)

    @property
    def actions(self):
        return self.actions_of_run if self.is_recovered else [self.recover]

    # The user's program

    def accept_round(self):
        """forward_backward() returns when its round is accepted; at most two rounds are in flight."""
        attempts = [attempt for attempt in self.store.attempts if not attempt.cancelled]
        in_flight = [attempt for attempt in attempts if attempt.slots[-1].number >= self.store.commit_point]
        if self.next_round >= self.config.rounds or self.step_due or len(in_flight) >= ROUNDS_IN_FLIGHT:
            return ''
        if self.next_round // self.config.rounds_per_step > len(self.saved.reported) + 1:
            return ''  # the program reports a step once it has called the next one
        previous = attempts[-1] if attempts else None
        attempt = Attempt(self.config, len(self.store.attempts), self.next_round, previous)
        self.store.attempts.append(attempt)
        for index, stage in enumerate(self.config.stages(attempt.round)):
            self.add_slot(Slot(self.config, len(self.slots), attempt, index, stage))
        self.plan_frees(attempt)
        self.plan_buffer_frees(attempt)
        self.next_round += 1
        self.step_due = attempt.is_last_of_step
        return f'round {attempt.round} is attempt {attempt.number}, from {attempt.slots[0]} to {attempt.slots[-1]}'

    def add_slot(self, slot):
        self.slots.append(slot)
        self.frees_at[slot.number] = []
        self.keeps_at[slot.number] = []
        slot.attempt.slots.append(slot)
        if slot.phase != FORWARD:
            slot.attempt.gradient_slot.update(dict.fromkeys(slot.layers, slot.number))
        self.open_task(slot)

    def call_step(self):
        """step() follows the last round of a step at once; it does not wait for a loss."""
        if not self.step_due:
            return ''
        self.step_due = False
        self.steps_called += 1
        return f'step {self.steps_called} called'

    def report(self):
        """The program writes the results of a step into a file, those of a former program from its record."""
        step = len(self.saved.reported) + 1
        if step <= self.store.first_step:
            record = self.saved.records[step % (1 if self.mistake('results_of_one_step') else 2)]
            if record is None or record.step != step:
                raise Violation('results lost')
            losses = record.losses
        elif step in self.results and step in self.norms:
            losses = self.results[step][1]
        else:
            return ''
        self.saved.reported.append(losses)
        return f'reports step {step}'

    # Slots

    def dispatch(self):
        """The coordinator decides the worker: it cycles over the members of the epoch."""
        if self.state != RUNNING or self.next_dispatch >= len(self.slots):
            return ''
        members = range(self.config.workers) if self.mistake('dealt_to_all') else self.members
        worker = members[self.next_dispatch % len(members)]
        if self.outstanding[worker] > self.config.tasks_ahead:
            return ''
        slot = self.slots[self.next_dispatch]
        if self.held is not None and slot.number >= self.held and not self.mistake('set_aside_sent'):
            return ''
        slot.worker = worker
        first_event = self.next_event[worker]
        self.next_event[worker] += self.config.microbatches
        self.outstanding[worker] += 1
        self.next_dispatch += 1
        last_event = first_event + self.config.microbatches - 1
        for row in slot.outputs():
            slot.attempt.sources[row] = Source(self.store.epoch, worker, first_event)
        for row in slot.buffers():
            slot.attempt.sources[row] = Source(self.store.epoch, worker, last_event)
        if self.mistake('opened_twice') and slot.number in self.sent_before:
            self.open_task(slot)
        self.sent_before.add(slot.number)
        self.store.commands[worker].push(Command(self.store.epoch, slot, first_event))
        return f'{slot} dispatched to worker {worker}'

    def set_aside(self, attempt, number):
        """The task of this slot has ended several workers: neither it nor a later one is sent again."""
        if self.store.attempts[attempt].cancelled:
            return f'slot {number} of attempt {attempt} is cancelled already'
        if number < self.store.commit_point:
            return f'slot {number} is committed already'
        self.held = number if self.held is None else min(number, self.held)
        return f'sets slot {number} aside'

    def write_task(self):
        """Writes the task with its weights and inputs, once everything before it is committed. The run then ends."""
        store = self.store
        if self.held is None or self.state == CHANGING:
            return ''
        if store.commit_point != self.held and not self.mistake('set_aside_at_once'):
            return ''
        slot = self.slots[self.held]
        for parameter in slot.parameters:
            version = 0 if parameter == self.config.frozen else slot.attempt.version
            if store.published[parameter] < version and not self.mistake('set_aside_unpublished'):
                return ''
            if store.saved.version[parameter][version % store.saved.copies] != [version, version]:
                raise Violation('task without its weights')
        for kind, place in slot.inputs():
            for microbatch in range(self.config.microbatches):
                block = Block(kind, place, slot.attempt.number, microbatch)
                arena, cell = self.live.get(block, (None, None))
                if arena is None or arena.owner.get(cell) != block or cell not in arena.content:
                    raise Violation('task without its inputs')
        self.is_task_written = True
        return f'writes the task of {slot}'

    def commit(self):
        """Commit is in slot order, when the completion of the next slot is there."""
        store = self.store
        if self.mistake('free_at_completion'):
            self.free_inputs_of_completed()
        if self.state != RUNNING or store.commit_point >= self.next_dispatch:
            return ''
        slot = self.slots[store.commit_point]
        if self.mistake('losses_read_early') and slot.phase == FUSED:
            self.read_losses(slot)
        ring = store.completions[slot.worker]
        if ring.first() is None:
            return ''
        completion = ring.pop()
        if completion.epoch != store.epoch or completion.slot is not slot:
            raise Violation('stale completion')
        if completion.failed:
            return self.cancel_step(slot.attempt)
        losses = self.losses_of_next.get(slot.number, slot.attempt.losses)
        if slot.phase == FUSED and losses != self.reference.losses[slot.attempt.round]:
            raise Violation('loss differs')
        for block in slot.blocks(self.config.microbatches):
            self.live[block] = slot.attempt.places[block]
        for block in self.frees_at[slot.number]:
            if block in self.live or not self.mistake('free_at_completion'):
                self.free(block)
        self.kept += self.keeps_at[slot.number]
        if slot is slot.attempt.slots[-1] and slot.attempt.is_last_of_step:
            self.results[slot.attempt.step] = self.results_after(slot.attempt)
        self.outstanding[slot.worker] -= 1
        store.commit_point += 1
        self.close_task(slot)
        self.most_live = max(self.most_live, len(self.live))
        return f'{slot} committed'

    def read_losses(self, slot):
        """Only with a mistake: reads the table when the last event of the slot is reached."""
        source = slot.attempt.sources['buffer', slot.first_layer]
        if self.store.events[slot.worker].value >= (source.epoch, source.first_event + 1):
            self.losses_of_next.setdefault(slot.number, slot.attempt.losses)

    def results_after(self, attempt):
        """The results of the step that ends with this attempt. Its buffers stay alive until the next step has ended."""
        buffers = []
        for layer in range(self.config.layers):
            arena, cell = self.live[Block('buffer', layer, attempt.number, 0)]
            buffers.append(arena.content[cell])
        return buffers, [each.losses for each in self.attempts_of(attempt.step)]

    # Failures and epochs

    def cancel_step(self, failed):
        """A failing function takes the state back to the end of the last applied step."""
        store = self.store
        step = failed.step
        self.counts['steps cancelled'] += 1
        if self.has_begun(step):
            self.must_load_weights = True
            return f'attempt {failed.number} failed, but updates of step {step} have begun'
        for attempt in store.attempts:
            attempt.cancelled = attempt.cancelled or attempt.step >= step
        self.cancel_updates(step)
        dropped = [block for block in self.live if store.attempts[block.attempt].cancelled]
        for block in dropped:
            del self.live[block]
        self.kept = [block for block in self.kept if block in self.live]
        del self.slots[store.commit_point:]
        self.held = None
        self.kept_buffers = []
        self.next_round = (step - 1) * self.config.rounds_per_step
        self.step_due = False
        self.saved.failure_handled = True
        self.raise_epoch()
        return f'attempt {failed.number} failed, step {step} cancelled, epoch {store.epoch} wanted'

    def raise_epoch(self):
        self.store.epoch += 1
        self.state = CHANGING
        if self.mistake('rings_reset_early'):
            self.reset_rings(range(self.config.workers))
        if self.mistake('sources_changed_early'):
            for slot in self.slots[self.store.commit_point:self.next_dispatch]:
                for row in slot.outputs() + slot.buffers():
                    slot.attempt.sources[row] = slot.attempt.sources[row]._replace(epoch=self.store.epoch)
        if self.mistake('signal_for_the_living'):
            for worker in self.members:
                self.store.events[worker].publish((self.store.epoch, 0))

    def read_message(self):
        """The launcher reports the end of a worker, once nothing of it can write any more."""
        if not self.launcher.channel:
            return ''
        kind, worker = self.launcher.channel.pop(0)
        if kind == 'left':
            self.left.add(worker)
            if self.mistake('memory_of_the_left'):
                self.store.arenas[worker].content.clear()
            return f'goes on without worker {worker}'
        if kind == 'set aside':
            return self.set_aside(*worker)
        self.lose(worker)
        self.launcher.requests.append(worker)
        return f'worker {worker} is gone, epoch {self.store.epoch} wanted'

    def lose(self, worker):
        if not self.mistake('left_awaited'):
            self.waiting_for.discard(worker)
        if self.store.acknowledged[worker] == self.store.epoch or worker in self.members:
            self.signal_for(worker)
            self.raise_epoch()
        if worker in self.members:
            self.members.remove(worker)

    def guess_death(self):
        """Only with a mistake: a stopped launcher reports no deaths, so the coordinator guesses."""
        worker = self.awaited_worker()
        if worker is None or not self.launcher.stopped_until:
            return ''
        self.lose(worker)
        return f'takes worker {worker} for dead, epoch {self.store.epoch} wanted'

    def signal_for(self, worker):
        """Ends the waits of survivors' devices for a dead worker. What they then read is dropped with its epoch."""
        if not self.mistake('no_signal_for_the_dead'):
            self.store.events[worker].publish((self.store.epoch + 1, 0))

    def begin_epoch(self):
        """All survivors have stopped: what is not committed is dispatched again, to the workers that are ready."""
        store = self.store
        if self.state != CHANGING:
            return ''
        late = {worker for worker in self.waiting_for if store.acknowledged[worker] != store.epoch}
        if late and not self.mistake('begin_without_acknowledgement'):
            return ''
        members = [w for w in range(self.config.workers) if self.may_take_part(w) or w in late]
        if not members:
            return ''
        self.members = members
        self.waiting_for = set(members)
        self.state = RUNNING
        if not self.mistake('dispatch_kept'):
            self.next_dispatch = store.commit_point
        self.next_dispatch = min(self.next_dispatch, len(self.slots))
        if not self.mistake('outstanding_kept'):
            self.outstanding = [0 for _ in self.outstanding]
        if self.mistake('events_without_epoch'):
            self.next_event = [0 for _ in self.next_event]
        if not self.mistake('late_frees_kept'):
            self.late_frees = [[] for _ in self.late_frees]
        for worker, cell in self.frees_of_change:
            self.late_frees[worker].append(cell)
        self.frees_of_change = []
        if not (self.mistake('rings_kept') or self.mistake('rings_reset_early')):
            self.reset_rings(members)
        for arena in store.arenas:
            arena.owner = {cell: block for block, (owner, cell) in self.live.items() if owner is arena}
        for worker in members:
            store.live_cells[worker] = sorted(store.arenas[worker].owner)
            store.begun[worker] = store.epoch
        return f'epoch {store.epoch} begins at slot {store.commit_point} with workers {members}'

    def may_take_part(self, worker):
        if worker in self.left and self.mistake('gone_for_good'):
            return False
        return self.store.acknowledged[worker] == self.store.epoch

    def reset_rings(self, workers):
        """The workers are not attached: they look at the rings again once their epoch has begun."""
        for worker in workers:
            for rings in (self.store.commands, self.store.completions, self.store.frees):
                rings[worker].reset()

    def admit_worker(self):
        """A worker that is ready and takes no part joins at a new epoch."""
        if self.state != RUNNING:
            return ''
        for worker in range(self.config.workers):
            if worker not in self.members and self.may_take_part(worker):
                self.counts['workers joined'] += 1
                self.waiting_for.add(worker)
                self.raise_epoch()
                return f'worker {worker} joins, epoch {self.store.epoch} wanted'
        return ''

    def awaited_worker(self):
        """What the commit thread waits for, as it says on the fault board: a worker that did not stop for the new epoch, or the
        one with the next slot to commit, which waits only for slots that are committed."""
        if self.state == CHANGING and not self.mistake('change_not_awaited'):
            late = [worker for worker in sorted(self.waiting_for) if self.store.acknowledged[worker] != self.store.epoch]
            return late[0] if late else None
        number = self.store.commit_point + self.mistake('hang_blames_the_next')
        return self.slots[number].worker if number < self.next_dispatch else None

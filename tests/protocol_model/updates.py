"""The coordinator's sums and updates. They touch committed data only, and go on while the epoch changes. A step whose updates
have begun can be finished by another coordinator."""
from collections import Counter

from process import Process
from store import Record, Violation
from training import FORWARD, HALVES, is_skipped, value


class Updates(Process):
    """The part of the coordinator that applies steps."""

    def __init__(self, store, rng, counts):
        super().__init__(store, rng, counts)
        self.saved = store.saved
        self.steps_called = store.first_step
        self.open = Counter()  # (step, parameter) -> tasks that use it and are not closed
        self.to_sum = []  # (attempt, gradient block), in commit order
        self.summed = set()  # (step, gradient block) whose sum has begun
        self.norms = {}  # by step whose updates have begun
        self.begun = self.saved.begun  # the last such step
        self.results = {}  # by step: buffers and losses after its last round
        self.current = None  # the parameter that is being updated
        self.torn = None  # what the piece that is being written contained
        self.published_before = self.config.trained[0] if self.config.trained else 0  # only for a mistake
        self.is_recovered = False

    def open_task(self, slot):
        for parameter in slot.parameters:
            self.open[slot.attempt.step, parameter] += 1

    def close_task(self, slot):
        """Called at the commit of a slot. With several rounds per step a gradient is open until it is added."""
        adds = slot.phase != FORWARD and self.config.rounds_per_step > 1
        for parameter in slot.parameters:
            if not (adds and parameter in self.config.trained):
                self.open[slot.attempt.step, parameter] -= 1
        if adds:
            self.to_sum += [(slot.attempt, block) for block in self.config.gradient_blocks if block[1] in slot.layers]

    def add_gradient(self):
        """Gradients of several rounds are added after the commit, in round order; then the block is released."""
        if not self.to_sum or self.store.published[self.to_sum[0][1][0]] + 1 < self.to_sum[0][0].step:
            return ''
        attempt, block = self.to_sum.pop(0)
        halves = self.saved.sums[block]
        for half in HALVES:
            old = halves[half] if (attempt.step, block) in self.summed else 0
            halves[half] = value('sum', old, self.saved.gradients[block][half])
        self.summed.add((attempt.step, block))
        self.open[attempt.step, block[0]] -= 1
        if not self.mistake('released_at_publish'):
            self.release(block, [attempt])
        return f'gradient {block} of attempt {attempt.number} added'

    def release(self, block, attempts):
        """The word counts attempts, never the same number twice."""
        self.store.released[block] = max(attempt.released_after for attempt in attempts)

    def attempts_of(self, step):
        return [attempt for attempt in self.store.attempts if attempt.step == step and not attempt.cancelled]

    def is_ready(self, step, parameter):
        """step() was called, and every task of the step that uses the parameter is closed."""
        if self.steps_called < step or len(self.attempts_of(step)) < self.config.rounds_per_step:
            return False
        if self.mistake('update_at_completion') and self.are_complete(step, parameter):
            return True
        return self.open[step, parameter] == 0

    def are_complete(self, step, parameter):
        completed = {item.slot.number for ring in self.store.completions for item in ring.items if not item.failed}
        return all(slot.number < self.store.commit_point or slot.number in completed for attempt in self.attempts_of(step)
                   for slot in attempt.slots if parameter in slot.parameters) and self.config.rounds_per_step == 1

    def is_barrier(self):
        """All gradients of a step must be final before its updates begin: clipping needs their norm; another coordinator
        can finish the updates, but has no gradients."""
        return self.config.clipping or self.config.restarts and not self.mistake('no_barrier')

    def sum_of(self, block, half):
        if self.config.rounds_per_step > 1:
            return self.saved.sums[block][half]
        return value('sum', 0, self.saved.gradients[block][half])

    def update_weights(self, parameter=None):
        """One pass per parameter, one after the other, once its gradient is final; in pieces (here: halves)."""
        if self.current is not None:
            parameter = self.current
        elif parameter is None:
            parameter = self.rng.choice(self.config.trained)
        step = self.store.published[parameter] + 1
        if step > self.config.steps:
            return ''
        if step not in self.norms:
            return self.begin_step(step, parameter)
        if step > self.begun or not self.is_barrier() and not self.is_ready(step, parameter):
            return ''
        self.current = parameter
        self.saved.this_pass = step, parameter
        return self.update_piece(step, parameter) or self.publish(step, parameter)

    def begin_step(self, step, parameter):
        """The record of a step is complete before it counts, and it counts before anything is changed."""
        if any(self.store.published[p] < step - 1 for p in self.config.trained):
            return ''
        if not all(self.is_ready(step, p) for p in (self.config.trained if self.is_barrier() else [parameter])):
            return ''
        if self.config.restarts and step not in self.results:
            return ''
        self.norms[step] = 0
        if self.config.clipping:
            sums = [tuple(self.sum_of(block, half) for half in HALVES) for block in self.config.gradient_blocks]
            self.norms[step] = value('norm', *sums)
        self.begun = step
        if not self.mistake('recorded_late'):
            self.record(step)
        return f'step {step} begins' + (', which is skipped' if self.is_skipped(step) else '')

    def record(self, step):
        if not self.config.restarts or self.mistake('no_barrier') and step not in self.results:
            return
        buffers, losses = self.results[step]
        if self.mistake('buffers_not_recorded'):
            buffers = self.saved.record.buffers
        self.saved.records[step % 2] = Record(step, self.norms[step], buffers, losses)
        self.saved.begun = step

    def is_skipped(self, step):
        return self.config.clipping and is_skipped(self.norms[step])

    def update_piece(self, step, parameter):
        """Saves what the next piece is about to change, then changes it, which may stop half-way. A mark tells which pass
        has completed a piece. Returns '' if all pieces are done."""
        saved = self.saved
        this_pass = step, parameter
        half = next((half for half in HALVES if saved.marks[half] != this_pass), None)
        if half is None:
            return ''
        if saved.undo[half][0] != this_pass and not self.mistake('no_undo'):
            saved.undo[half] = this_pass, saved.master[parameter][half]
            return f'saves half {half} of parameter {parameter}'
        if self.torn is None:
            self.torn = saved.master[parameter][half]
            saved.master[parameter][half] = value('torn', step)
            return f'begins to write half {half} of parameter {parameter}'
        saved.master[parameter][half], self.torn = self.torn, None
        self.update_half(step, parameter, half)
        saved.marks[half] = this_pass
        return f'half {half} of parameter {parameter} updated by step {step}'

    def update_half(self, step, parameter, half):
        """Version v goes into copy v mod 2; a skipped step rewrites its copy from the unchanged master."""
        saved = self.saved
        copy = step % saved.copies
        skipped = self.is_skipped(step)
        if not skipped:
            gradients = tuple(self.sum_of((parameter, use), half) for use in self.config.uses[parameter])
            saved.master[parameter][half] = value('master', saved.master[parameter][half], gradients, self.norms[step])
        if not (skipped and self.mistake('skip_without_rewrite')):
            saved.working[parameter][copy][half] = value('working', saved.master[parameter][half])
        saved.version[parameter][copy][half] = step

    def publish(self, step, parameter):
        """That the parameter is done counts before the next pass begins. With one round per step the gradient blocks are
        released now: nothing needs them any more, not even after a death."""
        self.current = None
        if self.mistake('recorded_late'):
            self.record(step)
        if self.mistake('applied_late'):
            self.saved.applied[self.published_before], self.published_before = step, parameter
        else:
            self.saved.applied[parameter] = step
        self.store.published[parameter] = step
        if self.config.rounds_per_step == 1 or self.mistake('released_at_publish'):
            for use in self.config.uses[parameter]:
                self.release((parameter, use), self.attempts_of(step))
        return f'parameter {parameter} has version {step}'

    def has_begun(self, step):
        return self.begun >= step

    def cancel_updates(self, step):
        """Takes the sums and the open tasks back to the end of the step before. Its attempts are marked as cancelled."""
        if self.has_begun(step):
            raise Violation('an applied step is cancelled')
        self.to_sum = [(attempt, block) for attempt, block in self.to_sum if not attempt.cancelled]
        if not self.mistake('sums_kept'):
            self.summed = {(s, block) for s, block in self.summed if s < step}
        self.open = Counter({key: count for key, count in self.open.items() if key[0] < step})
        self.steps_called = step - 1

    def recover(self):
        """Finishes the step that had begun, from its record and the gradients in the store. May die and begin again."""
        step = self.begun
        self.norms[step] = self.saved.record.norm
        for parameter in self.order_of_recovery():
            if self.saved.applied[parameter] >= step or self.mistake('no_roll_forward'):
                continue
            self.saved.this_pass = step, parameter
            if self.torn is None:
                self.undo_piece(step, parameter)
            text = self.update_piece(step, parameter)
            if not text:
                self.saved.applied[parameter] = step
            return f'recovers parameter {parameter}: {text}'
        self.is_recovered = True
        return f'continues after step {step}'

    def order_of_recovery(self):
        """The pass that was under way is finished first: the next one overwrites its marks and what it has saved."""
        first = [] if self.saved.this_pass is None or self.mistake('recovered_in_order') else [self.saved.this_pass[1]]
        return first + self.config.trained

    def undo_piece(self, step, parameter):
        for half in HALVES:
            undone, old = self.saved.undo[half]
            if undone == (step, parameter) != self.saved.marks[half]:
                self.saved.master[parameter][half] = old

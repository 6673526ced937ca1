"""The coordinator's sums and updates. They touch committed data only, and go on while the epoch changes."""
from collections import Counter

from process import Process
from store import Violation
from training import FORWARD, HALVES, is_skipped, value


class Updates(Process):
    """The part of the coordinator that applies steps."""

    def __init__(self, store, rng, counts):
        super().__init__(store, rng, counts)
        self.steps_called = 0
        self.open = Counter()  # (step, parameter) -> tasks that use it and are not closed
        self.to_sum = []  # (attempt, gradient block), in commit order
        self.sums = {}  # (step, gradient block) -> halves
        self.norms = {}
        self.halves_updated = [0 for _ in self.config.parameters]

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
        halves = self.sums.setdefault((attempt.step, block), [0, 0])
        for half in HALVES:
            halves[half] = value('sum', halves[half], self.store.gradients[block][half])
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

    def sum_of(self, step, block, half):
        if self.config.rounds_per_step > 1:
            return self.sums[step, block][half]
        return value('sum', 0, self.store.gradients[block][half])

    def update_weights(self, parameter=None):
        """One pass per parameter once its gradient is final; clipping is a barrier: all gradients, then updates."""
        parameter = self.rng.choice(self.config.trained) if parameter is None else parameter
        step = self.store.published[parameter] + 1
        half = self.halves_updated[parameter]
        if step > self.config.steps or half == 0 and not self.is_ready(step, parameter):
            return ''
        if self.config.clipping and step not in self.norms:
            return self.find_norm(step)
        self.update_half(step, parameter, half)
        self.halves_updated[parameter] = 1 - half
        if half == HALVES[-1]:
            self.publish(step, parameter)
        return f'half {half} of parameter {parameter} updated by step {step}'

    def find_norm(self, step):
        if not all(self.is_ready(step, parameter) for parameter in self.config.trained):
            return ''
        sums = [tuple(self.sum_of(step, block, half) for half in HALVES) for block in self.config.gradient_blocks]
        self.norms[step] = value('norm', *sums)
        return f'norm of step {step}' + (', which is skipped' if is_skipped(self.norms[step]) else '')

    def update_half(self, step, parameter, half):
        """Version v goes into copy v mod 2; a skipped step rewrites its copy from the unchanged master."""
        store = self.store
        norm = self.norms.get(step, 0)
        copy = step % store.copies
        skipped = self.config.clipping and is_skipped(norm)
        if not skipped:
            gradients = tuple(self.sum_of(step, (parameter, use), half) for use in self.config.uses[parameter])
            store.master[parameter][half] = value('master', store.master[parameter][half], gradients, norm)
        if not (skipped and self.mistake('skip_without_rewrite')):
            store.working[parameter][copy][half] = value('working', store.master[parameter][half])
        store.version[parameter][copy][half] = step

    def publish(self, step, parameter):
        """With one round per step the gradient blocks are released now."""
        self.store.published[parameter] = step
        if self.config.rounds_per_step == 1 or self.mistake('released_at_publish'):
            for use in self.config.uses[parameter]:
                self.release((parameter, use), self.attempts_of(step))

    def has_begun(self, step):
        return any(self.store.published[p] + self.halves_updated[p] >= step for p in self.config.trained)

    def cancel_updates(self, step):
        """Takes the sums and the open tasks back to the end of the step before. Its attempts are marked as cancelled."""
        if self.has_begun(step):
            raise Violation('an applied step is cancelled')
        self.to_sum = [(attempt, block) for attempt, block in self.to_sum if not attempt.cancelled]
        if not self.mistake('sums_kept'):
            self.sums = {key: halves for key, halves in self.sums.items() if key[0] < step}
        self.open = Counter({key: count for key, count in self.open.items() if key[0] < step})
        self.steps_called = step - 1

"""rp-launch: reports the ends of workers to the coordinator, starts replacements, kills what hangs."""
from process import Process
from store import Violation
from worker import Worker

MAX_DEATHS = 3  # of workers in one task
MAX_STARTS = 400  # of one worker; more are a crash loop that nobody ends


class Launcher(Process):
    """Owns the worker processes. `channel`: its messages to the coordinator, a socket with few places."""

    def __init__(self, store, rng, counts):
        super().__init__(store, rng, counts)
        self.starts = [0 for _ in range(self.config.workers)]
        self.num_starts = 0
        self.failing_starts = self.config.failing_starts
        self.starts_with_other_files = self.config.starts_with_other_files
        self.additions_left = 3 if self.config.returns else 0
        self.stopped_until = 0  # the tick at which it goes on
        self.undead = []  # processes that were replaced while their devices still write; only with a mistake
        self.workers = []  # the present process of each worker
        self.begin(store)
        self.actions = [self.reap, self.send, self.serve, self.add_worker]

    def begin(self, store):
        """Starts all workers for a new coordinator."""
        self.store = store
        self.channel = []  # ('gone' or 'left', worker), ('set aside', task)
        self.pending = []  # messages that did not fit
        self.requests = []  # from the coordinator: workers whose epoch has ended, which may be replaced
        self.is_reported = [False for _ in range(self.config.workers)]
        self.deaths = {}  # by task
        self.must_start = set()  # workers that are replaced in any case, so that what is before the task can be computed
        self.left = set()  # workers that are not replaced any more
        self.undead += [worker for worker in self.workers if worker.landing]  # only with a mistake
        self.workers = []
        for number in range(self.config.workers):
            self.workers.append(Worker(store, self.rng, self.counts, number, self.workers))

    def reap(self):
        """The end of a process is known once it is reaped: its last write has landed then."""
        for worker in self.workers:
            is_gone = not worker.alive and (not worker.landing or self.mistake('no_wait_for_death'))
            if is_gone and not self.is_reported[worker.number]:
                if worker.fault is None:
                    raise Violation('worker ended by itself')
                self.is_reported[worker.number] = True
                self.count_death(worker)
                self.report('gone', worker.number)
                if self.mistake('replaced_unasked'):
                    self.start(worker.number)
                if self.mistake('added_unasked') and self.starts[worker.number] >= self.config.max_restarts:
                    self.left.add(worker.number)
                return f'worker {worker.number} has ended'
        return ''

    def count_death(self, worker):
        """A task that has ended several workers is set aside; the coordinator hears of it before the last of them."""
        task = worker.died_in
        if task is None:
            return
        self.deaths[task] = self.deaths.get(task, 0) + 1
        if self.deaths[task] >= MAX_DEATHS:
            self.must_start.add(worker.number)
            self.report('set aside', task)

    def report(self, kind, worker):
        if self.mistake('message_lost') and len(self.channel) >= self.config.channel_places:
            return
        self.pending.append((kind, worker))

    def send(self):
        if not self.pending or len(self.channel) >= self.config.channel_places:
            return ''
        self.channel.append(self.pending.pop(0))
        return f'reports {self.channel[-1]}'

    def serve(self):
        if not self.requests:
            return ''
        number = self.requests.pop(0)
        if self.workers[number].alive and (self.mistake('replaced_unasked') or self.mistake('added_unasked')):
            return f'worker {number} is replaced already'
        if number in self.must_start:
            self.must_start.remove(number)
        elif self.workers[number].has_reported_error or self.is_used_up(number):
            self.left.add(number)
            self.report('left', number)
            return f'does not replace worker {number}'
        self.starts[number] += 1
        self.start(number)
        return f'replaces worker {number}'

    def is_used_up(self, number):
        return self.starts[number] >= self.config.max_restarts and not self.mistake('restarts_not_counted')

    def start(self, number):
        self.num_starts += 1
        if self.num_starts > MAX_STARTS:
            raise Violation('livelock')
        self.counts['replacements'] += 1
        if self.workers[number].landing:  # only with a mistake
            self.undead.append(self.workers[number])
        self.workers[number] = Worker(self.store, self.rng, self.counts, number, self.workers)
        self.is_reported[number] = False
        if self.failing_starts > 0:
            self.failing_starts -= 1
            self.workers[number].ends_at_start = True
        elif self.starts_with_other_files > 0:
            self.starts_with_other_files -= 1
            self.workers[number].has_other_files = True
            self.counts['replacements with other files'] += 1

    def add_worker(self):
        """The user adds a worker again that was given up."""
        if not self.may_add() or self.rng.random() < 0.98 and not self.mistake('added_unasked'):
            return ''
        self.additions_left -= 1
        number = self.left.pop()
        self.counts['workers added'] += 1
        self.start(number)
        return f'the user adds worker {number}'

    def go_on(self):
        """After it was stopped. It looks at each process, so ends of which it got no signal are reported late, not lost."""
        self.stopped_until = 0
        if self.mistake('deaths_missed'):
            self.is_reported = [is_reported or not worker.alive for is_reported, worker in zip(self.is_reported, self.workers)]

    def may_add(self):
        return self.additions_left > 0 and bool(self.left)

    def is_lost(self):
        """No worker is left, and none will come."""
        return len(self.left) == self.config.workers and not self.may_add() and not any(w.alive for w in self.workers)

    def find_hanging(self, coordinator):
        """Nothing has happened for long. Returns the worker that all others wait for, or one that did not get ready in time;
        or None."""
        awaited = coordinator.awaited_worker()
        if awaited is not None:
            return awaited
        starting = [w.number for w in self.workers if w.alive and w.epoch == 0]
        return starting[0] if starting else None

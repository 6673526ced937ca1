"""One run: chooses who acts next, injects faults, checks the end."""
import random
from collections import Counter

from coordinator import CHANGING, ROUNDS_IN_FLIGHT, Coordinator
from launcher import Launcher
from mistakes import FILES, LAUNCHER, MISTAKES, TASK
from store import Block, Saved, Store, Violation
from training import EVENTS, Config

TICKS = 2000000  # a run that takes longer does not end
OK, LOAD_WEIGHTS, NO_WORKERS = 'ok', 'ended: weights must be loaded', 'ended: no worker is left'
SET_ASIDE = 'ended: a task was set aside'
GOOD_ENDS = (OK, LOAD_WEIGHTS, NO_WORKERS, SET_ASIDE)
# Faults of few runs: of eight runs without a mistake, the one with this number has them; so have runs with a mistake that needs them.
SPECIAL_FAULTS = {TASK: (7, Config.poison_a_task), LAUNCHER: (3, Config.stop_the_launcher), FILES: (5, Config.change_files)}


class Run:
    """Owns all processes of one run."""

    def __init__(self, config, rng, trace=False):
        self.config = config
        self.rng = rng
        self.trace = trace
        self.counts = Counter()
        self.saved = Saved(config)
        self.store = Store(config, self.saved)
        self.launcher = Launcher(self.store, rng, self.counts)
        self.coordinator = Coordinator(self.store, rng, self.counts, self.launcher)
        self.tick = 0

    def play(self):
        turns = self.draw_turns()
        c = self.config
        expected_ticks = c.rounds * c.microbatches * c.layers * 70
        faults = sorted([(self.rng.randrange(expected_ticks), 'kill') for _ in range(c.kills)]
                        + [(self.rng.randrange(expected_ticks), 'stop') for _ in range(c.hangs)]
                        + [(self.rng.randrange(expected_ticks), 'kill coordinator') for _ in range(c.coordinator_kills)])
        launcher_stops = sorted((int(when * expected_ticks), int(ticks * expected_ticks)) for when, ticks in c.launcher_stops)
        idle = 0
        while not self.is_finished():
            if self.coordinator.must_load_weights:
                return LOAD_WEIGHTS
            if self.launcher.is_lost():
                return NO_WORKERS
            if self.coordinator.is_task_written:
                self.check_set_aside()
                return SET_ASIDE
            self.tick += 1
            if self.tick > TICKS:
                raise Violation('livelock')
            if launcher_stops and self.tick >= launcher_stops[0][0]:
                self.stop_launcher(launcher_stops.pop(0)[1])
            if self.launcher.stopped_until and self.tick >= self.launcher.stopped_until:
                self.launcher.go_on()
            if not self.coordinator.alive and not self.launcher.stopped_until and self.restart():
                turns = self.draw_turns()
            if faults and (self.tick >= faults[0][0] or self.is_early_fault(faults[0][1])):
                self.inject(faults.pop(0)[1])
            self.land_after_death()
            idle = 0 if self.act(self.rng.choice(turns)) else idle + 1
            if idle > 400:
                self.act_or_deadlock()
                idle = 0
        self.check_end()
        return OK

    def stop_launcher(self, ticks):
        self.launcher.stopped_until = self.tick + ticks
        self.counts['stop launcher'] += 1
        self.note('launcher', 'stopped')

    def is_early_fault(self, kind):
        if self.launcher.stopped_until and self.rng.random() < 0.002:
            return True
        if kind == 'kill coordinator':
            is_updating = self.coordinator.current is not None or not self.coordinator.is_recovered and self.saved.begun
            return is_updating and self.rng.random() < 0.05
        return self.coordinator.state == CHANGING and self.rng.random() < (0.02 if self.store.epoch > 1 else 0.002)

    def inject(self, kind):
        """The coordinator or a worker dies, or a worker's host stops for ever."""
        if kind == 'kill coordinator':
            self.counts[kind] += self.coordinator.alive
            self.counts[f'{kind} in a pass'] += self.coordinator.current is not None or not self.coordinator.is_recovered
            self.coordinator.alive = False
            return self.note('coordinator', 'killed')
        alive = [worker for worker in self.launcher.workers if worker.alive and not worker.stopped]
        if not alive:
            return
        worker = self.rng.choice(alive)
        self.counts[kind] += 1
        self.counts[f'{kind} while the epoch changes'] += self.coordinator.state == CHANGING
        self.counts[f'{kind} while the launcher is stopped'] += self.launcher.stopped_until > 0
        if kind == 'kill':
            worker.die(self.rng, kind)
        else:
            worker.stopped = True
        self.note(f'worker {worker.number}', kind)

    def restart(self):
        """Without a coordinator the launcher ends all workers. Once nothing of them can write any more, it starts another
        coordinator."""
        for worker in self.launcher.workers:
            worker.die(self.rng, 'restart')
        if any(worker.landing for worker in self.launcher.workers):
            return False
        self.store = Store(self.config, self.saved)
        self.launcher.begin(self.store)
        self.coordinator = Coordinator(self.store, self.rng, self.counts, self.launcher)
        self.note('launcher', 'starts another coordinator')
        return True

    def land_after_death(self):
        for worker in self.launcher.workers + self.launcher.undead:
            if not worker.alive and worker.landing and self.rng.random() < 0.02:
                self.note(f'dead worker {worker.number}', worker.land_after_death(self.rng))

    def draw_turns(self):
        """Returns who may act next, as often as it is likely to."""
        bias = self.config.bias
        turns = ['coordinator'] * {'slow coordinator': 1, 'fast coordinator': 40}.get(bias, 4) + ['launcher']
        for number in range(self.config.workers):
            turns += [number] * (25 if bias == 'slow coordinator' else 4)
        if bias == 'slow worker':
            turns = [turn for turn in turns if turn != 0] * 9 + [0]
        return turns

    def act(self, who):
        """Lets a process try one action."""
        if who == 'coordinator' and not self.coordinator.alive:
            return ''
        if who == 'coordinator':
            return self.note(who, self.rng.choice(self.coordinator.actions)())
        if who == 'launcher' and self.launcher.stopped_until:
            return ''
        if who == 'launcher':
            return self.note(who, self.rng.choice(self.launcher.actions)())
        worker = self.launcher.workers[who]
        return self.note(f'worker {who}', worker.act(self.rng.choice(worker.actions)))

    def act_or_deadlock(self):
        """After a long idle time: does the first action that is possible, or ends a process that hangs."""
        if not self.coordinator.alive:
            return
        trained = self.config.trained if self.coordinator.is_recovered else []
        updates = [(lambda p=p: self.coordinator.update_weights(p)) for p in trained]
        for action in self.coordinator.actions + updates:
            if self.note('coordinator', action()):
                return
        for action in [] if self.launcher.stopped_until else self.launcher.actions:
            if self.note('launcher', action()):
                return
        for worker in self.launcher.workers:
            if worker.landing:
                return
            for action in worker.actions:
                if self.note(f'worker {worker.number}', worker.act(action)):
                    return
        if self.launcher.may_add() or self.coordinator.kept or self.launcher.stopped_until:
            return
        self.kill_hanging()

    def kill_hanging(self):
        number = self.launcher.find_hanging(self.coordinator)
        if number is None or not self.launcher.workers[number].alive:
            raise Violation('deadlock')
        worker = self.launcher.workers[number]
        if not (worker.stopped or self.waits_for_the_dead(worker)):
            raise Violation('deadlock' if self.is_stuck(worker) else 'innocent killed')
        self.counts['hanging processes killed'] += 1
        worker.die(self.rng, 'hang')
        self.note('launcher', f'kills worker {number}, which hangs')

    def is_stuck(self, worker):
        """Nothing hangs by itself: a rule makes this worker wait for ever."""
        return not any(other.stopped or self.waits_for_the_dead(other) for other in self.launcher.workers)

    def waits_for_the_dead(self, worker):
        """Its device waits for an event of a process that is gone. If another has taken its place, that one never reaches an event of
        this epoch."""
        if self.config.signals != EVENTS or not worker.uploads:
            return False
        maker, event = worker.uploads[0].maker, worker.uploads[0].event
        return maker is not None and (not maker.alive or maker.epoch != event[0] and maker.landed < event)

    def note(self, who, text):
        if text:
            self.counts['actions'] += 1
            if self.trace:
                print(f'{self.tick:6} {who}: {text}')
        return text

    def is_finished(self):
        coordinator = self.coordinator
        return (coordinator.steps_called == self.config.steps and self.store.commit_point == len(coordinator.slots)
                and not coordinator.kept
                and len(self.saved.reported) == self.config.steps
                and all(self.store.published[p] == self.config.steps for p in self.config.trained))

    def check_set_aside(self):
        slot = self.coordinator.slots[self.coordinator.held]
        if (slot.attempt.round, slot.index) != self.config.poison[:2]:
            raise Violation('innocent task set aside')

    def check_end(self):
        c = self.config
        reference = self.coordinator.reference
        if self.saved.master != reference.master:
            raise Violation('final weights differ')
        k = c.rounds_per_step
        if self.saved.reported != [reference.losses[k * step:k * (step + 1)] for step in range(c.steps)]:
            raise Violation('reported losses differ')
        if not self.store.attempts:
            return
        last = [attempt.number for attempt in self.store.attempts if not attempt.cancelled][-1]
        buffers = [Block('buffer', layer, last, 0) for layer in range(c.layers)]
        if set(self.coordinator.live) != set(buffers):
            raise Violation('leak')
        locations = [self.coordinator.live[block] for block in buffers]
        if [arena.content[cell] for arena, cell in locations] != reference.buffers:
            raise Violation('final buffers differ')
        self.check_allocators()
        limit = ROUNDS_IN_FLIGHT * (2 * c.layers * c.microbatches + c.layers) + 2 * c.layers
        kept = c.rounds * 2 * c.microbatches if c.keeps_blocks else 0
        if self.coordinator.most_live > limit + kept:
            raise Violation('live blocks grow')
        if any(arena.blocks > 2 * limit + kept + c.first_arena_blocks for arena in self.store.arenas):
            raise Violation('arena grows')

    def check_allocators(self):
        """What a worker believes to be in use is alive, or about to be freed."""
        store = self.store
        for worker in self.launcher.workers:
            if not worker.is_serving or worker.epoch != store.epoch:
                continue
            freed = {record.cell for record in store.frees[worker.number].items}
            freed |= set(self.coordinator.late_frees[worker.number])
            if worker.allocated != set(worker.arena.owner) | freed:
                raise Violation('leaked cell')


def play(seed, index, mistake=None, trace=False):
    """Plays one run; returns its configuration, its outcome and its counts."""
    rng = random.Random(seed * 1000003 + index)
    config = Config(rng, mistake)
    for fault, (number, draw) in SPECIAL_FAULTS.items():
        if index % 8 == number if mistake is None else MISTAKES[mistake].needs == fault:
            draw(config, random.Random(f'{seed} {index}'))  # which draws nothing from `rng`
    run = Run(config, rng, trace)
    try:
        outcome = run.play()
    except Violation as violation:
        outcome = str(violation)
    except (KeyError, AttributeError, IndexError, TypeError) as error:
        if mistake is None:
            raise
        outcome = f'dangling reference ({type(error).__name__})'
    return config, outcome, run.counts

"""One node: its program, its workers, and the threads of its coordinator."""
from collections import Counter

from checkpoints import Saver
from network import Message
from process import End, Thread, Violation, Waiting
from sends import SendQueue
from training import EVALUATE, LOSSES, NORM, ROUND, SAVE, STEP, backward, first_input, forward, gradient_of
from updates import Updates

ROUNDS_IN_FLIGHT = 2  # of a pipeline: own rounds with tasks that are not committed
SIGNAL, LAST = 'signal', 'last'  # messages along the tree


def parent_of(node):
    return node & (node - 1)


def children_of(node, num_nodes):
    return [child for child in range(node + 1, num_nodes) if parent_of(child) == node]


class Task:
    """A part of an own round, on one worker."""

    def __init__(self, call, updates, attempt, layers, is_backward, previous):
        self.call = call
        self.updates = updates
        self.attempt = attempt  # of this node's rounds with gradients: how many came before
        self.layers = layers
        self.is_backward = is_backward
        self.previous = previous
        self.groups = {group: None for layer in layers for group in updates.pipeline.groups_of[layer]}
        self.is_last_forward = layers[-1] == updates.pipeline.layers - 1 and not is_backward
        self.is_done = False
        self.output = None


class Node:
    """One rank of a job. `is_lost`: the node is gone. `failed`: its coordinator knows that the job has failed."""

    def __init__(self, job, number):
        self.job = job
        self.config = job.config
        self.rng = job.rng
        self.number = number
        self.position = job.position  # the next call
        self.others = [other for other in range(job.num_nodes) if other != number]
        self.is_lost = self.failed = self.has_finished = False
        self.changes = 0  # counts everything that a wait may depend on
        self.done = []  # (function, arguments): what the network has completed, for the network's thread
        self.requests = 0  # sends and receives whose end this node does not know of
        self.queues = {}  # by other node and pipeline
        self.results = {}
        self.tasks = []
        self.committed = 0
        self.in_flight = Counter()  # by pipeline
        self.saver = Saver(self)
        self.updates = [Updates(self, p, version) for p, version in zip(self.config.pipelines, job.versions)]
        self.stop_requested = False  # of the first node
        self.decisions = []  # of the first node, about the next calls
        self.num_asked = 0  # calls that begin a round
        self.stopped = False
        self.has_passed_on = False  # a signal, or that none follows
        self.children = children_of(number, job.num_nodes)

    def mistake(self, name):
        return self.config.mistake == name

    def start(self):
        """Returns the threads."""
        for updates in self.updates:
            updates.want_uncalled()
            for r in updates.ranges:
                updates.load(r, self.job.saved)
        for child in self.children:
            self.receive(child, 'signal', self.receive_signal)
        if self.number != 0:
            self.receive_decision()
        threads = {'program': self.run_program(), 'network': self.run_network(), 'commits': self.run_commits(), 'saver': self.saver.run()}
        threads.update({f'updates {u.pipeline.number}': u.run() for u in self.updates})
        threads.update(self.workers())
        return [Thread(self, f'node {self.number} {name}', steps) for name, steps in threads.items()]

    def workers(self):
        return {f'worker {worker}': self.run_worker(worker) for worker in range(self.job.workers[self.number])}

    def wait(self, what, condition, is_deaf=False):
        """Every wait ends when the job has failed."""
        waiting = Waiting(what)
        while not condition():
            if self.failed and not is_deaf or self.has_finished:
                raise End
            yield waiting

    # Network

    def send(self, other, channel, read, done=lambda: None):
        message = Message(read, done, self.rng.random() < self.config.small)
        self.requests += 1
        self.job.wires[self.number, other].send(channel, message)
        return message

    def send_long(self, other, kind, order, channel, read, done):
        """`channel`: of a pipeline."""
        message = Message(read, done, self.rng.random() < self.config.small)
        queue = self.queues.setdefault((other, 0 if self.mistake('one_queue') else channel[1]), SendQueue(self, other))
        queue.add(kind, order, channel, message)
        return message

    def receive(self, other, channel, done):
        self.requests += 1
        self.job.wires[other, self.number].receive(channel, done)

    def end_request(self, function, *arguments):
        """Called by a wire."""
        self.done.append((function, arguments))
        self.changes += 1

    def fail(self):
        self.failed = True
        self.changes += 1

    def run_network(self):
        """Calls the functions of the sends and receives that have ended, in any order."""
        while True:
            is_deaf = self.mistake('sends_outlive_failure') and self.requests > 0
            yield from self.wait('a message', lambda: self.done, is_deaf)
            function, arguments = self.done.pop(self.rng.randrange(len(self.done)))
            self.requests -= 1
            function(*arguments)
            yield 'ends a request'

    # Program

    def run_program(self):
        """Makes the calls in order, until the first node says stop."""
        for call in self.config.calls[self.position:]:
            if call.kind in (ROUND, EVALUATE):
                yield from self.ask(call)
                if self.stopped:
                    break
                yield from self.begin(call)
            elif call.kind == STEP:
                self.updates[call.pipeline].call_step(call.step)
            elif call.kind == SAVE:
                yield from self.save(self.position + 1)
            elif self.rng.random() < 0.7 and call.of in self.config.calls[self.job.position:]:  # a program need not wait on all nodes
                key = call.of if call.kind == LOSSES else (NORM, call.of.pipeline, call.of.step)
                yield from self.wait(f'result of {key}', lambda: key in self.results, self.mistake('waits_outlive_failure'))
            self.position += 1
            yield f'calls {call}'
        is_between_steps = all(u.called > 0 and u.rounds_until[u.called] == u.first_round + len(u.rounds) for u in self.updates)
        if self.stopped and is_between_steps:
            yield from self.save(self.position)
        yield from self.end()

    def ask(self, call):
        """The first node decides for all nodes whether the next calls that begin a round are made, as many as there are nodes."""
        if self.mistake('no_go'):
            self.stopped = self.stop_requested
            return
        asks = self.num_asked % self.job.num_nodes == 0
        if self.mistake('asks_for_own_rounds'):
            asks = self.owner_of(call) == self.number
        self.num_asked += 1
        if asks:
            self.stopped = yield from self.decide(self.stop_requested)

    def decide(self, own):
        """Returns `own` of the first node."""
        if self.number == 0:
            self.pass_decision_on(own)
            return own
        yield from self.wait('a decision', lambda: self.decisions)
        return self.decisions.pop(0)

    def pass_decision_on(self, decision):
        for child in self.children:
            self.send(child, 'decision', lambda: decision)

    def receive_decision(self):
        self.receive(parent_of(self.number), 'decision', self.take_decision)

    def take_decision(self, decision):
        """A decision is passed on when it arrives: the program of this node may be late."""
        self.pass_decision_on(decision)
        if decision != LAST:
            self.decisions.append(decision)
            self.receive_decision()

    def owner_of(self, call):
        if call.kind == EVALUATE:
            return call.number % self.job.num_nodes
        return self.job.patterns[call.pipeline][call.place]

    def begin(self, call):
        """A round of another node is only counted."""
        updates = self.updates[call.pipeline]
        owner = self.owner_of(call)
        if owner == self.number:
            yield from self.wait('earlier rounds', lambda: self.in_flight[call.pipeline] < ROUNDS_IN_FLIGHT)
            self.in_flight[call.pipeline] += 1
            self.add_tasks(call, updates)
        else:
            self.receive(owner, 'losses', lambda result: self.set_result(call, result))
        if call.kind == ROUND:
            updates.call_round(call, owner)

    def add_tasks(self, call, updates):
        """The plan, and so the cut into tasks, may change with every round, and differs between nodes."""
        attempt = len(updates.rounds) if self.mistake('attempts_of_all') else updates.num_attempts
        layers = list(range(updates.pipeline.layers))
        cuts = [0] + [layer for layer in layers[1:] if self.rng.random() < 0.5] + [len(layers)]
        stages = [layers[first:end] for first, end in zip(cuts, cuts[1:])]
        previous = None
        for is_backward, stage in [(False, stage) for stage in stages] + [(True, stage) for stage in stages[::-1] if call.kind == ROUND]:
            previous = Task(call, updates, attempt, stage, is_backward, previous)
            self.tasks.append(previous)
            if call.kind == ROUND or not self.mistake('evaluations_not_counted'):
                for group in previous.groups:
                    updates.open[group, call.step] += 1
        updates.num_attempts += call.kind == ROUND

    def save(self, position):
        """The first node decides whether a checkpoint is due, and its name."""
        yield from self.wait('the last save', lambda: self.saver.save is None)
        name = None
        if self.number == 0 or self.mistake('saves_decided_alone'):
            name = self.job.storage.new_name() if self.rng.random() < 0.7 else None
        decided = yield from self.decide(name)
        name = name if self.mistake('saves_decided_alone') else decided
        if name is not None:
            self.saver.begin(name, position)
        if self.config.waits_for_save:
            yield from self.wait('this save', lambda: self.saver.save is None)

    def end(self):
        """Everything that was called is finished. Rounds without a step are exchanged, too: other nodes have sent their gradients."""
        drops = self.mistake('last_rounds_dropped')
        yield from self.wait('own rounds', lambda: self.committed == len(self.tasks))
        yield from self.wait('steps', lambda: all(u.has_ended(u.called) and (drops or u.are_all_added()) for u in self.updates))
        yield from self.wait('the last save', lambda: self.saver.save is None)
        if self.number != 0 and not self.mistake('signals_unread'):
            self.pass_on(LAST)
        if self.number == 0 and not self.mistake('no_last_decision'):
            self.pass_decision_on(LAST)
        yield from self.wait('the network', lambda: self.requests == 0 or drops)
        self.has_finished = True

    def signal(self):
        """TERM or INT arrives at this node."""
        if self.number == 0 or self.mistake('no_go'):
            self.stop_requested = True
        else:
            self.pass_on(SIGNAL)

    def pass_on(self, kind):
        """Every node sends one message towards the first, so that none is left in the network."""
        if not self.has_passed_on:
            self.has_passed_on = True
            self.send(parent_of(self.number), 'signal', lambda: kind)

    def receive_signal(self, kind):
        if kind == LAST:
            return
        if self.number == 0:
            self.stop_requested = True
        else:
            self.pass_on(SIGNAL)

    def set_result(self, key, result):
        if result != self.job.reference.results[key]:
            raise Violation('results differ')
        self.results[key] = result

    # Workers and commits

    def run_worker(self, worker):
        """Does every nth task, in order."""
        num_workers = self.job.workers[self.number]
        first = 0 if self.mistake('committed_repeated') else self.committed
        number = first + (worker - first) % num_workers
        while True:
            yield from self.wait('a task', lambda: number < len(self.tasks))
            yield from self.run_task(self.tasks[number])
            number += num_workers

    def run_task(self, task):
        updates = task.updates
        version = updates.pipeline.version(task.call.step)
        for group in task.groups:
            yield from self.wait(f'version {version} of group {group.number}', lambda: updates.published(group) >= version)
        yield from self.wait('an earlier task', lambda: task.previous is None or task.previous.is_done)
        expected = updates.versions[version]
        for moment in ('begins', 'ends'):
            for group in task.groups:
                if updates.copies[group][updates.copy_of(version)] != list(expected[group.number]):
                    raise Violation('wrong weights read')
            yield f'{moment} to read {task.call}'
        number = task.call.number
        if self.mistake('own_rounds_numbered'):
            number = task.attempt
        x = task.previous.output if task.previous else first_input(task.call.kind, updates.pipeline.number, number)
        for layer in reversed(task.layers) if task.is_backward else task.layers:
            weights = tuple(expected[group.number] for group in updates.pipeline.groups_of[layer])
            x = (backward if task.is_backward else forward)(x, weights)
            for group in updates.pipeline.groups_of[layer] if task.is_backward else ():
                yield from self.write_gradient(task, updates.buffers[group, layer], gradient_of(x, group))
        task.output = x
        task.is_done = True
        yield f'completes a task of {task.call}'

    def write_gradient(self, task, buffer, content):
        yield from self.wait('a gradient buffer', lambda: buffer.released >= task.attempt)
        buffer.begin_write()
        yield 'begins to write a gradient'
        buffer.content = content
        yield 'has written a gradient'

    def replace_worker(self):
        """The tasks that are not committed are done again, by all workers."""
        for task in self.tasks[self.committed:]:
            task.is_done = False
        return [Thread(self, f'node {self.number} {name}', steps) for name, steps in self.workers().items()]

    def run_commits(self):
        """Commits tasks in order."""
        while True:
            yield from self.wait('a task to commit', lambda: self.committed < len(self.tasks) and self.tasks[self.committed].is_done)
            task = self.tasks[self.committed]
            self.committed += 1
            call = task.call
            if call.kind == ROUND or not self.mistake('evaluations_not_counted'):
                for group in task.groups:
                    task.updates.open[group, call.step] -= 1
            if task.is_backward:
                task.updates.commit_gradients(call.number, task.layers)
            if task.is_last_forward:
                self.set_result(call, task.output)
                for other in self.others:
                    self.send(other, 'losses', lambda output=task.output: output)
            if self.committed == len(self.tasks) or self.tasks[self.committed].call != call:
                self.in_flight[call.pipeline] -= 1
            yield f'commits a task of {call}'

"""One job: some nodes, from a checkpoint until all of them have ended. Chooses who acts next and injects the faults."""
import itertools

from network import Wire
from node import Node
from process import Violation
from training import deal

FINISHED, STOPPED, FAILED = 'finished', 'stopped', 'failed'
ACTIONS = 1000000  # a job that takes more does not end


class Job:
    """Owns all nodes of one start of the program, and the wires between them."""

    def __init__(self, config, reference, storage, rng, num_nodes, trace):
        self.config = config
        self.reference = reference
        self.storage = storage
        self.rng = rng
        self.num_nodes = num_nodes
        self.trace = trace
        self.workers = [rng.randint(1, 3) for _ in range(num_nodes)]
        self.patterns = [deal(pipeline.rounds_per_step, self.workers) for pipeline in config.pipelines]
        self.position, self.versions, self.saved = storage.complete[0] if storage.complete else (0, [0 for _ in config.pipelines], None)
        self.nodes = [Node(self, number) for number in range(num_nodes)]
        self.wires = {(a.number, b.number): Wire(rng, a, b) for a in self.nodes for b in self.nodes if a is not b}
        self.threads = [thread for node in self.nodes for thread in node.start()]
        self.not_informed = []  # nodes that are to learn of a failure
        self.draw_turns()
        self.actions = 0

    def draw_turns(self):
        """Some threads and wires are much slower than others. In some runs sends end only when nothing else can happen."""
        wires = [(f'from node {sender} to node {receiver}', wire) for (sender, receiver), wire in self.wires.items()]
        ends = [(name, wire.end_send) for name, wire in wires]
        self.actors = [(t.name, t.act) for t in self.threads] + [(name, wire.act) for name, wire in wires]
        self.actors += [] if self.config.ends_late else ends
        self.late_actors = ends if self.config.ends_late else []
        speeds = [0.05 if self.config.saves_slowly and 'saver' in name else self.rng.choice((1, 4, 16)) for name, _ in self.actors]
        self.weights = list(itertools.accumulate(speeds))

    def play(self, end, replacements):
        """`end`: the kind of fault that ends the job, or None. `replacements`: of workers. The faults come at any action."""
        expected = 18 * len(self.config.calls) * self.num_nodes
        faults = [(self.rng.randrange(expected), self.replace_worker) for _ in range(replacements)]
        faults += [(self.rng.randrange(expected), getattr(self, end))] if end else []
        faults.sort(key=lambda fault: fault[0])
        idle = 0
        while idle <= 40 or self.act_or_inform():
            for actor in self.rng.choices(self.actors, cum_weights=self.weights, k=8):
                idle = 0 if self.act(actor) else idle + 1
            if faults and (self.actions >= faults[0][0] or self.nodes[0].saver.save and self.storage.has_one and self.rng.random() < 0.1):
                faults.pop(0)[1]()
            if self.not_informed and self.rng.random() < 0.08:
                self.inform()
            if self.actions > ACTIONS:
                raise Violation('livelock')
        return self.check_end()

    def act_or_inform(self):
        """After an idle time: does anything that can be done. Returns False if there is nothing."""
        late = self.rng.sample(self.late_actors, len(self.late_actors))
        return any(self.act(actor) for actor in self.rng.sample(self.actors, len(self.actors)) + late) or self.inform()

    def act(self, actor):
        name, function = actor
        text = function()
        if text:
            self.actions += 1
            self.note(name, text)
        return text

    def note(self, who, text):
        if self.trace:
            print(f'{self.actions:6} {who}: {text}')

    # Faults

    def replace_worker(self):
        node = self.rng.choice(self.nodes)
        if not node.is_lost and not node.failed and not node.has_finished:
            self.note(f'node {node.number}', 'workers are replaced')
            self.threads = [t for t in self.threads if t.node is not node or 'worker' not in t.name] + node.replace_worker()
            node.changes += 1
            self.draw_turns()

    def signal(self):
        for _ in range(self.rng.randint(1, 2)):
            node = self.rng.choice(self.nodes)
            self.note(f'node {node.number}', 'signal')
            node.signal()

    def loss(self):
        node = self.rng.choice(self.nodes)
        self.note(f'node {node.number}', 'is lost')
        node.is_lost = True
        self.storage.check(self.reference)
        self.spread(node)

    def error(self):
        """The program of a node fails; its coordinator tells the others."""
        node = self.rng.choice(self.nodes)
        self.note(f'node {node.number}', 'fails')
        node.fail()
        self.spread(node)

    def spread(self, node):
        others = [other for other in self.nodes if other is not node]
        if self.config.mistake == 'partners_informed':
            others = [other for other in others if any(self.wires[node.number, other.number].receives.values())]
        self.not_informed = others

    def inform(self):
        """One more node learns of the failure."""
        if not self.not_informed:
            return False
        node = self.not_informed.pop(self.rng.randrange(len(self.not_informed)))
        node.fail()
        self.note(f'node {node.number}', 'learns of a failure')
        return True

    # End

    def check_end(self):
        waiting = [thread for thread in self.threads if not thread.has_ended and not thread.node.is_lost]
        if waiting:
            for thread in waiting:
                self.note(thread.name, str(thread.state))
            raise Violation('deadlock')
        self.storage.check(self.reference)
        if any(node.is_lost or node.failed for node in self.nodes):
            return FAILED
        if len({node.position for node in self.nodes}) > 1:
            raise Violation('ends at different calls')
        if any(wire.moving or wire.left_over() for wire in self.wires.values()):
            raise Violation('messages left over')
        for updates in (updates for node in self.nodes for updates in node.updates):
            for group, copies in updates.copies.items():
                if copies[updates.copy_of(updates.called)] != list(updates.versions[updates.called][group.number]):
                    raise Violation('weights differ')
        return STOPPED if self.nodes[0].stopped else FINISHED

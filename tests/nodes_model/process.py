"""What the threads of a node have in common."""

TORN = 'torn'  # memory that is being written


class Violation(Exception):
    """A rule is broken."""


class End(Exception):
    """A wait of a thread whose node ends."""


class Waiting:
    """What a thread yields again and again while it waits. Otherwise it yields texts that say what it has done."""

    def __init__(self, what):
        self.what = what

    def __str__(self):
        return f'waits for {self.what}'


class Thread:
    """Does one thing each time that it acts, or nothing while it waits. `steps`: a generator. All that a thread waits for is part of its
    node, so it need not look again before something of its node has changed."""

    def __init__(self, node, name, steps):
        self.node = node
        self.name = name
        self.steps = steps
        self.state = None
        self.seen = -1  # the node's changes when it last acted
        self.has_ended = False

    def act(self):
        if self.has_ended or self.node.is_lost or self.seen == self.node.changes:
            return ''
        self.seen = self.node.changes
        before = self.state
        try:
            self.state = next(self.steps)
        except (End, StopIteration):
            self.has_ended = True
            self.node.changes += 1
            return 'ends'
        if self.state is before and isinstance(self.state, Waiting):
            return ''
        self.node.changes += 1
        return str(self.state)

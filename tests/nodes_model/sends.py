"""The long messages of one pipeline to one other node."""
import heapq

GRADIENTS, WEIGHTS = 'gradients', 'weights'


class SendQueue:
    """Few messages of each kind are on their way at a time: gradients in their order, weights of earlier versions and layers first. While
    there are gradients to send, one message of weights is. It is never none: the other node may need weights before it takes gradients."""

    def __init__(self, node, other):
        self.node = node
        self.other = other
        self.waiting = {GRADIENTS: [], WEIGHTS: []}
        self.on_way = {GRADIENTS: 0, WEIGHTS: 0}
        self.number = 0

    def add(self, kind, order, channel, message):
        done = message.done

        def end():
            self.on_way[kind] -= 1
            done()
            self.begin()

        message.done = end
        self.number += 1
        heapq.heappush(self.waiting[kind], (order, self.number, channel, message))
        self.node.requests += 1  # the node does not end before it is sent
        self.begin()

    def window(self, kind):
        window = self.node.config.window
        if kind == GRADIENTS:
            return window
        if self.node.mistake('one_window'):
            return window - self.on_way[GRADIENTS]
        has_gradients = self.waiting[GRADIENTS] or self.on_way[GRADIENTS]
        return window if not has_gradients else 0 if self.node.mistake('weights_last') else 1

    def begin(self):
        for kind in (GRADIENTS, WEIGHTS):
            while self.waiting[kind] and self.on_way[kind] < self.window(kind):
                _, _, channel, message = heapq.heappop(self.waiting[kind])
                self.on_way[kind] += 1
                self.node.job.wires[self.node.number, self.other].send(channel, message)

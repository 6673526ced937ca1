"""A task on a worker, and the operations of the device's streams."""
from collections import namedtuple

from training import value


class Task:
    """A slot on a worker, from its command to its completion."""

    def __init__(self, command):
        self.slot = command.slot
        self.epoch = command.epoch
        self.first_event = command.first_event
        self.weights = []  # halves uploaded so far, in the order of slot.parameters
        self.fetched = 0  # microbatches whose inputs are read, or enqueued to be read
        self.reads_left = []  # of each fetched microbatch
        self.inputs = []  # (kind -> value) of each fetched microbatch
        self.buffers = {}  # layer -> private copy, from the buffers that the round started with
        self.accumulated = dict.fromkeys(self.slot.layers, 0)
        self.losses = []
        self.computed = 0  # microbatches
        self.outputs_left = 0  # that have not landed
        self.gradients_left = 0

    def layer_weights(self, config):
        pairs = iter(zip(self.weights[0::2], self.weights[1::2]))
        return {layer: value('layer weights', *(next(pairs) for _ in config.parameters_of[layer]))
                for layer in self.slot.layers}


# Operations of the device's streams.
# Reads a block into `to[key]`, after an event of the process `maker`, if it is not None.
Read = namedtuple('Read', 'task microbatch block location to key maker event')
Write = namedtuple('Write', 'task block cell value')
Event = namedtuple('Event', 'epoch number')
GradientWrite = namedtuple('GradientWrite', 'task block half value')
End = namedtuple('End', 'task failed')  # writes the losses into the table, then the completion

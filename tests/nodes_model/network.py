"""The network, as MPI shows it: what one node sends to another arrives in order within a channel, and in any order between channels."""
from collections import defaultdict, deque


class Message:
    """A send. `read` returns what is in its buffer now. A small message is read at once; the buffer of a large one may be read until
    `is_sent`."""

    def __init__(self, read, done, is_small):
        self.read = read
        self.done = done
        self.is_small = is_small
        self.content = None
        self.has_landed = False
        self.is_sent = False

    def begin(self):
        if self.is_small:
            self.content = self.read()
            self.is_sent = True


class Wire:
    """The messages from one node to another. The nth send of a channel fills the nth receive; how long this takes is random."""

    def __init__(self, rng, sender, receiver):
        self.rng = rng
        self.sender = sender
        self.receiver = receiver
        self.sends = defaultdict(deque)  # by channel: without a receive
        self.receives = defaultdict(deque)  # by channel: what to do with the content of the next message
        self.moving = []  # (message, what to do with its content)

    def send(self, channel, message):
        message.begin()
        self.sends[channel].append(message)
        if message.is_small:
            self.sender.end_request(message.done)
        self.match(channel)

    def receive(self, channel, done):
        self.receives[channel].append(done)
        self.match(channel)

    def match(self, channel):
        while self.sends[channel] and self.receives[channel]:
            self.moving.append((self.sends[channel].popleft(), self.receives[channel].popleft()))

    def act(self):
        """A message lands."""
        waiting = [(message, done) for message, done in self.moving if not message.has_landed]
        if not waiting or self.receiver.is_lost:
            return ''
        message, done = self.rng.choice(waiting)
        if self.sender.is_lost and not message.is_small:
            return ''
        message.has_landed = True
        self.receiver.end_request(done, message.content if message.is_small else message.read())
        if message.is_small:
            self.moving.remove((message, done))
        return 'a message lands'

    def end_send(self):
        """The sender's library learns that a large message has landed."""
        landed = [(message, done) for message, done in self.moving if message.has_landed]
        if not landed or self.receiver.is_lost or self.sender.is_lost:
            return ''
        self.moving.remove(landed[0])
        landed[0][0].is_sent = True
        self.sender.end_request(landed[0][0].done)
        return 'a message is sent'

    def left_over(self):
        """Returns the channels with sends or receives that have found no partner."""
        return [channel for queues in (self.sends, self.receives) for channel, queue in queues.items() if queue]

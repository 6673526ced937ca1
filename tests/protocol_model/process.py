"""What coordinator, workers and launcher have in common."""


class Process:
    """A process with its actions."""

    def __init__(self, store, rng, counts):
        self.store = store
        self.config = store.config
        self.rng = rng
        self.counts = counts

    def mistake(self, name):
        return self.config.mistake == name

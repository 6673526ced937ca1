"""Checkpoints: each node writes its own ranges, and the first node completes the checkpoint."""
from process import TORN, Violation


class Storage:
    """The directory that all nodes share. It outlives the jobs."""

    def __init__(self, config):
        self.config = config
        self.parts = []  # by name of a checkpoint: (pipeline, group, chunk) -> contents
        self.complete = []  # (position in the program, version of each pipeline, parts); at most one
        self.has_one = False

    def new_name(self):
        self.parts.append({})
        return len(self.parts) - 1

    def check(self, reference):
        """At every moment, the last complete checkpoint must have all parts, whoever is lost then."""
        if self.has_one and not self.complete:
            raise Violation('no checkpoint')
        for _, versions, parts in self.complete:
            for pipeline, version in zip(self.config.pipelines, versions):
                for group in pipeline.groups:
                    for chunk in range(group.chunks):
                        contents = [reference.weights[pipeline.number][v][group.number][chunk]
                                    for v in range(version + 1 - pipeline.copies, version + 1)]
                        if parts.get((pipeline.number, group.number, chunk)) != contents:
                            raise Violation('wrong checkpoint')


class Save:
    """A checkpoint that one node is writing. `position`: the call with which a job begins that resumes from it. `versions`: by pipeline."""

    def __init__(self, name, position, versions, parts):
        self.name = name
        self.position = position
        self.versions = versions
        self.left = parts  # (pipeline, group) that are not written
        self.kept = {}  # contents that an update would have overwritten


class Saver:
    """`run()` is the thread of a node that writes checkpoints, while the training goes on."""

    def __init__(self, node):
        self.node = node
        self.storage = node.job.storage
        self.mistake = node.mistake
        self.save = None
        self.num_written = 0  # other nodes that have written their parts

    def begin(self, name, position):
        self.num_written = 0
        versions = [updates.called for updates in self.node.updates]
        self.save = Save(name, position, versions, [(u.pipeline.number, group) for u in self.node.updates for group in u.own])
        for other in self.node.others if self.node.number == 0 else ():
            self.node.receive(other, 'written', lambda _: self.count_written())

    def count_written(self):
        self.num_written += 1

    def contents(self, updates, group):
        """The masters, and with two copies the weights of the version before, with which the next rounds compute."""
        version = self.save.versions[updates.pipeline.number]
        copies = updates.copies[group]
        earlier = range(version + 1 - updates.pipeline.copies, version)
        return {c: [copies[updates.copy_of(v)][c] for v in earlier] + [updates.masters[group, c]] for c in updates.own[group]}

    def preserve(self, updates, r):
        """Called before a range changes: what is not written yet is kept for the save."""
        part = updates.pipeline.number, r.group
        if self.save is None or r.owner != self.node.number or part not in self.save.left or self.mistake('not_preserved'):
            return
        if r.have == self.save.versions[updates.pipeline.number] and part not in self.save.kept:
            self.save.kept[part] = self.contents(updates, r.group)

    def run(self):
        node = self.node
        while True:
            yield from node.wait('a save', lambda: self.save)
            if self.mistake('old_deleted_first') and node.number == 0:
                self.storage.complete.clear()
            while self.save.left:
                yield from self.write_part(*self.save.left[0])
            if node.number != 0:
                node.send(0, 'written', lambda: None)
            elif not self.mistake('index_early'):
                yield from node.wait('the parts of others', lambda: self.num_written == len(node.others))
            if node.number == 0:
                self.complete()
            self.save = None
            yield 'has saved'

    def write_part(self, number, group):
        updates = self.node.updates[number]
        version = self.save.versions[number]
        part = number, group
        yield from self.node.wait('an own range to save', lambda: part in self.save.kept or updates.applied(group) >= version)
        contents = self.save.kept.get(part) or self.contents(updates, group)
        parts = self.storage.parts[self.save.name]
        parts.update({(number, group.number, c): TORN for c in contents})
        self.save.kept[part] = contents
        yield 'begins to write a part'
        parts.update({(number, group.number, c): content for c, content in contents.items()})
        self.save.left.remove(part)
        yield 'has written a part'

    def complete(self):
        """Gives the checkpoint its name, which happens at once; then older ones are deleted."""
        self.storage.complete = [(self.save.position, self.save.versions, self.storage.parts[self.save.name])]
        self.storage.has_one = True
        self.storage.check(self.node.job.reference)

"""One training: jobs, one after the other, until its program has made all calls."""
import random
from collections import Counter

from checkpoints import Storage
from job import FINISHED, Job
from process import Violation
from training import Config, Reference

OK = 'ok'
GOOD_ENDS = (OK,)


def play(seed, index, mistake=None, trace=False):
    """Plays one training; returns its configuration, its outcome and its counts."""
    rng = random.Random(seed * 1000003 + index)
    config = Config(rng, mistake)
    counts = Counter()
    try:
        play_jobs(config, rng, counts, trace)
        outcome = OK
    except Violation as violation:
        outcome = str(violation)
    except (KeyError, AttributeError, IndexError, TypeError) as error:
        if mistake is None:
            raise
        outcome = f'dangling reference ({type(error).__name__})'
    return config, outcome, counts


def play_jobs(config, rng, counts, trace):
    """The number of nodes changes from job to job; each begins with the last complete checkpoint."""
    reference = Reference(config)
    storage = Storage(config)
    num_nodes = config.nodes
    for end, replacements in zip(config.ends, config.replacements):
        job = Job(config, reference, storage, rng, num_nodes, trace)
        counts['resumed'] += job.saved is not None
        outcome = job.play(end, replacements)
        counts[f'jobs {outcome}'] += 1
        counts['actions'] += job.actions
        if outcome == FINISHED:
            return
        num_nodes = rng.randint(1, config.most_nodes)
    raise Violation('does not finish')

"""Deliberate mistakes. A run with one of them must break a rule that the model checks."""
from collections import namedtuple

# Faults that only some runs have: a task that ends its workers, a launcher that is stopped for some time, replacements that find other
# files of the model.
TASK, LAUNCHER, FILES = 'task', 'launcher', 'files'

# `first`: the run of seed 7 that is tried first, for mistakes that few runs catch. `needs`: one of these faults.
Mistake = namedtuple('Mistake', 'description caught_by first needs', defaults=[0, None])
MISTAKES = {
    # Order between processes
    'one_working_copy': Mistake('asynchronous, but one working copy per layer', 'wrong version read'),
    'upload_unpublished': Mistake('upload without waiting for published', 'wrong version read'),
    'update_at_completion': Mistake('update when a backward is complete, not when committed', 'wrong version read', 112),
    'skip_without_rewrite': Mistake('a skipped step publishes an old working copy', 'loss differs'),
    'ignore_released': Mistake('gradient written without waiting for its release', 'loss differs'),
    'released_at_publish': Mistake('released after the update, though several rounds are added', 'deadlock'),
    'released_counts_rounds': Mistake('released counts rounds, not attempts', 'loss differs'),
    'free_at_completion': Mistake('inputs freed when a slot is complete, not when committed', 'freed block read', 67),
    'prefetch_out_of_order': Mistake('stage buffers not granted in slot order', 'deadlock', 73),
    'memory_waits_always': Mistake('a full arena waits although no earlier slot will free a block', 'deadlock'),
    'buffers_freed_early': Mistake("a step's first buffers freed before its last slot commits", 'freed block read'),
    'sums_kept': Mistake('a cancelled step leaves its sums', 'loss differs'),
    'complete_early': Mistake('a completion is sent before the gradients have landed', 'loss differs'),
    'losses_read_early': Mistake("a task's losses are read after its last event, not at its commit", 'loss differs'),
    'place_is_enough': Mistake("a block counts as written once the table has its place", 'loss differs'),
    # Epochs
    'wake_without_epoch': Mistake('a wait that wakes does not look at the epoch', 'unwritten block read'),
    'begin_without_acknowledgement': Mistake('an epoch begins before all survivors have stopped', 'stale command'),
    'no_drain': Mistake('a worker acknowledges with writes under way', 'foreign block written', 406),
    'no_wait_for_death': Mistake('a killed worker counts as gone while its writes still land', 'foreign block written', 78),
    'rings_kept': Mistake('rings keep the items of the last epoch', 'stale command'),
    'rings_reset_early': Mistake('rings are emptied while survivors still use them', 'stale completion', 22),
    'dispatch_kept': Mistake('slots behind the commit point are not dispatched again', 'deadlock'),
    'outstanding_kept': Mistake('tasks of the last epoch still count as sent', 'deadlock'),
    'events_without_epoch': Mistake('events are numbered from 1 again in each epoch, without the epoch', 'word went back'),
    'sources_without_epoch': Mistake('a reader waits for the event of a slot that was committed before', 'deadlock'),
    'opened_twice': Mistake('a task that is sent again counts twice as open', 'deadlock'),
    'allocator_kept': Mistake('a survivor keeps its allocator, with blocks that nobody will free', 'leaked cell'),
    'allocator_empty': Mistake('a replacement believes that its arena is empty', 'freed block read'),
    'frees_while_changing': Mistake('blocks freed during a change are sent and left out of the list', 'unknown block freed', 61),
    'late_frees_kept': Mistake('frees that did not fit into a ring are sent in the next epoch', 'unknown block freed', 24),
    'stays_stopped': Mistake('a worker that stopped for an epoch does not take commands again', 'deadlock'),
    'device_stays_stopped': Mistake("a worker's device that stopped for an epoch is not started again", 'deadlock'),
    'stays_failed': Mistake('a worker whose user function failed computes nothing in later epochs', 'deadlock'),
    'change_is_end': Mistake('a worker takes a change of the epoch for the end of the run', 'worker ended by itself'),
    'sources_changed_early': Mistake('sources are changed while survivors still read them', 'unwritten block read'),
    'no_signal_for_the_dead': Mistake("a survivor's stream waits for ever for a dead worker's word", 'deadlock', 126),
    'signal_for_the_living': Mistake("the words of living workers are published for them, too", 'word went back'),
    # Workers that leave and return
    'dealt_to_all': Mistake('slots are dealt to workers that have left, too', 'deadlock'),
    'left_awaited': Mistake('an epoch does not begin without a worker that has left', 'deadlock'),
    'memory_of_the_left': Mistake('the final blocks of a worker that has left are given back', 'loss differs'),
    'gone_for_good': Mistake('a worker that has left and returns is not let in', 'deadlock'),
    'added_unasked': Mistake('a worker returns before the epoch in which it died has ended', 'word went back', 974),
    # A task that ends its workers
    'set_aside_sent': Mistake('the task is sent again', 'livelock', needs=TASK),
    'set_aside_at_once': Mistake('the task is written before everything before it is committed', 'task without its inputs', needs=TASK),
    'set_aside_unpublished': Mistake('the task is written before its weights are published', 'task without its weights', needs=TASK),
    # The coordinator's death
    'no_barrier': Mistake('updates of a step begin before all its gradients are final', 'loss differs', 67),
    'no_undo': Mistake('a piece of an update that was half written is not restored', 'loss differs'),
    'no_roll_forward': Mistake('a step whose updates have begun is not finished', 'wrong version read'),
    'recovered_in_order': Mistake('the pass that was under way is not finished first', 'loss differs', 67),
    'recorded_late': Mistake('the record of a step counts only after something was changed', 'loss differs', 67),
    'applied_late': Mistake('a parameter counts as done only after the next pass has begun', 'wrong version read', 32),
    'buffers_not_recorded': Mistake('the record of a step lacks its buffers', 'loss differs'),
    'results_of_one_step': Mistake('records are kept of one step only, but the program is two behind', 'results lost'),
    # Launcher
    'message_lost': Mistake('a report of a death is dropped while the channel is full', 'deadlock', 385),
    'replaced_unasked': Mistake('a replacement starts before the epoch of the dead worker has ended', 'word went back'),
    'restarts_not_counted': Mistake('a program that always fails is started again for ever', 'livelock'),
    'hang_blames_the_next': Mistake('not the worker of the next slot to commit is taken for hanging', 'innocent killed'),
    'change_not_awaited': Mistake('during a change, the worker of the next slot is taken for hanging', 'innocent killed'),
    'waits_time_out': Mistake('a worker ends because its wait for a dead one takes too long', 'worker ended by itself'),
    'deaths_missed': Mistake('workers that ended while the launcher was stopped are not reported', 'deadlock', needs=LAUNCHER),
    'deaths_guessed': Mistake('while the launcher is stopped, the awaited worker is taken for dead', 'word went back', needs=LAUNCHER),
    'other_files_served': Mistake("a replacement serves with other files of the model", 'loss differs', needs=FILES),
}

"""Deliberate mistakes. A run with one of them must break a rule that the model checks."""
from collections import namedtuple

# `first`: the run of seed 7 that is tried first, for mistakes that few runs catch.
Mistake = namedtuple('Mistake', 'description caught_by first', defaults=[0])
MISTAKES = {
    # Rounds
    'own_rounds_numbered': Mistake("a round's random numbers follow from the number of own rounds", 'results differ'),
    'attempts_of_all': Mistake('a task waits for the release of the gradients of all earlier rounds, not only of own ones', 'deadlock'),
    'evaluations_not_counted': Mistake('a copy is overwritten while an evaluation reads it', 'wrong weights read'),
    'committed_repeated': Mistake('a replaced worker does committed tasks again', 'needed gradient overwritten'),
    # Gradients
    'receives_uncalled': Mistake('receives are posted for rounds that the program has not called', 'deadlock'),
    'shared_pool': Mistake('one pool of buffers for all senders: those that come first get them', 'deadlock'),
    'sent_in_layer_order': Mistake('the gradients of a task are sent in another order than they are received', 'weights differ'),
    'first_arrived_only': Mistake('only the part that has arrived first is looked at', 'deadlock'),
    'added_by_arrival': Mistake('parts are added as they arrive, not in the order of the rounds', 'weights differ'),
    'sum_begun_early': Mistake('the sum of a step begins before the step before is applied', 'weights differ'),
    'released_when_added': Mistake('a gradient buffer is released before its parts are sent', 'needed gradient overwritten'),
    'released_when_sent': Mistake('a gradient buffer is released before its own part is added', 'needed gradient overwritten'),
    # Weights
    'update_while_read': Mistake('an update writes when the sum is final, though tasks still read the copy', 'wrong weights read', 18),
    'receive_while_read': Mistake('weights are received while tasks still read the copy', 'wrong weights read'),
    'take_over_while_read': Mistake('a skipped step copies weights into a copy that tasks still read', 'wrong weights read', 2912),
    'update_while_sent': Mistake('an update writes into a copy that is still sent', 'weights overwritten while they are sent', 30),
    'take_over_while_sent': Mistake('a skipped step copies into a copy that is still sent', 'weights overwritten while they are sent', 800),
    'received_before_norm': Mistake('weights are received before it is known that the step is not skipped', 'deadlock'),
    'one_window': Mistake('gradients and weights share the number of messages that are on their way', 'deadlock', 74),
    'weights_last': Mistake('no weights are sent while there are gradients to send', 'deadlock', 74),
    'one_queue': Mistake('pipelines share the number of messages that are on their way', 'deadlock', 214),
    'one_channel': Mistake('all groups share a channel', 'wrong weights read'),
    'published_early': Mistake('a version is published when the first of its ranges is there', 'wrong weights read'),
    'skip_not_copied': Mistake('a skipped step does not copy the weights into the other copy', 'wrong weights read'),
    'one_version_loaded': Mistake('a checkpoint of an asynchronous run gives both copies the last weights', 'wrong weights read'),
    # Norms
    'squares_sent_early': Mistake('a node sends its squares before its sums are final', 'results differ'),
    'squares_by_arrival': Mistake('squares are added in the order in which they arrive', 'results differ'),
    'skipped_by_own': Mistake('a node decides from its own squares whether a step is skipped', 'weights differ'),
    'norm_awaited': Mistake('the thread that updates waits for the norm', 'deadlock', 79),
    # Ends
    'no_go': Mistake('each node ends at its own next call after a signal', 'deadlock'),
    'asks_for_own_rounds': Mistake('a node asks the first node before its own rounds only', 'deadlock'),
    'signals_unread': Mistake('a node ends without a last message to its parent', 'deadlock'),
    'no_last_decision': Mistake('the first node ends without a last decision', 'deadlock'),
    'last_rounds_dropped': Mistake('rounds whose step is not called are not received at the end', 'messages left over', 80),
    'partners_informed': Mistake('only nodes that wait for a message of the lost node learn of its loss', 'deadlock'),
    'waits_outlive_failure': Mistake("a program's wait does not end when another node is lost", 'deadlock'),
    'sends_outlive_failure': Mistake('a node that ends because of a loss waits for its sends', 'deadlock'),
    # Checkpoints
    'saves_decided_alone': Mistake('each node decides whether a checkpoint is due', 'deadlock'),
    'index_early': Mistake('the first node completes a checkpoint without waiting for the other nodes', 'wrong checkpoint'),
    'old_deleted_first': Mistake('the old checkpoint is deleted before the new one is complete', 'no checkpoint', 18),
    'not_preserved': Mistake('an update changes what is not saved yet', 'wrong checkpoint'),
}

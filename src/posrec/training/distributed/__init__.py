"""Training over several processes, each of which holds a part of the item table and computes a part of every batch.

    world   the processes, what they tell each other, and how they are joined
    rows    item tables of which each process holds some rows
    steps   a process's part of a batch, its loss by a softmax over the items of all processes, and its gradients
    ranking ranks by the items of all processes
    files   weights and checkpoints, in the same files as those of one process

Of torch's own, the collective operations are used. Not used: DTensor, whose tables can be looked up and scored, but
not smoothed over a graph of items, nor mixed with the session's own items; fully_shard, which gathers the whole table
in every step; and torch.distributed.checkpoint, whose files are not those of a run of one process.
"""

"""What each setting means, in Markdown; links are to pages of docs/.

By the name of the model and the setting, or by the setting alone. A setting that is not here is described by the
comment behind its field in the code.
"""

MEANINGS = {
    "training.protocol": ("how the number of epochs is chosen: [the three protocols](protocol.md#the-three-protocols)"),
    "training.epochs": "passes over the training samples; with `early-stop` and `refit` the largest number of them",
    "training.batch_size": "samples in a step",
    "training.learning_rate": "of Adam",
    "training.schedule": (
        "`steps`: the learning rate is multiplied by `decay` after every `decay_every` epochs; `cosine`: it falls"
        " along a cosine to 0 at the end of the last epoch"
    ),
    "training.decay": "of `schedule=steps`: the factor of the learning rate",
    "training.decay_every": "of `schedule=steps`: after how many epochs it is applied, each time",
    "training.warmup": "of `schedule=cosine`: the share of all steps over which the learning rate rises from 0",
    "training.recency": "a sample weighs exp(-`recency` * age) in the loss; the age of the oldest sample is 1",
    "training.l2": "added to the gradient: `l2` times the weights",
    "training.loss": (
        "`full` softmax, `chunked` (the same value in less memory), `sampled`, or a ranking loss: `bpr`, `top1`, "
        "`top1-max`, `bpr-max` ([formulas](models_sequence.md#what-they-share)). `auto` is `full` up to "
        "200,000 items, `chunked` up to 2 million, `sampled` past that"
    ),
    "training.negatives": "of a ranking loss: how many negatives are drawn for a batch",
    "training.sample_alpha": (
        "of a ranking loss: negatives are drawn with probability proportional to clicks ** `sample_alpha`"
    ),
    "training.in_batch": "of a ranking loss: whether the targets of the batch's other samples are negatives too",
    "training.score_l2": "of `bpr-max`: the weight of the negatives' squared scores",
    "training.precision": (
        "of products: `fp32`, `tf32`, `bf16`; `auto` is `tf32` on a GPU ([performance](performance.md#on-a-gpu)), "
        "and on a CPU `bf16` for the products of the softmax where it has AMX and there are 10,000 items, else `fp32`"
    ),
    "training.choose_by": "of `early-stop` and `refit`: the metric on validation by which the best epoch is chosen",
    "training.patience": "of `early-stop` and `refit`: after how many epochs without improvement training stops",
    "training.replay": (
        "of a [warm start](nightly.md): how many samples of the run's own sessions go with each new one in an epoch"
    ),
    "training.seed": "of initial weights, shuffling, dropout and drawn negatives",
    "posrec.layers": "layers of the Transformer",
    "posrec-plus.dropout": "in the Transformer",
    "posrec-plus.item_dropout": "dropout of the item vectors that the network reads",
    "posrec-plus.repeat_dropout": "dropout of what the repeat part reads",
    "posrec-plus.scale": "the factor of the cosine",
    "posrec-plus.repeat_width": "width of the repeat part",
    "itemknn.neighbours": "how many each item keeps",
    "itemknn.regularization": "added to every count; lowers the similarity of rare items",
    "itemknn.alpha": (
        "the exponent of the clicked item's count; 0.5 is the cosine, above 0.5 favours popular neighbours"
    ),
    "itemknn.all_items": "sum over all clicks of the session, not the last alone",
    "gru4rec.layers": "recurrent layers",
    "sasrec.layers": "layers of the Transformer",
    "vsknn.weighting": (
        "of the session's clicks by their position: `same`, `linear`, `div`, `quadratic`, `log`, `harmonic` "
        "([formulas](models.md#vsknn))"
    ),
    "vsknn.decay": "of a neighbour by the position of the latest shared item: the same choices",
    "vsknn.idf": "how much the scores of rare items are raised; 0: not at all",
    "coclick.smoothing": "lowers the scores of neighbours of rare items",
    "coclick.decay": "of the session's clicks, for each click after them",
    "coclick.repeat": "the score of the session's last item",
    "coclick.repeat_decay": "how the score of the session's own items falls for each click after them",
    "d": "width of item vectors",
    "encoding": (
        "the [positional encoding](encodings.md): a name of `posrec encodings`, or [your "
        "own](own_encoding.md) as `my_encoding.py:NAME`"
    ),
    "anchors": "whether every node also receives messages from the [anchors](terms.md#anchors)",
    "heads": "heads of attention",
    "dropout": "in the Transformer",
    "embedding_dropout": "dropout of the clicks' vectors",
    "k": "the number of neighbours",
    "sample_size": "neighbours are searched among this many of the newest sessions",
    "max_length": "how many of a session's latest clicks are read",
}

"""The settings that measure.py trains with: each library's own, and posrec's with those of a peer.

A library's own settings are what it documents for session logs: where it has none for a dataset,
those for the most similar one; where it has none at all, its defaults.
"""

from typing import Any

Settings = dict[str, Any]

# RecBole-GNN's table of results for Diginetica; what it does not name is a default of RecBole.
RECBOLE = {
    "epochs": 500,
    "train_batch_size": 4096,
    "eval_batch_size": 2000,
    "MAX_ITEM_LIST_LENGTH": 20,
}
# The guide to advanced training; what it does not name for SASRec is a default.
RECTOOLS = {"session_max_len": 50}
OWN: dict[tuple[str, str], Settings] = {
    ("recbole", "gru4rec"): RECBOLE | {"learning_rate": 0.01},
    ("recbole", "narm"): RECBOLE,
    ("recbole", "sasrec"): RECBOLE
    | {"hidden_dropout_prob": 0.2, "attn_dropout_prob": 0.2},
    ("recbole", "srgnn"): RECBOLE,
    # Of CORE's authors, who wrote it for RecBole: props/ of their repository.
    ("recbole", "core"): {
        "embedding_size": 100,
        "eval_batch_size": 2048,
        "stopping_step": 5,
        "topk": [10, 20],
        "valid_metric": "MRR@20",
    },
    ("rectools", "sasrec"): RECTOOLS,
    ("rectools", "bert4rec"): RECTOOLS,
    ("session_rec", "vsknn"): {
        "k": 500,
        "sample_size": 5000,
        "weighting": "quadratic",
        "weighting_score": "div",
        "idf_weighting": 5,
    },
    # `days` is the time from the first session to the last.
    ("session_rec", "stan"): {
        "k": 100,
        "sample_size": 5000,
        "lambda_spw": 2.45,
        "lambda_snh": 20,
        "lambda_inh": 9.8,
        "days": 145,
    },
}
# Where a library documents settings for one of the datasets in particular: paramfiles/ of GRU4Rec,
# and conf/save/rsc15 of session-rec.
OF_DATASET: dict[tuple[str, str, str], Settings] = {
    ("diginetica", "gru4rec", "gru4rec"): {
        "loss": "bpr-max",
        "elu_param": 1,
        "layers": [512],
        "batch_size": 128,
        "dropout_p_embed": 0.5,
        "dropout_p_hidden": 0.3,
        "learning_rate": 0.05,
        "momentum": 0.15,
        "sample_alpha": 0.3,
        "bpreg": 0.9,
    },
    ("yoochoose", "gru4rec", "gru4rec"): {
        "layers": [480],
        "batch_size": 48,
        "dropout_p_hidden": 0.2,
        "learning_rate": 0.07,
        "sample_alpha": 0.2,
        "logq": 1.0,
    },
    ("yoochoose", "session_rec", "vsknn"): {
        "k": 100,
        "sample_size": 1000,
        "weighting": "quadratic",
        "weighting_score": "quadratic",
    },
    ("yoochoose", "session_rec", "stan"): {
        "k": 1000,
        "sample_size": 10000,
        "lambda_spw": 0.5,
        "lambda_snh": 20,
        "lambda_inh": 0.5,
        "days": 3,
    },
    ("demo", "session_rec", "stan"): {"k": 500, "days": 25},
}
# posrec's baselines train for a fixed number of epochs by default; here they stop early, as the
# peers do. posrec-plus stops early by itself.
UNTIL_IT_STOPS = {"epochs": 100}
TRAINED = ("posrec", "gru4rec", "narm", "sasrec", "srgnn")
# Small batches and less patience, with which RecBole stops within minutes.
SMALL_BATCHES = RECBOLE | {"train_batch_size": 512, "stopping_step": 3}
# Settings in which a library is compared with posrec's model, where they are not its own.
COMPARED: dict[tuple[str, str], dict[str, Settings]] = {
    ("recbole", "narm"): {"small batches": SMALL_BATCHES},
    ("recbole", "gcsan"): {
        "small batches": SMALL_BATCHES
        | {
            "n_layers": 1,
            "n_heads": 1,
            "hidden_dropout_prob": 0.0,
            "attn_dropout_prob": 0.0,
            "reg_weight": 0.0,
            # The same graphs, by tensor operations (libraries/recbole_graphs.py).
            "quick_graphs": True,
        }
    },
    # of a training session, which may have clicks on the same item
    ("implicit", "itemknn"): {"each item once": {"once": True}},
}

# The same in the names of posrec's settings. A batch of RecTools and RePlay has 128 sessions, which
# are 400 to 495 samples.
EQUAL = {"learning_rate": 0.001, "decay": 1.0, "l2": 0.0}
# RecTools and RePlay have the second beta of SASRec's authors.
BETA2 = 0.98
AS_RECBOLE = EQUAL | {
    "epochs": 500,
    "patience": 10,
    "batch_size": 4096,
    "d": 64,
    "max_length": 20,
}
AS_RECBOLE_SMALL = AS_RECBOLE | {"batch_size": 512, "patience": 3}
AS_RECBOLE_GRU4REC = AS_RECBOLE | {
    "learning_rate": 0.01,
    "hidden": 128,
    "embedding_dropout": 0.3,
    "dropout": 0.0,
    "truncated": False,
    "spread": 0.05,
}
AS_RECBOLE_NARM = AS_RECBOLE_SMALL | {"hidden": 128, "softmax": False}
AS_RECBOLE_SASREC = AS_RECBOLE | {
    "layers": 2,
    "heads": 2,
    "dropout": 0.2,
    "spread": 0.02,
    "scaled": True,
}
AS_RECTOOLS = EQUAL | {
    "epochs": 100,
    "patience": 5,
    "choose_by": "ndcg@20",
    "batch_size": 512,
    "d": 256,
    "max_length": 50,
    "layers": 2,
    "heads": 4,
    "dropout": 0.2,
    "scaled": False,
    "spread": 0.0,
}
AS_REPLAY = EQUAL | {
    "epochs": 300,
    "patience": 10,
    "batch_size": 512,
    "d": 192,
    "max_length": 50,
    "layers": 2,
    "heads": 4,
    "dropout": 0.3,
    "scaled": True,
    "spread": 0.02,
}
AS_IMPLICIT = {
    "neighbours": 20,
    "regularization": 0.0,
    "alpha": 0.5,
    "all_items": True,
    "itself": True,
}
AS_REPLAY_VARIANT = AS_REPLAY | {"beta2": BETA2, "encoding": "lrpe"}
AS_PEER: dict[tuple[str, str], Settings] = {
    ("recbole", "gru4rec"): AS_RECBOLE_GRU4REC,
    # `model`: another one than posrec's, in variants/.
    ("recbole, with RecBole's weights", "gru4rec"): AS_RECBOLE_GRU4REC
    | {"model": "benchmarks.peers.variants.gru4rec_of_recbole:SPEC"},
    ("recbole", "narm"): AS_RECBOLE_NARM | {"spread": 0.08},
    ("recbole, with RecBole's weights", "narm"): AS_RECBOLE_NARM
    | {"model": "benchmarks.peers.variants.narm_of_recbole:SPEC"},
    ("recbole", "gcsan"): AS_RECBOLE_SMALL,
    ("recbole, with RecBole's layer and weights", "gcsan"): AS_RECBOLE_SMALL
    | {"model": "benchmarks.peers.variants.gcsan_of_recbole:SPEC"},
    ("recbole", "sasrec"): AS_RECBOLE_SASREC,
    ("recbole, with RecBole's layer", "sasrec"): AS_RECBOLE_SASREC
    | {
        "model": "benchmarks.peers.variants.sasrec_of_recbole:SPEC",
        "scaled": False,
    },
    ("recbole", "srgnn"): AS_RECBOLE,
    ("rectools", "sasrec"): AS_RECTOOLS | {"beta2": BETA2},
    ("rectools, with posrec's second beta", "sasrec"): AS_RECTOOLS,
    ("replay", "sasrec"): AS_REPLAY | {"beta2": BETA2},
    ("replay, with posrec's second beta", "sasrec"): AS_REPLAY,
    ("replay, with RePlay's layer and weights", "sasrec"): AS_REPLAY_VARIANT
    | {"model": "benchmarks.peers.variants.sasrec_of_replay:SPEC"},
    (
        "replay, with RePlay's layer and weights, on whole sessions",
        "sasrec",
    ): AS_REPLAY_VARIANT
    | {"model": "benchmarks.peers.variants.sasrec_of_replay:WHOLE_SESSIONS_SPEC"},
    ("implicit", "itemknn"): AS_IMPLICIT,
    ("implicit, with own items not lowered", "itemknn"): AS_IMPLICIT
    | {"model": "benchmarks.peers.variants.neighbours_with_own_items:ITEMKNN_SPEC"},
}
# A weight of 1 / i after i clicks is `div` in session-rec and `harmonic` in posrec, which has no
# 1 / i^2. posrec's `lambda2` is a share of all sessions.
VSKNN = {
    "k": 500,
    "sample_size": 5000,
    "weighting": "quadratic",
    "decay": "harmonic",
    "idf": 5.0,
}
STAN_OF_DEMO = {
    "k": 500,
    "sample_size": 5000,
    "lambda1": 1.02,
    "lambda2": 5 / 25,
    "lambda3": 2.05,
}
AS_PEER_OF_DATASET: dict[tuple[str, str, str], Settings] = {
    ("demo", "recbole, without scaled vectors", "sasrec"): AS_RECBOLE_SASREC
    | {"scaled": False},
    ("diginetica", "session_rec", "vsknn"): VSKNN,
    ("demo", "session_rec", "vsknn"): VSKNN,
    ("demo", "session_rec, with own items not lowered", "vsknn"): VSKNN
    | {"model": "benchmarks.peers.variants.neighbours_with_own_items:VSKNN_SPEC"},
    ("yoochoose", "session_rec, with session-rec's weights", "vsknn"): {
        "k": 100,
        "sample_size": 1000,
        "weighting": "quadratic",
        "decay": "harmonic",
        "idf": 0.0,
        "model": "benchmarks.peers.variants.neighbours_with_own_items:SQUARES_SPEC",
    },
    ("diginetica", "session_rec", "stan"): {
        "k": 100,
        "sample_size": 5000,
        "lambda1": 2.45,
        "lambda2": 20 / 145,
        "lambda3": 9.8,
    },
    ("yoochoose", "session_rec", "stan"): {
        "k": 1000,
        "sample_size": 10000,
        "lambda1": 0.5,
        "lambda2": 20 / 3,
        "lambda3": 0.5,
    },
    ("demo", "session_rec", "stan"): STAN_OF_DEMO,
    ("demo", "session_rec, with own items not lowered", "stan"): STAN_OF_DEMO
    | {"model": "benchmarks.peers.variants.neighbours_with_own_items:STAN_SPEC"},
}


def settings_of(dataset: str, peer: str, model: str) -> dict[str, Settings]:
    """What a model is trained with, by the name of the settings: a library's own; and in posrec
    those of each peer that has the same model."""
    settings: dict[str, Settings] = {}
    if model != "gcsan":  # only compared with the same settings
        own = OWN.get((peer, model), {})
        if peer == "posrec" and model in TRAINED:
            own = UNTIL_IT_STOPS
        settings["own"] = OF_DATASET.get((dataset, peer, model), own)
    settings |= COMPARED.get((peer, model), {})
    if peer == "posrec":
        of_dataset = {
            (other, name): values
            for (of, other, name), values in AS_PEER_OF_DATASET.items()
            if of == dataset
        }
        for (other, name), values in (AS_PEER | of_dataset).items():
            if name == model:
                settings[f"as {other}"] = values
    return settings

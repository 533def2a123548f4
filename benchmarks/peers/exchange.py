"""What the scripts of all peers share: the sessions, ranks of the test samples by a peer's scores,
times, the result.

benchmarks/peers.py starts each script as `python SCRIPT JOB.json`. Needs numpy alone, since the
environments of the peers have no posrec. Items are numbered 1..items, in the order in which posrec
numbers them."""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Items = npt.NDArray[np.int64]
PAST_EVERY_CUTOFF = 20
# sessions that are timed one by one, after those that are not
SINGLE_SESSIONS = 50
WARM_UP = 3
MOST_SECONDS = 30


class Job:
    """One training: the model, its settings, and the sessions of the three parts as lists of arrays
    of items."""

    def __init__(self, path: Path) -> None:
        job = json.loads(path.read_text(encoding="utf-8"))
        self.folder = path.resolve().parent
        self.data = job["data"]
        os.chdir(
            self.folder
        )  # peers write logs and checkpoints into the current folder
        self.model = job["model"]
        self.settings = job["settings"]
        self.epochs = job["epochs"]
        self.device = job["device"]
        self.threads = job["threads"]
        self.peer_folder = job[
            "peer_folder"
        ]  # the peer's code, where it is not a package
        with np.load(job["sessions"]) as arrays:
            self.items = int(arrays["items"])  # that are ranked: those of training
            self.vocabulary = int(
                arrays["vocabulary"]
            )  # with the items that only the test part has
            self.train, self.validation, self.test = (
                np.split(
                    arrays[f"{part}_items"].astype(np.int64),
                    arrays[f"{part}_offsets"][1:-1],
                )
                for part in ("train", "validation", "test")
            )
        self.began = 0.0
        self.until_best = 0.0
        self.epoch_began = 0.0
        self.epoch_seconds: list[float] = []

    def begin(self) -> None:
        """Training begins now."""
        self.began = time.perf_counter()

    def is_best(self) -> None:
        """The best validation so far, or for a model without validation the end of the training, is
        reached now."""
        self.until_best = time.perf_counter() - self.began

    def epochs_were(self, count: int) -> None:
        """Share the seconds of the training among so many epochs, where they are not timed one by
        one."""
        self.epoch_seconds = [self.until_best / count for _ in range(count)]

    def epoch_begins(self) -> None:
        self.epoch_began = time.perf_counter()

    def epoch_ends(self) -> None:
        self.epoch_seconds.append(time.perf_counter() - self.epoch_began)

    def timed(self, epoch: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose calls are epochs."""

        def timed_epoch(*arguments: Any, **named: Any) -> Any:
            self.epoch_begins()
            result = epoch(*arguments, **named)
            self.epoch_ends()
            return result

        return timed_epoch

    def finish(
        self,
        scores: Callable[[list[Items]], npt.NDArray[Any]],
        answer: Callable[[Items], object],
        epochs_by_default: int | None = None,
        rows: int = 256,
    ) -> None:
        """Rank the test samples, time single sessions, and write ranks.npy and result.json.

        Args:
            scores: prefixes of sessions -> scores [B, items]; column i is item i + 1.
            answer: one session -> its best items, by the peer's public interface; what it raises is recorded.
            epochs_by_default: how many epochs the peer trains at most, if it is not told otherwise.
            rows: how many samples are scored at a time.
        """
        samples = prefixes(self.test)
        began = time.perf_counter()
        ranks = ranks_of_samples(scores, samples, self.items, rows)
        ranking = time.perf_counter() - began
        np.save(self.folder / "ranks.npy", ranks)
        count = len(self.epoch_seconds)
        result = {
            "epochs": count,
            "epoch_seconds": round(statistics.median(self.epoch_seconds), 3)
            if count
            else None,
            "seconds_until_best": round(self.until_best, 2),
            "ended_by_cap": count == self.epochs
            and (epochs_by_default is None or count < epochs_by_default),
            "ranking_seconds": round(ranking, 2),
            "new_session": new_session(
                answer, scores, [prefix for prefix, _ in samples]
            ),
            "peak_gpu_gib": gpu_memory(),
            "peak_gib_of_children": memory_of_children(),
        }
        (self.folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


def read_job() -> Job:
    """The job that the command line names."""
    return Job(Path(sys.argv[1]))


def prefixes(sessions: Sequence[Items]) -> list[tuple[Items, int]]:
    """Every prefix of every session, with the item that follows.

    >>> prefixes([np.array([3, 1, 2])])
    [(array([3]), 1), (array([3, 1]), 2)]
    """
    return [
        (session[:end], int(session[end]))
        for session in sessions
        for end in range(1, len(session))
    ]


def ranks_of(scores: npt.NDArray[Any], targets: Items) -> Items:
    """scores [B, items], targets [B] -> ranks [B]: one more than the number of other items that
    score as much or more.

    Ties and scores that are not numbers count against the target. A target that is not ranked, or
    whose score is not finite, has a rank past all items and past every cutoff.

    >>> ranks_of(np.array([[0.5, 0.9, 0.5], [0.1, 0.2, np.nan]]), np.array([1, 2])).tolist()
    [3, 2]
    """
    items = scores.shape[1]
    of_target = np.take_along_axis(
        scores, np.clip(targets - 1, 0, items - 1)[:, None], axis=1
    )
    ranked = (targets >= 1) & (targets <= items) & np.isfinite(of_target[:, 0])
    return np.where(
        ranked, items - (scores < of_target).sum(1), max(items, PAST_EVERY_CUTOFF) + 1
    )


def ranks_of_samples(
    scores: Callable[[list[Items]], npt.NDArray[Any]],
    samples: Sequence[tuple[Items, int]],
    items: int,
    rows: int,
) -> Items:
    """The ranks of all samples, so many at a time."""
    ranks = []
    for start in range(0, len(samples), rows):
        sessions, targets = zip(*samples[start : start + rows], strict=True)
        of_all = scores(list(sessions))
        if of_all.shape != (len(sessions), items):
            raise ValueError(
                f"scores of shape {of_all.shape} in place of {(len(sessions), items)}"
            )
        ranks.append(ranks_of(of_all, np.array(targets)))
    return np.concatenate(ranks)


def dense(
    ids: npt.NDArray[Any], values: npt.NDArray[Any], items: int
) -> npt.NDArray[np.float64]:
    """Lists of items [B, k] (from 0; those below 0 are no items) with their scores -> scores [B,
    items]; an item that a list does not have scores minus infinity."""
    scores = np.full((len(ids), items), -np.inf)
    row, place = np.nonzero(ids >= 0)
    scores[row, ids[row, place]] = values[row, place]
    return scores


def new_session(
    answer: Callable[[Items], object],
    scores: Callable[[list[Items]], npt.NDArray[Any]],
    sessions: Sequence[Items],
) -> dict[str, Any]:
    """Milliseconds of the median session that was not in training. If the public interface raises
    an error, the error, and the milliseconds by hand: scores of all items, sorted."""
    some = sessions[:: max(1, len(sessions) // (SINGLE_SESSIONS + WARM_UP))]
    try:
        return {"ms": median_ms(answer, some)}
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return {
        "cannot": reason,
        "ms_by_hand": median_ms(
            lambda session: (-scores([session])[0]).argsort()[:20], some
        ),
    }


def median_ms(work: Callable[[Items], object], sessions: Sequence[Items]) -> float:
    """Milliseconds of the median session; the first ones are not counted, and slow peers answer
    fewer."""
    taken: list[float] = []
    for session in sessions:
        if len(taken) > WARM_UP and sum(taken) > 1000 * MOST_SECONDS:
            break
        began = time.perf_counter()
        work(session)
        taken.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(taken[WARM_UP:]), 3)


def gpu_memory() -> float | None:
    """The peak memory of tensors on the GPU, if this process used one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return round(torch.cuda.max_memory_allocated() / 2**30, 3)


def memory_of_children() -> float:
    """The peak memory of the processes that this one started and that still run."""
    children = (
        Path(f"/proc/self/task/{os.getpid()}/children")
        .read_text(encoding="utf-8")
        .split()
    )
    lines = [
        line
        for pid in children
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    ]
    return round(
        sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20,
        3,
    )  # kilobytes

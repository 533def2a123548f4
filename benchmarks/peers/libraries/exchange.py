"""What the scripts of all peers share: sessions, ranks of the test samples, times, the result.

measure.py starts each script with the file of a job. This one needs numpy alone, since the
environments of the peers have no posrec. Items are numbered 1..items, in the order in which posrec
numbers them.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Items = npt.NDArray[np.int64]
Scores = npt.NDArray[Any]
PAST_EVERY_CUTOFF = 20
SINGLE_SESSIONS = 50  # that are timed one by one
WARM_UP = 3  # sessions before them, which are not timed
MOST_SECONDS = 30


class TimeIsUp(Exception):
    """A training that may take no more time is left before its next epoch."""


class Job:
    """One training: the model, its settings, and the sessions of the three splits."""

    def __init__(self, path: Path) -> None:
        job = json.loads(path.read_text(encoding="utf-8"))
        self.folder = path.resolve().parent
        self.data = job["data"]
        os.chdir(self.folder)  # peers write logs and checkpoints into it
        self.model = job["model"]
        self.settings = job["settings"]
        self.most_minutes = job["minutes"]  # of a training; None: until it stops
        self.device = job["device"]
        self.threads = job["threads"]
        # The peer's code, if it is not a package.
        self.peer_folder = job["peer_folder"]
        with np.load(job["sessions"]) as arrays:
            # The items of training, which are ranked.
            self.items = int(arrays["items"])
            # With the items that only the test split has.
            self.vocabulary = int(arrays["vocabulary"])
            self.train = sessions_of(arrays, "train")
            self.validation = sessions_of(arrays, "validation")
            self.test = sessions_of(arrays, "test")
        self.began = 0.0
        self.until_best = 0.0
        self.best_epoch = 0
        self.ended_by_limit = False
        self.epoch_began = 0.0
        self.epoch_seconds: list[float] = []

    @contextmanager
    def training(self) -> Iterator[None]:
        """The training, from its beginning to where it stops or has to."""
        self.began = time.perf_counter()
        with suppress(TimeIsUp):
            yield
        if not self.until_best:
            self.is_best()

    def is_best(self) -> None:
        """The best validation so far is reached now; without one, the end of the training is."""
        self.until_best = time.perf_counter() - self.began
        self.best_epoch = len(self.epoch_seconds)

    def must_end(self) -> bool:
        """Whether the time of the training is up, so that no other epoch may begin."""
        taken = time.perf_counter() - self.began
        self.ended_by_limit = (
            self.most_minutes is not None and taken >= 60 * self.most_minutes
        )
        return self.ended_by_limit

    def epoch_begins(self) -> None:
        self.epoch_began = time.perf_counter()

    def epoch_ends(self) -> None:
        self.epoch_seconds.append(time.perf_counter() - self.epoch_began)

    def timed(self, epoch: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose calls are epochs; the first is always allowed."""

        def timed_epoch(*arguments: Any, **named: Any) -> Any:
            if self.epoch_seconds and self.must_end():
                raise TimeIsUp
            self.epoch_begins()
            result = epoch(*arguments, **named)
            self.epoch_ends()
            return result

        return timed_epoch

    def finish(
        self,
        scores: Callable[[list[Items]], Scores],
        answer: Callable[[Items], object],
        rows: int = 256,
    ) -> None:
        """Rank the test samples, time single sessions, and write ranks.npy and result.json.

        Args:
            scores: prefixes of sessions -> scores [B, items]; column i is item i + 1.
            answer: one session -> its best items, by the peer's public interface; an error is
                recorded.
            rows: how many samples are scored at a time.
        """
        samples = prefixes(self.test)
        began = time.perf_counter()
        ranks = ranks_of_samples(scores, samples, self.items, rows)
        ranking = time.perf_counter() - began
        np.save(self.folder / "ranks.npy", ranks)
        epochs = len(self.epoch_seconds)
        epoch_seconds = None
        if epochs:
            epoch_seconds = round(statistics.median(self.epoch_seconds), 3)
        sessions = [prefix for prefix, _ in samples]
        result = {
            "epochs": epochs,
            "best_epoch": self.best_epoch,
            "epoch_seconds": epoch_seconds,
            "seconds_until_best": round(self.until_best, 2),
            "ended_by_limit": self.ended_by_limit,
            "ranking_seconds": round(ranking, 2),
            "new_session": new_session(answer, scores, sessions),
            "peak_gpu_gib": gpu_memory(),
            "peak_gib_of_children": memory_of_children(),
        }
        (self.folder / "result.json").write_text(json.dumps(result), encoding="utf-8")


def read_job() -> Job:
    """The job that the command line names."""
    return Job(Path(sys.argv[1]))


def sessions_of(arrays: Mapping[str, npt.NDArray[Any]], split: str) -> list[Items]:
    items = arrays[f"{split}_items"].astype(np.int64)
    return np.split(items, arrays[f"{split}_offsets"][1:-1])


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


def ranks_of(scores: Scores, targets: Items) -> Items:
    """scores [B, items], targets [B] -> ranks [B]: 1 + the number of other items that score as
    much or more.

    Ties and scores that are not numbers count against the target. A target that is not ranked, or
    whose score is not finite, has a rank past all items and past every cutoff.

    >>> ranks_of(np.array([[0.5, 0.9, 0.5], [0.1, 0.2, np.nan]]), np.array([1, 2])).tolist()
    [3, 2]
    """
    items = scores.shape[1]
    columns = np.clip(targets - 1, 0, items - 1)[:, None]
    of_target = np.take_along_axis(scores, columns, axis=1)
    is_ranked = (targets >= 1) & (targets <= items) & np.isfinite(of_target[:, 0])
    unranked = max(items, PAST_EVERY_CUTOFF) + 1
    ranks: Items = np.where(is_ranked, items - (scores < of_target).sum(1), unranked)
    return ranks


def ranks_of_samples(
    scores: Callable[[list[Items]], Scores],
    samples: Sequence[tuple[Items, int]],
    items: int,
    rows: int,
) -> Items:
    """The ranks of all samples; `rows` samples are scored at a time."""
    ranks = []
    for start in range(0, len(samples), rows):
        sessions, targets = zip(*samples[start : start + rows], strict=True)
        batch = scores(list(sessions))
        expected = (len(sessions), items)
        if batch.shape != expected:
            raise ValueError(f"scores of shape {batch.shape} in place of {expected}")
        ranks.append(ranks_of(batch, np.array(targets)))
    return np.concatenate(ranks)


def dense(
    ids: npt.NDArray[Any], values: npt.NDArray[Any], items: int
) -> npt.NDArray[np.float64]:
    """Lists of items [B, k] with their scores -> scores [B, items].

    Items are numbered from 0, and numbers below 0 are padding. An item that is not in a list
    scores minus infinity.
    """
    scores = np.full((len(ids), items), -np.inf)
    row, column = np.nonzero(ids >= 0)
    scores[row, ids[row, column]] = values[row, column]
    return scores


def new_session(
    answer: Callable[[Items], object],
    scores: Callable[[list[Items]], Scores],
    sessions: Sequence[Items],
) -> dict[str, Any]:
    """Milliseconds of the median session that was not in training.

    If the public interface raises an error, the error, and the milliseconds by hand: scores of all
    items, sorted.
    """
    some = sessions[:: max(1, len(sessions) // (SINGLE_SESSIONS + WARM_UP))]
    try:
        return {"ms": median_ms(answer, some)}
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]

    def best_by_hand(session: Items) -> Items:
        order: Items = (-scores([session])[0]).argsort()
        return order[:20]

    return {"cannot": reason, "ms_by_hand": median_ms(best_by_hand, some)}


def median_ms(work: Callable[[Items], object], sessions: Sequence[Items]) -> float:
    """Milliseconds of the median session; slow peers answer fewer sessions."""
    times: list[float] = []
    for session in sessions:
        if len(times) > WARM_UP and sum(times) > 1000 * MOST_SECONDS:
            break
        began = time.perf_counter()
        work(session)
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times[WARM_UP:]), 3)


def gpu_memory() -> float | None:
    """The peak memory of tensors on the GPU, if this process used one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    peak: int = torch.cuda.max_memory_allocated()
    return round(peak / 2**30, 3)


def memory_of_children() -> float:
    """The peak memory of the processes that this one started and that still run."""
    kilobytes = 0
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    for pid in children.read_text(encoding="utf-8").split():
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        for line in status.splitlines():
            if line.startswith("VmHWM"):
                kilobytes += int(line.split()[1])
    return round(kilobytes / 2**20, 3)

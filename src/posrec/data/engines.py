"""Where the partitions of a log are kept, and who works on them: this process in memory, this process with files, or
Ray's workers with files that they share.

The plan is the same for all three (partitions.py): so is the result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.progress import Progress

if TYPE_CHECKING:
    from posrec.ray_cluster import Cluster

BYTES_PER_CLICK = 100  # at the peak, while the clicks of a partition are grouped and sorted
LEAST_PARTITIONS, MOST_PARTITIONS = 4, 2000
SHARE = 5  # a partition gets this part of the memory: beside it there are Python, the block being read, and the items


@dataclass(frozen=True)
class MemoryEngine:
    """One partition, in memory."""

    def run(self, function: Callable[[Any], Any], inputs: Sequence[Any], work: str) -> list[Any]:
        return [function(given) for given in inputs]


@dataclass(frozen=True)
class DiskEngine:
    """Partitions as files in `folder`, worked on one after the other."""

    folder: Path
    partitions: int
    clicks_at_once: int  # that may be in memory as a partition
    progress: Progress
    passes: "count[int]" = field(default_factory=count)

    def run(self, function: Callable[[Any], Any], inputs: Sequence[Any], work: str) -> list[Any]:
        """`function` of every input; `work` is the name of the progress bar."""
        results = []
        for number, given in enumerate(inputs):
            self.progress.update(work, number, len(inputs))
            results.append(function(given))
        self.progress.update(work, len(inputs), len(inputs))
        return results


@dataclass(frozen=True)
class RayEngine(DiskEngine):
    """Partitions as files in `folder`, which all machines share, worked on by the tasks of a Ray cluster."""

    cluster: "Cluster | None" = None

    def run(self, function: Callable[[Any], Any], inputs: Sequence[Any], work: str) -> list[Any]:
        assert self.cluster is not None
        numbered = list(enumerate(inputs))
        done = self.cluster.run(Numbered(function), numbered, work=work, progress=self.progress)
        results = {number: result for (number, _), result in done}
        return [results[number] for number, _ in numbered]


@dataclass(frozen=True)
class Numbered:
    """A function of inputs that carry their number, since tasks finish in any order."""

    function: Callable[[Any], Any]

    def __call__(self, given: tuple[int, Any]) -> Any:
        return self.function(given[1])


Engine = MemoryEngine | DiskEngine


def partitions_for(clicks: int, memory: int) -> int:
    """How many partitions a log of about `clicks` clicks needs, so that one of them can be worked on in `memory`."""
    needed = -(-clicks * BYTES_PER_CLICK * SHARE // memory)
    return max(LEAST_PARTITIONS, min(MOST_PARTITIONS, needed))

"""How the best items are searched for: the settings of `posrec serve --set` and `posrec export --index --set`.

They are in a file without torch, since the parent process of several server workers reads them and never loads torch.
"""

from dataclasses import dataclass

from posrec.errors import InputError

LARGE = 1_000_000  # items; up to this many exact search is quick enough


@dataclass(frozen=True)
class IndexSettings:
    index: str = "auto"  # exact, faiss, or auto: faiss for more than a million items
    recall: float = 0.99  # the share of the exact best 20 items that must be found
    lists: int = 0  # 0: four times the square root of the number of items
    probes: int = 0  # lists searched for a session; 0: the fewest that reach `recall`

    def __post_init__(self) -> None:
        if self.index not in ("auto", "exact", "faiss"):
            raise InputError(f"index={self.index} is not a kind of search; choose auto, exact or faiss")
        if not 0 < self.recall <= 1:
            raise InputError(f"recall={self.recall} must be above 0 and at most 1")
        if self.lists < 0 or self.probes < 0:
            raise InputError(f"lists={self.lists}, probes={self.probes}: both must be 0 or more")

    @property
    def name(self) -> str:
        """A part of the file name of an index with these settings."""
        return f"{self.recall:g}-{self.lists}-{self.probes}"

    def wants_faiss(self, items: int) -> bool:
        return self.index == "faiss" or (self.index == "auto" and items > LARGE)

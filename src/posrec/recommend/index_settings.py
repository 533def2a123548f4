"""How items of a very large catalogue are found: what `--set` sets for `posrec serve` and `posrec export --index`."""

from dataclasses import dataclass

from posrec.errors import InputError

PAST = 1_000_000  # items; up to there exact search is quick enough


@dataclass(frozen=True)
class IndexSettings:
    index: str = "auto"  # exact, faiss, or auto: faiss past a million items
    recall: float = 0.99  # of the exact best 20 items, how many must be found
    lists: int = 0  # 0: four times the square root of the number of items
    probes: int = 0  # lists looked through for a session; 0: the fewest that reach `recall`

    def __post_init__(self) -> None:
        if self.index not in ("auto", "exact", "faiss"):
            raise InputError(f"index={self.index} is not known; choose auto, exact or faiss")
        if not 0 < self.recall <= 1:
            raise InputError(f"recall={self.recall} must be above 0 and at most 1")
        if self.lists < 0 or self.probes < 0:
            raise InputError(f"lists={self.lists}, probes={self.probes}: neither can be negative")

    @property
    def name(self) -> str:
        """For the file of an index built so."""
        return f"{self.recall:g}-{self.lists}-{self.probes}"

    def wants_faiss(self, items: int) -> bool:
        return self.index == "faiss" or (self.index == "auto" and items > PAST)

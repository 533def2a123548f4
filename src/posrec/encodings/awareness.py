"""Forward- and backward-awareness, uniqueness and linearity of an encoding, decided by computation.

Definition 3.1 (forward): there are dimensions A such that P[a, A] of length p equals P[b, A] of
length q exactly when a = b. Definition 3.2 (backward) says the same of p - a and q - b. `counted`
is what is compared: the position counted from the first or from the last click.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posrec.encodings.schemes import (
    ENCODINGS,
    LEARNED,
    THEORY_ONLY,
    AnyScheme,
    make_encoding,
)

# A true fit leaves a residual under 1e-10, since the slow sinusoids are nearly dependent. The
# smallest residual of a scheme that is not linear is that of an odd d, whose last sine lacks its
# cosine: 1e-8 at d = 9. From d = 11 on the other slow dimensions replace it, and the scheme passes.
LINEAR_TOLERANCE = 1e-9
# Equal values of a dimension differ by at most this number of rounding units of its largest one:
# 1.4e-14 for a sinusoid in float64. A sine computed twice may differ by one unit; the slowest
# sinusoid, cos(pos / 10000), differs between positions 0 and 1 by 5e-9.
ROUNDING_UNITS = 64


@dataclass(frozen=True)
class PositionPair:
    """Two positions in sessions of some lengths, and their encodings in some dimensions."""

    positions: tuple[int, int]
    lengths: tuple[int, int]
    dimensions: tuple[int, ...]
    values: tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class EncodingTable:
    """A row for every (position, length) up to max_length, by length and then by position."""

    rows: Tensor  # [N, d] float64, each dimension divided by its largest value
    scale: Tensor  # [d]
    position: Tensor  # [N]
    length: Tensor  # [N]
    tolerance: float

    def pair(self, first: int, second: int, dimensions: Tensor) -> PositionPair:
        values = (self.rows[[first, second]] * self.scale)[:, dimensions].tolist()
        return PositionPair(
            positions=(int(self.position[first]), int(self.position[second])),
            lengths=(int(self.length[first]), int(self.length[second])),
            dimensions=tuple(dimensions.nonzero().flatten().tolist()),
            values=(tuple(values[0]), tuple(values[1])),
        )

    @property
    def backward(self) -> Tensor:
        """[N] the positions left until the last click."""
        return self.length - 1 - self.position

    def with_successor(self) -> Tensor:
        """The rows whose session has a next position, which is the next row."""
        return (self.position + 1 < self.length).nonzero().flatten()

    def sessions(self) -> list[Tensor]:
        """The row numbers of each length 1, 2, ..."""
        lengths = list(range(1, int(self.length[-1]) + 1))
        return list(torch.split(torch.arange(len(self.rows)), lengths))


@dataclass(frozen=True)
class Awareness:
    """Whether Definition 3.1 or 3.2 holds, and why."""

    holds: bool  # with one A for all lengths, as in the proof of Theorem 4.1
    # Read literally: A may change with the lengths. For the paper's schemes it is the same.
    holds_by_pair: bool
    # A*: every dimension that depends on `counted` alone; the certificate if it holds.
    dimensions: tuple[int, ...]
    # `counted` is the same and values differ: each dimension outside A* is in one of them.
    clashes: tuple[PositionPair, ...]
    # `counted` differs and the values on all of A* are the same.
    collision: PositionPair | None


@dataclass(frozen=True)
class Linearity:
    """Whether one matrix M moves the encoding one position on, in every session: P[pos+1] = M
    P[pos].

    If it is `trivial`, any values would have fitted: the rows are all equal, or no more than their
    rank."""

    holds: bool
    residual: float  # the largest error of the least-squares M, relative to the largest values
    trivial: bool


@dataclass(frozen=True)
class Analysis:
    """What `analyse` found for lengths 1 to max_length."""

    max_length: int
    d: int
    forward: Awareness
    backward: Awareness
    collision: (
        PositionPair | None
    )  # different (position, length) with the same encoding
    collision_within_length: PositionPair | None  # None if Property 3.3 holds
    linear: Linearity

    @property
    def unique(self) -> bool:
        return self.collision is None

    @property
    def unique_within_length(self) -> bool:
        return self.collision_within_length is None


def analyse(scheme: AnyScheme, max_length: int = 70, d: int = 100) -> Analysis:
    """Decide awareness, uniqueness and linearity of a scheme for every session up to max_length.

    Arguments:
        scheme: A name, or a function, module or module class of one's own, as in `make_encoding`.
            A learned scheme that is given by name is examined with a random table (seed 0).
        max_length: The longest session to examine, at least 2.
        d: The number of dimensions.

    Returns:
        An Analysis: the answers, with the positions and values that prove them.

    >>> found = analyse("dpe", max_length=20, d=8)
    >>> found.forward.dimensions, found.backward.dimensions, found.unique, found.linear.holds
    ((0, 1, 2, 3), (4, 5, 6, 7), True, True)
    """
    if max_length < 2:
        raise ValueError(
            f"max_length={max_length}: must be at least 2, since awareness compares lengths"
        )
    with one_thread():
        table = tabulate(build(scheme, max_length, d), max_length)
        return Analysis(
            max_length=max_length,
            d=d,
            forward=awareness(table, table.position),
            backward=awareness(table, table.backward),
            collision=collision(table, torch.arange(len(table.rows))),
            collision_within_length=collision_within_length(table),
            linear=linearity(table),
        )


# One largest A decides. Equality of slices is equality in each dimension, so A may only hold
# dimensions that depend on `counted` alone; call their set A*. Two slices that differ on A also
# differ on any larger set, so if some A satisfies the definition, A* does. When it fails, a clash
# for each dimension outside A* and a collision on A* together rule out every A.
def awareness(table: EncodingTable, counted: Tensor) -> Awareness:
    """Definition 3.1 for the positions from the first click, 3.2 for those from the last, [N]."""
    # Rows are compared with that of the shortest session with the same position.
    earliest = earliest_rows(counted)
    reference = earliest[counted]
    breaks = (table.rows - table.rows[reference]).abs() > table.tolerance  # [N, d]
    alone = ~breaks.any(0)
    same = collision(table, earliest, alone) if alone.any() else None
    holds = bool(alone.any()) and same is None
    return Awareness(
        holds=holds,
        holds_by_pair=holds or aware_by_pair(table, counted),
        dimensions=tuple(alone.nonzero().flatten().tolist()),
        clashes=tuple(clashes(table, breaks, reference)),
        collision=same,
    )


def earliest_rows(counted: Tensor) -> Tensor:
    """[positions] the first row of each position; lengths are in order."""
    rows = len(counted)
    earliest = torch.full((int(counted.max()) + 1,), rows)
    return earliest.scatter_reduce(0, counted, torch.arange(rows), "amin")


def clashes(
    table: EncodingTable, breaks: Tensor, reference: Tensor
) -> Iterator[PositionPair]:
    """A few pairs that show every broken dimension; the shortest sessions come first."""
    open_dimensions = breaks.any(0)
    while open_dimensions.any():
        row = int((breaks & open_dimensions).sum(1).argmax())
        yield table.pair(int(reference[row]), row, breaks[row])
        open_dimensions &= ~breaks[row]


def aware_by_pair(table: EncodingTable, counted: Tensor) -> bool:
    """The literal order of quantifiers: each two lengths have an A of their own."""
    sessions = [
        table.rows[session][counted[session].argsort()] for session in table.sessions()
    ]
    for longer in sessions:
        confused: dict[bytes, int] = {}
        for shorter in sessions[: len(longer)]:
            # On the dimensions they share, the shorter session's rows are the longer one's first
            # rows. So positions differ exactly when none of those equals another row of the longer.
            differences = (shorter - longer[: len(shorter)]).abs()
            shared = (differences <= table.tolerance).all(0)
            key = bytes(shared.tolist())
            if key not in confused:
                confused[key] = first_confused(longer[:, shared], table.tolerance)
            if confused[key] < len(shorter):
                return False
    return True


def first_confused(rows: Tensor, tolerance: float) -> int:
    """The first row that equals another, or the number of rows if all differ."""
    same = (torch.cdist(rows, rows, p=math.inf) <= tolerance).fill_diagonal_(False)
    return int(same.any(0).nonzero()[0]) if same.any() else len(rows)


def collision_within_length(table: EncodingTable) -> PositionPair | None:
    for session in table.sessions():
        pair = collision(table, session)
        if pair is not None:
            return pair
    return None


def collision(
    table: EncodingTable, among: Tensor, dimensions: Tensor | None = None
) -> PositionPair | None:
    """Two of the rows `among` that are equal in all `dimensions`, or None."""
    if dimensions is None:
        dimensions = torch.ones(table.rows.shape[1], dtype=torch.bool)
    rows = table.rows[among][:, dimensions]
    # Sorted by a weighted sum, equal rows are some k rows apart, and rows between them have sums at
    # least as close: try k = 1, 2, ... until no two rows at that distance are close.
    random = torch.Generator().manual_seed(0)
    weights = torch.rand(rows.shape[1], dtype=rows.dtype, generator=random)
    # Sums of equal rows differ by the tolerance times the sum of the weights, and by rounding.
    closeness = 2 * table.tolerance * float(weights.sum())
    ordered, order = (rows @ weights).sort(stable=True)
    for apart in range(1, len(among)):
        near = ((ordered[apart:] - ordered[:-apart]) <= closeness).nonzero().flatten()
        if not len(near):
            return None
        first = order[near]
        second = order[near + apart]
        equal = ((rows[first] - rows[second]).abs() <= table.tolerance).all(1)
        if equal.any():
            pairs = torch.stack([among[first[equal]], among[second[equal]]])
            pairs = pairs.sort(0).values  # [2, pairs]
            earlier, later = pairs[:, pairs[1].argmin()].tolist()
            return table.pair(earlier, later, dimensions)
    return None


def linearity(table: EncodingTable) -> Linearity:
    here = table.with_successor()
    before = table.rows[here]
    after = table.rows[here + 1]
    fit = torch.linalg.lstsq(before, after, driver="gelsd")
    residual = float((before @ fit.solution - after).abs().max())
    different = len(torch.unique((before / LINEAR_TOLERANCE).round(), dim=0))
    trivial = different <= max(1, int(fit.rank))
    return Linearity(residual <= LINEAR_TOLERANCE, residual, trivial)


def examined_names() -> tuple[str, ...]:
    """Every name that `analyse` accepts."""
    return (*ENCODINGS, *THEORY_ONLY)


def build(scheme: AnyScheme, max_length: int, d: int) -> nn.Module:
    """The scheme as a float64 module. A learned scheme asked for by name gets a random table."""
    if isinstance(scheme, str) and scheme in THEORY_ONLY:
        return THEORY_ONLY[scheme](d, max_length).double()
    module = make_encoding(scheme, d, max_length)
    if not isinstance(scheme, str):
        return copy.deepcopy(module).double().cpu().eval()
    module = module.double()
    if scheme in LEARNED:
        random = torch.Generator().manual_seed(0)
        nn.init.normal_(module.get_parameter("table"), generator=random)
    return module


@torch.no_grad()
def tabulate(scheme: nn.Module, max_length: int) -> EncodingTable:
    """Call the scheme as a model would, on one session of each length."""
    encoded = []
    positions = []
    lengths = []
    with double_precision():
        for length in range(1, max_length + 1):
            forward = torch.arange(length)[None]
            backward = length - 1 - forward
            encoded.append(scheme(forward, backward, torch.tensor([length]))[0])
            positions.append(forward[0])
            lengths.append(torch.full((length,), length))
    rows = torch.cat(encoded)
    if not torch.isfinite(rows).all():
        raise ValueError("the encoding gave a value that is not finite")
    tolerance = ROUNDING_UNITS * torch.finfo(rows.dtype).eps
    rows = rows.double()
    largest = rows.abs().amax(0)
    # A dimension of rounding noise alone must count as zero, not be scaled up.
    overall = float(largest.max()) or 1.0
    scale = torch.where(largest > tolerance * overall, largest, overall)
    position = torch.cat(positions)
    return EncodingTable(rows / scale, scale, position, torch.cat(lengths), tolerance)


@contextmanager
def double_precision() -> Iterator[None]:
    """Quotients of integers, such as positions, are in double precision, as the weights are."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Distributing many small operations over threads takes longer than it saves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

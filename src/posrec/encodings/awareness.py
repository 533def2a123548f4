"""Forward- and backward-awareness, uniqueness and linearity of a positional encoding, decided by computation.

Definition 3.1 (forward): there are dimensions A such that P[a, A] of length p equals P[b, A] of length q when a = b,
and differs from it when a != b. Definition 3.2 (backward) says the same of p - a and q - b. Call the thing compared, a
or p - a, the *place*.

**One largest A decides.** Equality of slices is equality in each dimension, so A may only hold dimensions that depend
on the place alone; call their set A*. Two slices that differ on A also differ on any larger set. So if some A satisfies
the definition, then A is inside A*, A* satisfies it too, and A* is not empty. It follows that the definition holds
exactly when A* is not empty and the encodings of different places differ on A*. `analyse` computes A*, which is the
certificate. When the definition fails, each dimension outside A* comes with a clash (the same place in two lengths,
two values), and a non-empty A* with a collision (two places, the same values on A*): together they rule out every A.

**Which comes first, the lengths or A?** As printed, the definition reads "for all p, q there is an A", so A might
change with the lengths. The paper's own use (proof of Theorem 4.1, and "the PE for pos is the same across these
sequences") has one A for all lengths, and only then can a model learn which dimensions to read. `holds` means one A for
all lengths; `holds_by_pair` is the literal reading. No scheme of the paper tells them apart; a scheme can be built that
does (three lengths, each two of which share a dimension that the third spoils).

**When are two numbers equal?** Modules are examined in float64. Values of one dimension are equal when they differ by
no more than 64 units of rounding of its largest: 1.4e-14 for a sinusoid. Computing the same sine twice may differ by
one unit. The slowest sinusoid, cos(pos / 10000), differs between positions 0 and 1 by 5e-9, which is far above that.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from posrec.encodings.schemes import ENCODINGS, LEARNED, THEORY_ONLY, Scheme, make_encoding

ROUNDING_UNITS = 64
# A true fit leaves under 1e-10, for the slow sinusoids are nearly dependent. The least failure is an odd d's sine that
# lacks its cosine: 1e-8 at d = 9, and from d = 11 on it passes, as the other slow dimensions make up the cosine.
LINEAR_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Pair:
    """Two (position, length) cells and their values in the dimensions that matter."""

    positions: tuple[int, int]
    lengths: tuple[int, int]
    dimensions: tuple[int, ...]
    values: tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Awareness:
    """Whether Definition 3.1 or 3.2 holds, and why.

    dimensions  A*: every dimension that depends on the place alone; the certificate when `holds`
    clashes     same place, different values: each dimension outside A* is in one of them
    collision   different places, same values on all of A*; None when there is none
    """

    holds: bool
    holds_by_pair: bool
    dimensions: tuple[int, ...]
    clashes: tuple[Pair, ...]
    collision: Pair | None


@dataclass(frozen=True)
class Linearity:
    """Whether one matrix M moves the encoding one position on, in every session: P[pos+1] = M P[pos].

    One step is enough: M applied k times moves k positions on, so the offsets 2, 3, ... need no check of their own.
    `residual` is the worst error of the least-squares M, relative to each dimension's largest value. `trivial`: the
    rows are all the same, or no more of them differ than their rank, so that any values would have fitted and `holds`
    says nothing: a table of 70 random rows and 100 columns is "linear".
    """

    holds: bool
    residual: float
    trivial: bool


@dataclass(frozen=True)
class Analysis:
    """What `analyse` found for lengths 1 to max_length.

    collision                two different (position, length) with the same encoding, or None: every pair is unique
    collision_within_length  two positions of one session with the same encoding, or None: Property 3.3 holds
    """

    max_length: int
    d: int
    forward: Awareness
    backward: Awareness
    collision: Pair | None
    collision_within_length: Pair | None
    linear: Linearity

    @property
    def unique(self) -> bool:
        return self.collision is None

    @property
    def unique_within_length(self) -> bool:
        return self.collision_within_length is None


@dataclass(frozen=True)
class Cells:
    """Every (position, length) up to max_length, one row each, in order of length and then of position."""

    rows: Tensor  # [N, d] float64, each dimension divided by its largest value
    scale: Tensor  # [d]
    position: Tensor  # [N]
    length: Tensor  # [N]
    tolerance: float

    def pair(self, first: int, second: int, dimensions: Tensor) -> Pair:
        values = [tuple((self.rows[row] * self.scale)[dimensions].tolist()) for row in (first, second)]
        return Pair(
            positions=(int(self.position[first]), int(self.position[second])),
            lengths=(int(self.length[first]), int(self.length[second])),
            dimensions=tuple(dimensions.nonzero().flatten().tolist()),
            values=(values[0], values[1]),
        )


def analyse(scheme: str | nn.Module | type[nn.Module] | Scheme, max_length: int = 70, d: int = 100) -> Analysis:
    """Decide awareness, uniqueness and linearity of a scheme over every position of every length up to max_length.

    The scheme is a name, or a user's own function, module or module class, as in `make_encoding`. A learned scheme
    asked for by name is examined on a random table (seed 0).

    >>> found = analyse("dpe", max_length=20, d=8)
    >>> found.forward.dimensions, found.backward.dimensions, found.unique, found.linear.holds
    ((0, 1, 2, 3), (4, 5, 6, 7), True, True)
    """
    if max_length < 2:
        raise ValueError(f"max_length={max_length}: awareness compares lengths, so give at least 2")
    with one_thread():
        cells = tabulate(build(scheme, max_length, d), max_length)
        every = torch.ones(d, dtype=torch.bool)
        within = (found for found in (collision(cells, rows, every) for rows in sessions(cells)) if found)
        everywhere = collision(cells, torch.arange(len(cells.rows)), every)
        return Analysis(
            max_length=max_length,
            d=d,
            forward=awareness(cells, cells.position),
            backward=awareness(cells, cells.length - 1 - cells.position),
            collision=everywhere,
            collision_within_length=None if everywhere is None else next(within, None),
            linear=linearity(cells),
        )


def build(scheme: str | nn.Module | type[nn.Module] | Scheme, max_length: int, d: int) -> nn.Module:
    if isinstance(scheme, str) and scheme in THEORY_ONLY:
        return THEORY_ONLY[scheme](d, max_length).double()
    if not isinstance(scheme, str):
        return copy.deepcopy(make_encoding(scheme, d, max_length)).double().cpu().eval()
    module = make_encoding(scheme, d, max_length).double()
    if scheme in LEARNED:
        nn.init.normal_(module.get_parameter("table"), generator=torch.Generator().manual_seed(0))
    return module


@torch.no_grad()
def tabulate(scheme: nn.Module, max_length: int) -> Cells:
    """Call the scheme as a model would, one whole session of each length."""
    encoded, positions, lengths = [], [], []
    for length in range(1, max_length + 1):
        forward = torch.arange(length).unsqueeze(0)
        encoded.append(scheme(forward, length - 1 - forward, torch.tensor([length]))[0])
        positions.append(forward[0])
        lengths.append(torch.full((length,), length))
    rows = torch.cat(encoded)
    if not torch.isfinite(rows).all():
        raise ValueError("the encoding gave a value that is not finite")
    tolerance = ROUNDING_UNITS * torch.finfo(rows.dtype).eps
    largest = rows.double().abs().amax(0)
    # A dimension that is nothing but the rounding noise of the others must count as zero, not be scaled up.
    overall = float(largest.max()) or 1.0
    scale = torch.where(largest > tolerance * overall, largest, overall)
    return Cells(rows.double() / scale, scale, torch.cat(positions), torch.cat(lengths), tolerance)


def sessions(cells: Cells) -> list[Tensor]:
    """The rows of each length: one tensor of row numbers for length 1, 2, ..."""
    # Length l begins after 1 + 2 + .. + (l-1) rows.
    starts = [(length, length * (length - 1) // 2) for length in range(1, int(cells.length[-1]) + 1)]
    return [torch.arange(start, start + length) for length, start in starts]


def awareness(cells: Cells, place: Tensor) -> Awareness:
    """Definition 3.1 for place = position, Definition 3.2 for place = positions left until the last click."""
    # The first row of each place is the one in the shortest session; all others of that place are compared with it.
    # Lengths come in order, so for either kind of place that session is the first to have it.
    earliest = torch.full((int(place.max()) + 1,), len(place)).scatter_reduce(
        0, place, torch.arange(len(place)), "amin"
    )
    breaks = (cells.rows - cells.rows[earliest[place]]).abs() > cells.tolerance  # [N, d]
    alone = ~breaks.any(0)
    same = collision(cells, earliest, alone) if alone.any() else None
    holds = bool(alone.any()) and same is None
    return Awareness(
        holds=holds,
        holds_by_pair=holds or aware_by_pair(cells, place),
        dimensions=tuple(alone.nonzero().flatten().tolist()),
        clashes=tuple(clashes(cells, breaks, earliest[place])),
        collision=same,
    )


def clashes(cells: Cells, breaks: Tensor, reference: Tensor) -> Iterator[Pair]:
    """As few pairs as a greedy choice finds that show every broken dimension broken; the shortest sessions first."""
    open_dimensions = breaks.any(0)
    while open_dimensions.any():
        row = int((breaks & open_dimensions).sum(1).argmax())
        yield cells.pair(int(reference[row]), row, breaks[row])
        open_dimensions &= ~breaks[row]


def aware_by_pair(cells: Cells, place: Tensor) -> bool:
    """The literal order of quantifiers: for each two lengths some A, which may be another A for other lengths."""
    by_place = [cells.rows[session][place[session].argsort()] for session in sessions(cells)]
    for longer in by_place:
        confused: dict[bytes, int] = {}
        for shorter in by_place[: len(longer)]:
            # On the dimensions they share, the shorter session's rows are the longer one's first rows. So the two are
            # told apart exactly when none of those equals another row of the longer session.
            shared = ((shorter - longer[: len(shorter)]).abs() <= cells.tolerance).all(0)
            key = bytes(shared.tolist())
            if key not in confused:
                confused[key] = first_confused(longer[:, shared], cells.tolerance)
            if confused[key] < len(shorter):
                return False
    return True


def first_confused(rows: Tensor, tolerance: float) -> int:
    """The first row that equals another, or their number when all differ."""
    sums, closeness = weighted_sums(rows, tolerance)
    if bool((sums.sort().values.diff() > closeness).all()):
        return len(rows)
    same = ((rows.unsqueeze(0) - rows.unsqueeze(1)).abs() <= tolerance).all(-1).fill_diagonal_(False)
    return int(same.any(0).nonzero()[0]) if same.any() else len(rows)


def collision(cells: Cells, among: Tensor, dimensions: Tensor) -> Pair | None:
    """Two of the rows `among` that are equal in all `dimensions`, or None, without comparing every two.

    Sort the rows by a weighted sum. Equal rows stand k places apart for some k, and then all between them are as close
    in the sum; so try k = 1, 2, ... until no two at that distance are close.
    """
    rows = cells.rows[among][:, dimensions]
    sums, closeness = weighted_sums(rows, cells.tolerance)
    ordered, order = sums.sort(stable=True)
    for apart in range(1, len(among)):
        near = ((ordered[apart:] - ordered[:-apart]) <= closeness).nonzero().flatten()
        if not len(near):
            return None
        first, second = order[near], order[near + apart]
        equal = ((rows[first] - rows[second]).abs() <= cells.tolerance).all(1)
        if equal.any():
            found = torch.stack([among[first[equal]], among[second[equal]]]).sort(0).values
            shortest = int(found[1].argmin())
            return cells.pair(int(found[0, shortest]), int(found[1, shortest]), dimensions)
    return None


def weighted_sums(rows: Tensor, tolerance: float) -> tuple[Tensor, float]:
    """One number for each row, and how close two must be if their rows are equal within the tolerance."""
    weights = torch.rand(rows.shape[1], dtype=rows.dtype, generator=torch.Generator().manual_seed(0))
    # Equal rows differ by the tolerance times the weights' sum at most. Twice that, as the sums are rounded too.
    return rows @ weights, 2 * tolerance * float(weights.sum())


def linearity(cells: Cells) -> Linearity:
    """Fit the one-step matrix by least squares over every neighbouring pair of positions."""
    here = (cells.position + 1 < cells.length).nonzero().flatten()  # its successor is the next row
    before, after = cells.rows[here], cells.rows[here + 1]
    fit = torch.linalg.lstsq(before, after, driver="gelsd")
    residual = float((before @ fit.solution - after).abs().max())
    different = len(torch.unique((before / LINEAR_TOLERANCE).round(), dim=0))
    return Linearity(residual <= LINEAR_TOLERANCE, residual, trivial=different <= max(1, int(fit.rank)))


def examined_names() -> tuple[str, ...]:
    """Every name `analyse` knows: those a model can use, and the theory's own."""
    return (*ENCODINGS, *THEORY_ONLY)


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)

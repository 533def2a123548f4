"""The paper's statements about encodings, checked by computation.

`PAPER` holds what the paper says about each scheme, `differences` compares it with what `analyse`
finds, and `statements` checks the numbered properties, theorems, corollaries and section 3.4.
"""

from dataclasses import dataclass, fields
from itertools import groupby

import torch

from posrec.encodings.awareness import (
    Analysis,
    Awareness,
    EncodingTable,
    PositionPair,
    analyse,
    build,
    earliest_rows,
    one_thread,
    tabulate,
)
from posrec.encodings.schemes import RPE


@dataclass(frozen=True)
class PaperClaim:
    """What the paper says about a scheme; None where it says nothing."""

    forward: bool | None = None
    backward: bool | None = None
    unique_within_length: bool | None = None
    unique: bool | None = None
    linear: bool | None = None
    source: str = "no claim"


PAPER: dict[str, PaperClaim] = {
    "none": PaperClaim(),
    "spe": PaperClaim(
        True, False, True, None, True, "Theorem 3.4, Property 3.3, section 3.4"
    ),
    "rspe": PaperClaim(
        False, True, True, None, True, "Corollary 3.6, Property 3.3, section 3.4"
    ),
    "dpe": PaperClaim(True, True, True, None, None, "Theorem 4.1, section 4.3.3"),
    "aspe": PaperClaim(False, False, True, True, False, "section 3.4, appendix A"),
    "2dspe": PaperClaim(False, False, True, True, None, "section 3.4"),
    "lpe": PaperClaim(True, False, True, None, None, "section 4.4.2, section 5.5"),
    "lrpe": PaperClaim(
        False, True, True, None, None, "section 5.3, with Corollary 3.6"
    ),
    "ldpe": PaperClaim(True, True, True, None, None, "section 4.2, section 4.3.3"),
    "alpe": PaperClaim(None, None, True, True, None, "section 5.3"),
    "2dlpe": PaperClaim(None, None, True, True, None, "section 5.3"),
    "rpe": PaperClaim(False, False, None, None, None, "Corollary 3.5"),
    "sum": PaperClaim(None, None, False, False, None, "section 3.4"),
}


def verdicts(found: Analysis) -> dict[str, bool]:
    return {
        "forward": found.forward.holds,
        "backward": found.backward.holds,
        "unique_within_length": found.unique_within_length,
        "unique": found.unique,
        "linear": found.linear.holds,
    }


def differences(found: Analysis, claim: PaperClaim) -> tuple[str, ...]:
    """The names of the claims that the analysis contradicts."""
    verdict = verdicts(found)
    claims = {
        field.name: getattr(claim, field.name)
        for field in fields(claim)
        if field.name in verdict
    }
    return tuple(
        name
        for name, said in claims.items()
        if said is not None and said != verdict[name]
    )


# The statements about single schemes: name, what it says, the schemes, and the columns of PAPER
# that it is about.
BOTH_ENDS = ("forward", "backward")
OF_SCHEMES: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "Theorem 3.4",
        "SPE is forward-aware and not backward-aware.",
        ("spe",),
        BOTH_ENDS,
    ),
    (
        "Corollary 3.6",
        "RSPE is backward-aware and not forward-aware.",
        ("rspe",),
        BOTH_ENDS,
    ),
    (
        "Section 3.4, ASPE unique",
        "ASPE is unique for each position.",
        ("aspe",),
        ("unique",),
    ),
    (
        "Section 3.4, ASPE aware",
        "ASPE is neither forward-aware nor backward-aware.",
        ("aspe",),
        BOTH_ENDS,
    ),
    (
        "Section 3.4, SPE linear",
        "SPE and RSPE have the linear-combination property.",
        ("spe", "rspe"),
        ("linear",),
    ),
    (
        "Section 3.4, ASPE linear",
        "ASPE breaks the linear-combination property.",
        ("aspe",),
        ("linear",),
    ),
    (
        "Section 3.4, 2DSPE unique",
        "2DSPE is unique for each pair of position and length.",
        ("2dspe",),
        ("unique",),
    ),
    (
        "Section 3.4, 2DSPE aware",
        "2DSPE is neither forward-aware nor backward-aware.",
        ("2dspe",),
        BOTH_ENDS,
    ),
    (
        "Theorem 4.1",
        "DPE is both forward-aware and backward-aware.",
        ("dpe",),
        BOTH_ENDS,
    ),
    (
        "Section 4.2, LDPE",
        "LDPE is both forward-aware and backward-aware.",
        ("ldpe",),
        BOTH_ENDS,
    ),
)


@dataclass(frozen=True)
class Statement:
    name: str
    says: str
    holds: bool
    evidence: str


@one_thread()
def statements(max_length: int = 70, d: int = 100) -> list[Statement]:
    """Every statement of sections 3 and 4.2, and whether it holds for lengths up to max_length."""
    found = {name: analyse(name, max_length, d) for name in PAPER}
    aware = {
        name: one
        for name, one in found.items()
        if one.forward.holds or one.backward.holds
    }
    tables = {
        name: tabulate(build(name, max_length, d), max_length)
        for name in (*aware, "sum")
    }
    forward = [
        shares_steps(tables[name], one.forward, False)
        for name, one in aware.items()
        if one.forward.holds
    ]
    backward = [
        shares_steps(tables[name], one.backward, True)
        for name, one in aware.items()
        if one.backward.holds
    ]
    relative = RPE(d=2, max_length=max_length).double()
    torch.nn.init.normal_(relative.table, generator=torch.Generator().manual_seed(0))
    checked = [
        Statement(
            "Property 3.1",
            "A forward-aware encoding moves between two positions in the same way in every session.",
            all(forward),
            f"P[b] - P[a] on A is the same in every length, for {len(forward)} forward-aware schemes",
        ),
        Statement(
            "Property 3.2",
            "A backward-aware encoding moves between two reverse positions in the same way in every session.",
            all(backward),
            f"P[b] - P[a] on B is the same in every length, for {len(backward)} backward-aware schemes",
        ),
        Statement(
            "Property 3.3",
            "An absolute encoding is unique for each position.",
            all(one.unique_within_length for one in aware.values()),
            "no two positions of a session share an encoding in: " + " ".join(aware),
        ),
        Statement(
            "Corollary 3.5",
            "RPE is neither forward-aware nor backward-aware.",
            bias_is_relative(relative, max_length),
            "the bias depends on j - i alone, and for each j it changes with i",
        ),
        Statement(
            "Section 3.4, sum",
            "The plain sum of SPE and RSPE is symmetric within a session, which breaks Property 3.3.",
            mirrored(tables["sum"]),
            "P[pos] = P[l-1-pos] for every position of every length",
        ),
    ]
    for name, says, schemes, columns in OF_SCHEMES:
        holds = not any(
            set(columns).intersection(differences(found[scheme], PAPER[scheme]))
            for scheme in schemes
        )
        evidence = [
            f"{scheme}: " + "; ".join(reason(found[scheme], one) for one in columns)
            for scheme in schemes
        ]
        checked.append(Statement(name, says, holds, "; ".join(evidence)))
    return sorted(
        checked, key=lambda one: one.name.split()[1]
    )  # in the order of their numbers


def reason(found: Analysis, column: str) -> str:
    """Why an analysis gives its answer to a claim."""
    if column == "linear":
        return f"the best matrix to move it on leaves a worst residual of {found.linear.residual:.1e}"
    if column in ("unique", "unique_within_length"):
        pair = found.collision if column == "unique" else found.collision_within_length
        return f"the same for {where(pair)}" if pair else "all are unique"
    awareness = found.forward if column == "forward" else found.backward
    if awareness.holds:
        return f"{column}-aware in dimensions {spans(awareness.dimensions)}"
    return f"not {column}-aware, compare {where(awareness.collision or awareness.clashes[0])}"


def where(pair: PositionPair) -> str:
    ends = [
        f"position {at} of length {length}"
        for at, length in zip(pair.positions, pair.lengths, strict=True)
    ]
    return " and ".join(ends)


def spans(dimensions: tuple[int, ...]) -> str:
    """
    >>> spans((0, 1, 2, 5)), spans((3,)), spans(())
    ('0-2, 5', '3', '-')
    """
    # Neighbours have the same difference between their value and their place.
    runs = [
        [at for _, at in run]
        for _, run in groupby(enumerate(dimensions), key=lambda pair: pair[1] - pair[0])
    ]
    return (
        ", ".join(
            f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs
        )
        or "-"
    )


def shares_steps(table: EncodingTable, awareness: Awareness, backward: bool) -> bool:
    """Properties 3.1 and 3.2 with f(P[a], a, b) = P[a] + step(a, b): the steps are the same in
    every length.

    Steps between neighbours are enough, since the others are their sums.
    """
    here = table.with_successor()
    steps = (table.rows[here + 1] - table.rows[here])[:, list(awareness.dimensions)]
    place = (table.backward if backward else table.position)[here]
    place = place - place.min()
    # A step is the difference of two rounded values, so its tolerance is twice theirs.
    return bool(
        (
            (steps - steps[earliest_rows(place)[place]]).abs() <= 2 * table.tolerance
        ).all()
    )


def mirrored(table: EncodingTable) -> bool:
    """Whether P[pos] = P[l-1-pos] everywhere."""
    mirror = torch.cat([session.flip(0) for session in table.sessions()])
    return bool(((table.rows - table.rows[mirror]).abs() <= table.tolerance).all())


@torch.no_grad()
def bias_is_relative(relative: RPE, max_length: int) -> bool:
    """Corollary 3.5: g(P_ij) depends on j - i alone, and for each j it changes with i."""
    shorter = None
    for length in range(2, max_length + 1):
        forward = torch.arange(length).unsqueeze(0)
        bias = relative.attention_bias(
            forward, length - 1 - forward, torch.tensor([length])
        )[0, 0]  # [L, L]
        along_diagonals = torch.equal(bias[1:, 1:], bias[:-1, :-1])
        in_every_session = shorter is None or torch.equal(bias[:-1, :-1], shorter)
        if not (along_diagonals and in_every_session) or bool(
            (bias == bias[0]).all(0).any()
        ):
            return False
        shorter = bias
    return True

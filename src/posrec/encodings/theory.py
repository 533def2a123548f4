"""The paper's statements about encodings, checked by computation.

`PAPER` is what the paper says about each scheme; `statements` checks the numbered properties,
theorems, corollaries and section 3.4.
"""

from dataclasses import dataclass
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


PAPER = {
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


def verdicts(analysis: Analysis) -> dict[str, bool]:
    return {
        "forward": analysis.forward.holds,
        "backward": analysis.backward.holds,
        "unique_within_length": analysis.unique_within_length,
        "unique": analysis.unique,
        "linear": analysis.linear.holds,
    }


def differences(analysis: Analysis, claim: PaperClaim) -> tuple[str, ...]:
    """The names of the claims that the analysis contradicts."""
    return tuple(
        name
        for name, verdict in verdicts(analysis).items()
        if getattr(claim, name) not in (None, verdict)
    )


@dataclass(frozen=True)
class About:
    """A statement about single schemes, and their fields of PaperClaim that it is about."""

    name: str
    says: str
    schemes: tuple[str, ...]
    claims: tuple[str, ...] = ("forward", "backward")


OF_SCHEMES = (
    About("Theorem 3.4", "SPE is forward-aware and not backward-aware.", ("spe",)),
    About("Corollary 3.6", "RSPE is backward-aware and not forward-aware.", ("rspe",)),
    About(
        "Section 3.4, ASPE unique",
        "ASPE is unique for each position.",
        ("aspe",),
        ("unique",),
    ),
    About(
        "Section 3.4, ASPE aware",
        "ASPE is neither forward-aware nor backward-aware.",
        ("aspe",),
    ),
    About(
        "Section 3.4, SPE linear",
        "SPE and RSPE have the linear-combination property.",
        ("spe", "rspe"),
        ("linear",),
    ),
    About(
        "Section 3.4, ASPE linear",
        "ASPE breaks the linear-combination property.",
        ("aspe",),
        ("linear",),
    ),
    About(
        "Section 3.4, 2DSPE unique",
        "2DSPE is unique for each pair of position and length.",
        ("2dspe",),
        ("unique",),
    ),
    About(
        "Section 3.4, 2DSPE aware",
        "2DSPE is neither forward-aware nor backward-aware.",
        ("2dspe",),
    ),
    About("Theorem 4.1", "DPE is both forward-aware and backward-aware.", ("dpe",)),
    About(
        "Section 4.2, LDPE", "LDPE is both forward-aware and backward-aware.", ("ldpe",)
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
    """Every statement of sections 3 and 4.2, checked for lengths up to max_length."""
    analyses = {name: analyse(name, max_length, d) for name in PAPER}
    checked = general_statements(analyses, max_length, d)
    for statement in OF_SCHEMES:
        holds = True
        evidence = []
        for scheme in statement.schemes:
            analysis = analyses[scheme]
            contradicted = differences(analysis, PAPER[scheme])
            holds = holds and not set(statement.claims).intersection(contradicted)
            reasons = [reason(analysis, claim) for claim in statement.claims]
            evidence.append(f"{scheme}: " + "; ".join(reasons))
        checked.append(
            Statement(statement.name, statement.says, holds, "; ".join(evidence))
        )
    # In the order of their numbers.
    return sorted(checked, key=lambda statement: statement.name.split()[1])


def general_statements(
    analyses: dict[str, Analysis], max_length: int, d: int
) -> list[Statement]:
    def table_of(name: str) -> EncodingTable:
        return tabulate(build(name, max_length, d), max_length)

    forward = []
    backward = []
    unique = {}
    for name, analysis in analyses.items():
        if analysis.forward.holds:
            forward.append(shares_steps(table_of(name), analysis.forward, False))
        if analysis.backward.holds:
            backward.append(shares_steps(table_of(name), analysis.backward, True))
        if analysis.forward.holds or analysis.backward.holds:
            unique[name] = analysis.unique_within_length
    relative = RPE(d=2, max_length=max_length).double()
    torch.nn.init.normal_(relative.table, generator=torch.Generator().manual_seed(0))
    same_steps = "is the same in every length, for"
    return [
        Statement(
            "Property 3.1",
            "A forward-aware encoding moves between two positions in the same way in every"
            " session.",
            all(forward),
            f"P[b] - P[a] on A {same_steps} {len(forward)} forward-aware schemes",
        ),
        Statement(
            "Property 3.2",
            "A backward-aware encoding moves between two reverse positions in the same way in every"
            " session.",
            all(backward),
            f"P[b] - P[a] on B {same_steps} {len(backward)} backward-aware schemes",
        ),
        Statement(
            "Property 3.3",
            "An absolute encoding is unique for each position.",
            all(unique.values()),
            "no two positions of a session share an encoding in: " + " ".join(unique),
        ),
        Statement(
            "Corollary 3.5",
            "RPE is neither forward-aware nor backward-aware.",
            bias_is_relative(relative, max_length),
            "the bias depends on j - i alone, and for each j it changes with i",
        ),
        Statement(
            "Section 3.4, sum",
            "The plain sum of SPE and RSPE is symmetric within a session, which breaks"
            " Property 3.3.",
            mirrored(table_of("sum")),
            "P[pos] = P[l-1-pos] for every position of every length",
        ),
    ]


def reason(analysis: Analysis, claim: str) -> str:
    """Why an analysis gives its answer to a claim."""
    if claim == "linear":
        residual = analysis.linear.residual
        return (
            f"the best matrix to move it on leaves a worst residual of {residual:.1e}"
        )
    if claim in ("unique", "unique_within_length"):
        pair = analysis.collision
        if claim == "unique_within_length":
            pair = analysis.collision_within_length
        return f"the same for {where(pair)}" if pair else "all are unique"
    awareness = analysis.forward if claim == "forward" else analysis.backward
    if awareness.holds:
        return f"{claim}-aware in dimensions {spans(awareness.dimensions)}"
    counterexample = awareness.collision or awareness.clashes[0]
    return f"not {claim}-aware, compare {where(counterexample)}"


def where(pair: PositionPair) -> str:
    ends = [
        f"position {position} of length {length}"
        for position, length in zip(pair.positions, pair.lengths, strict=True)
    ]
    return " and ".join(ends)


def spans(dimensions: tuple[int, ...]) -> str:
    """
    >>> spans((0, 1, 2, 5)), spans((3,)), spans(())
    ('0-2, 5', '3', '-')
    """
    texts = []
    # Within a run of neighbours, the difference between dimension and index is the same.
    for _, run in groupby(enumerate(dimensions), key=lambda pair: pair[1] - pair[0]):
        first, *rest = [dimension for _, dimension in run]
        texts.append(f"{first}-{rest[-1]}" if rest else str(first))
    return ", ".join(texts) or "-"


def shares_steps(table: EncodingTable, awareness: Awareness, backward: bool) -> bool:
    """Properties 3.1 and 3.2 with f(P[a], a, b) = P[a] + step(a, b): the steps are the same in
    every length. Steps between neighbours are enough, since the others are their sums."""
    here = table.with_successor()
    steps = (table.rows[here + 1] - table.rows[here])[:, list(awareness.dimensions)]
    position = (table.backward if backward else table.position)[here]
    position = position - position.min()
    changes = (steps - steps[earliest_rows(position)[position]]).abs()
    # A step is the difference of two rounded values, so its tolerance is twice theirs.
    return bool((changes <= 2 * table.tolerance).all())


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
        backward = length - 1 - forward
        bias = relative.attention_bias(forward, backward, torch.tensor([length]))[0, 0]
        if not torch.equal(bias[1:, 1:], bias[:-1, :-1]):  # along the diagonals
            return False
        if shorter is not None and not torch.equal(bias[:-1, :-1], shorter):
            return False
        if (bias == bias[0]).all(0).any():
            return False
        shorter = bias  # [L, L]
    return True

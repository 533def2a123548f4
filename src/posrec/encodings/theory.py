"""The paper's statements about encodings, checked by computation.

`PAPER` holds what the paper says about each scheme, `differences` compares it with what `analyse` finds, and
`statements` checks the numbered properties, theorems and corollaries and the claims of section 3.4. The paper numbers
its theorems and corollaries together with the definitions: the first theorem is 3.4, the second 4.1.
"""

from dataclasses import dataclass, fields

import torch

from posrec.encodings.awareness import (
    Analysis,
    Awareness,
    EncodingTable,
    PositionPair,
    analyse,
    build,
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
    "spe": PaperClaim(True, False, True, None, True, "Theorem 3.4, Property 3.3, section 3.4"),
    "rspe": PaperClaim(False, True, True, None, True, "Corollary 3.6, Property 3.3, section 3.4"),
    "dpe": PaperClaim(True, True, True, None, None, "Theorem 4.1, section 4.3.3"),
    "aspe": PaperClaim(False, False, True, True, False, "section 3.4, appendix A"),
    "2dspe": PaperClaim(False, False, True, True, None, "section 3.4"),
    "lpe": PaperClaim(True, False, True, None, None, "section 4.4.2, section 5.5"),
    "lrpe": PaperClaim(False, True, True, None, None, "section 5.3, with Corollary 3.6"),
    "ldpe": PaperClaim(True, True, True, None, None, "section 4.2, section 4.3.3"),
    "alpe": PaperClaim(None, None, True, True, None, "section 5.3"),
    "2dlpe": PaperClaim(None, None, True, True, None, "section 5.3"),
    "rpe": PaperClaim(False, False, None, None, None, "Corollary 3.5"),
    "sum": PaperClaim(None, None, False, False, None, "section 3.4"),
}


def verdicts(found: Analysis) -> dict[str, bool]:
    """The answers of an analysis, under the names of the claims."""
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
    claims = {field.name: getattr(claim, field.name) for field in fields(claim) if field.name in verdict}
    return tuple(name for name, said in claims.items() if said is not None and said != verdict[name])


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
    spe, rspe, dpe, aspe, two = (found[name] for name in ("spe", "rspe", "dpe", "aspe", "2dspe"))
    aware = {name: one for name, one in found.items() if one.forward.holds or one.backward.holds}
    tables = {name: tabulate(build(name, max_length, d), max_length) for name in aware}
    forward = [shares_steps(tables[name], one.forward, False) for name, one in aware.items() if one.forward.holds]
    backward = [shares_steps(tables[name], one.backward, True) for name, one in aware.items() if one.backward.holds]
    relative = RPE(d=2, max_length=max_length).double()
    torch.nn.init.normal_(relative.table, generator=torch.Generator().manual_seed(0))
    return [
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
            "Theorem 3.4",
            "SPE is forward-aware and not backward-aware.",
            spe.forward.holds and not spe.backward.holds,
            f"A has {len(spe.forward.dimensions)} dimensions; {first_clash(spe.backward)}",
        ),
        Statement(
            "Corollary 3.5",
            "RPE is neither forward-aware nor backward-aware.",
            bias_is_relative(relative, max_length),
            "the bias depends on j - i alone, and for each j it changes with i",
        ),
        Statement(
            "Corollary 3.6",
            "RSPE is backward-aware and not forward-aware.",
            rspe.backward.holds and not rspe.forward.holds,
            f"B has {len(rspe.backward.dimensions)} dimensions; {first_clash(rspe.forward)}",
        ),
        Statement(
            "Section 3.4, sum",
            "The plain sum of SPE and RSPE is symmetric within a session, which breaks Property 3.3.",
            mirrored(tabulate(build("sum", max_length, d), max_length)),
            "P[pos] = P[l-1-pos] for every position of every length",
        ),
        Statement(
            "Section 3.4, ASPE unique",
            "ASPE is unique for each position.",
            aspe.unique,
            "all (position, length) differ" if aspe.collision is None else f"not: {where(aspe.collision)}",
        ),
        Statement(
            "Section 3.4, ASPE aware",
            "ASPE is neither forward-aware nor backward-aware.",
            not aspe.forward.holds and not aspe.backward.holds,
            first_clash(aspe.forward),
        ),
        Statement(
            "Section 3.4, SPE linear",
            "SPE and RSPE have the linear-combination property.",
            spe.linear.holds and rspe.linear.holds,
            f"worst residual {max(spe.linear.residual, rspe.linear.residual):.1e}",
        ),
        Statement(
            "Section 3.4, ASPE linear",
            "ASPE breaks the linear-combination property.",
            not aspe.linear.holds,
            f"one matrix moves every position of every length on, worst residual {aspe.linear.residual:.1e}",
        ),
        Statement(
            "Section 3.4, 2DSPE unique",
            "2DSPE is unique for each pair of position and length.",
            two.unique,
            "all (position, length) differ" if two.collision is None else f"not: {where(two.collision)}",
        ),
        Statement(
            "Section 3.4, 2DSPE aware",
            "2DSPE is neither forward-aware nor backward-aware.",
            not two.forward.holds and not two.backward.holds,
            f"its first {len(two.forward.dimensions)} dimensions depend on the position alone and separate positions",
        ),
        Statement(
            "Theorem 4.1",
            "DPE is both forward-aware and backward-aware.",
            dpe.forward.holds and dpe.backward.holds,
            f"A has {len(dpe.forward.dimensions)} dimensions, B has {len(dpe.backward.dimensions)}",
        ),
        Statement(
            "Section 4.2, LDPE",
            "LDPE is both forward-aware and backward-aware.",
            found["ldpe"].forward.holds and found["ldpe"].backward.holds,
            "on a random table with a row for every position",
        ),
    ]


def first_clash(awareness: Awareness) -> str:
    clash = awareness.clashes[0]
    return f"{len(clash.dimensions)} dimensions differ between {where(clash)}"


def where(pair: PositionPair) -> str:
    ends = [f"position {at} of length {length}" for at, length in zip(pair.positions, pair.lengths, strict=True)]
    return " and ".join(ends)


def shares_steps(table: EncodingTable, awareness: Awareness, backward: bool) -> bool:
    """Properties 3.1 and 3.2 with f(P[a], a, b) = P[a] + step(a, b): the steps are the same in every length.

    Steps between neighbours are enough, since the others are their sums.
    """
    rows = table.rows[:, list(awareness.dimensions)]
    first: dict[int, torch.Tensor] = {}
    for session in table.sessions()[1:]:
        steps = rows[session].diff(dim=0)
        positions = range(len(steps))
        places = reversed(positions) if backward else positions
        for place, step in zip(places, steps, strict=True):
            # A step is the difference of two rounded values, so its tolerance is twice theirs.
            if bool(((step - first.setdefault(place, step)).abs() > 2 * table.tolerance).any()):
                return False
    return True


def mirrored(table: EncodingTable) -> bool:
    """Whether P[pos] = P[l-1-pos] everywhere: reversing each session changes nothing."""
    mirror = torch.cat([session.flip(0) for session in table.sessions()])
    return bool(((table.rows - table.rows[mirror]).abs() <= table.tolerance).all())


@torch.no_grad()
def bias_is_relative(relative: RPE, max_length: int) -> bool:
    """Corollary 3.5: g(P_ij) is the same for the same j - i in every session, and for each j it changes with i."""
    by_offset: dict[int, float] = {}
    for length in range(2, max_length + 1):
        forward = torch.arange(length).unsqueeze(0)
        bias = relative.attention_bias(forward, length - 1 - forward, torch.tensor([length]))[0, 0]  # [L, L]
        if bool((bias == bias[0]).all(0).any()):
            return False
        for offset in range(1 - length, length):
            values = bias.diagonal(offset)
            if bool((values != by_offset.setdefault(offset, float(values[0]))).any()):
                return False
    return True

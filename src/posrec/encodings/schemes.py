"""Every positional encoding of the paper: scheme(forward, backward, length) -> [B, L, d].

`forward`, `backward` [B, L]: the position from the first and from the last click, 0-based; `length`
[B]: the clicks of the session. On a session graph a repeated item has the forward position of its
earliest and the backward position of its latest click. Positions past the end of a learned table
share its last row; the negative backward positions of padding read row 0, which the caller masks.
Where d is split, the first half has d // 2 dimensions. Equation numbers are the paper's.
"""

import copy
import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

Scheme = Callable[[Tensor, Tensor, Tensor], Tensor]
AnyScheme = str | nn.Module | type[nn.Module] | Scheme


def sinusoid(
    position: Tensor, width: int, step: float, like: Tensor, cosine_first: bool = False
) -> Tensor:
    """Interleaved sin and cos of `position / 10000^(i * step)`: [...] -> [..., width].

    An odd width leaves out the last cosine. `cosine_first` exchanges dimensions 2i and 2i+1.
    """
    precise = torch.float64 if like.dtype == torch.float64 else torch.float32
    pair = torch.arange((width + 1) // 2, device=position.device, dtype=precise)
    # Divided as the paper writes it: a product with the reciprocal differs in the last digit.
    phase = position.unsqueeze(-1).to(precise) / torch.pow(10000.0, pair * step)
    waves = [phase.cos(), phase.sin()] if cosine_first else [phase.sin(), phase.cos()]
    return torch.stack(waves, dim=-1).flatten(-2)[..., :width].to(like.dtype)


def look_up(table: Tensor, position: Tensor) -> Tensor:
    """The row of each position, [...] -> [..., width]; past an end, the row at the end."""
    return functional.embedding(position.clamp(0, table.shape[0] - 1), table)


def learned_table(rows: int, d: int) -> nn.Parameter:
    """Uniform in +-1/sqrt(d), as the field initializes every weight of a session model."""
    bound = 1 / math.sqrt(d)
    return nn.Parameter(torch.empty(rows, d).uniform_(-bound, bound))


class Fixed(nn.Module):
    """Without weights: d, and an empty buffer that carries the dtype."""

    like: Tensor

    def __init__(self, d: int, max_length: int = 0) -> None:
        super().__init__()
        self.d = d
        self.register_buffer("like", torch.empty(0), persistent=False)

    def waves(self, position: Tensor, cosine_first: bool = False) -> Tensor:
        """All d dimensions, with the frequencies 1 / f(i), f(i) = 10000^(2i/d)."""
        return sinusoid(position, self.d, 2 / self.d, self.like, cosine_first)

    def halves(self, first: Tensor, second: Tensor, step: float) -> Tensor:
        """Waves of one position in the first half, of another in the second."""
        half = self.d // 2
        waves = [
            sinusoid(first, half, step, self.like),
            sinusoid(second, self.d - half, step, self.like),
        ]
        return torch.cat(waves, dim=-1)


class Learned(nn.Module):
    """With one `table` of max_length rows and d columns."""

    def __init__(self, d: int, max_length: int) -> None:
        super().__init__()
        self.d = d
        self.first_half = d // 2
        self.table = learned_table(max_length, d)


# P = 0: the base model of section 5.3.
class NoEncoding(Fixed):
    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        shape = (*forward.shape, self.d)
        return torch.zeros(shape, dtype=self.like.dtype, device=forward.device)


# Eq. (1): P[2i] = sin(pos / f(i)), P[2i+1] = cos(pos / f(i)), f(i) = 10000^(2i/d).
class SPE(Fixed):
    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return self.waves(forward)


# Eq. (4), with the left side's index read as pos: Eq. (1) of l-pos-1 in place of pos.
class RSPE(Fixed):
    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return self.waves(backward)


# Eq. (5): the first half is sin and cos of pos / f(i), the second of (l-pos-1) / f(i), i in {0, ..,
# d/4 - 1}. f(i) = 10000^(2i/d) as written, so a half covers the fast frequencies only;
# `over_half=True` spreads the whole range over each half: f(i) = 10000^(2i / (d/2)).
class DPE(Fixed):
    def __init__(self, d: int, max_length: int = 0, over_half: bool = False) -> None:
        super().__init__(d)
        self.step = 4 / d if over_half else 2 / d

    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return self.halves(forward, backward, self.step)


# Eq. (17): P[2i] = sin(pos / f(i)) + cos((l-pos-1) / f(i)), and P[2i+1] with sin and cos exchanged.
class ASPE(Fixed):
    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return self.waves(forward) + self.waves(backward, cosine_first=True)


# Eq. (24): the first half is sin and cos of pos / 10000^(4i/d), the second of l / 10000^(4i/d).
class TwoDimensionalSPE(Fixed):
    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return self.halves(forward, length[:, None].expand_as(forward), 4 / self.d)


# Section 3.4, for the theory only: the plain sum Eq. (1) + Eq. (4), symmetric within a session.
class SumOfSPEAndRSPE(Fixed):
    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return self.waves(forward) + self.waves(backward)


# Section 5.3 gives no equation; Eq. (1) with a learned table: P = Embed[pos].
class LPE(Learned):
    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return look_up(self.table, forward)


# Likewise Eq. (4): P = Embed[l-pos-1].
class LRPE(Learned):
    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return look_up(self.table, backward)


# Eq. (6): the first half is Embed[pos], the second Embed[l-pos-1]. One table of width d, each half
# with its own columns: "the same number of parameters" as LPE (section 5.3).
class LDPE(Learned):
    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        from_first = look_up(self.table[:, : self.first_half], forward)
        from_last = look_up(self.table[:, self.first_half :], backward)
        return torch.cat([from_first, from_last], dim=-1)


# Section 5.3, likewise Eq. (17): P = Embed[pos] + exchange(Embed[l-pos-1]), where exchange swaps
# columns 2i and 2i+1 (an odd d keeps its last). Without it the sum would be symmetric within a
# session.
class ALPE(Learned):
    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        even = self.d - self.d % 2
        pairs = self.table[:, :even].reshape(-1, even // 2, 2)  # [rows, d/2, 2]
        swapped = pairs.flip(-1).flatten(1)  # [rows, d]
        exchanged = torch.cat([swapped, self.table[:, even:]], dim=1)
        return look_up(self.table, forward) + look_up(exchanged, backward)


# Section 5.3, likewise Eq. (24): the first half is Embed[pos], the second Embed[l-1].
class TwoDimensionalLPE(Learned):
    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        of_position = look_up(self.table[:, : self.first_half], forward)
        of_length = look_up(self.table[:, self.first_half :], length - 1)[:, None]
        of_length = of_length.expand(-1, forward.size(1), -1)
        return torch.cat([of_position, of_length], dim=-1)


# Eq. (3): A = X_i W_qry W_key' X_j' + g(P_ij). Nothing is added to the item vectors; attention adds
# g(P_ij), one learned number for each head and each offset forward[j] - forward[i]. Offsets past an
# end of the table read that end.
class RPE(NoEncoding):
    def __init__(self, d: int, max_length: int, heads: int = 1) -> None:
        super().__init__(d)
        self.farthest = max_length - 1
        # Initially there is no preference.
        self.table = nn.Parameter(torch.zeros(2 * max_length - 1, heads))

    def attention_bias(
        self, forward: Tensor, backward: Tensor, length: Tensor
    ) -> Tensor:
        """[B, heads, L, L], to be added to the attention scores of queries i and keys j."""
        offset = forward[:, None, :] - forward[:, :, None]  # [B, L, L]
        return look_up(self.table, offset + self.farthest).permute(0, 3, 1, 2)


ENCODINGS: dict[str, type[nn.Module]] = {
    "none": NoEncoding,
    "spe": SPE,
    "rspe": RSPE,
    "dpe": DPE,
    "aspe": ASPE,
    "2dspe": TwoDimensionalSPE,
    "lpe": LPE,
    "lrpe": LRPE,
    "ldpe": LDPE,
    "alpe": ALPE,
    "2dlpe": TwoDimensionalLPE,
    "rpe": RPE,
}
# The schemes whose `table` is the encoding itself.
LEARNED = tuple(name for name in ENCODINGS if issubclass(ENCODINGS[name], Learned))
# Examined by the theory, not available to models.
THEORY_ONLY: dict[str, type[nn.Module]] = {"sum": SumOfSPEAndRSPE}


class OwnScheme(nn.Module):
    """A user's function or module, as a module of the model that contains it.

    The negative backward positions of padding become 0: 1 / (1 + backward) would be infinite, and
    its gradient not a number even where padding is masked."""

    def __init__(self, function: Scheme) -> None:
        super().__init__()
        self.function = function
        if hasattr(function, "attention_bias"):
            self.attention_bias = function.attention_bias

    def forward(self, forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
        return self.function(forward, backward.clamp(min=0), length)


class OwnEncoding(str):
    """The name of a user's own encoding, together with the encoding; in a config it is text.

    >>> last = OwnEncoding.of("FILE.py:last", lambda forward, backward, length: backward == 0)
    >>> last == "FILE.py:last", last.scheme is not None
    (True, True)
    """

    scheme: Any  # a function, a module or a module class

    @classmethod
    def of(cls, name: str, scheme: Any) -> Self:
        encoding = cls(name)
        encoding.scheme = scheme
        return encoding


def make_encoding(
    scheme: AnyScheme, d: int, max_length: int, heads: int = 1, **options: int
) -> nn.Module:
    """Make a positional encoding that is called as `encoding(forward, backward, length) -> [B, L,
    d]`.

    Arguments:
        scheme: A name of ENCODINGS, or a function, module or module class of one's own. A name or a
            class is built with (d, max_length) and `options`. A scheme of one's own is called once
            on a session of two clicks, so that a wrong shape is reported here.
        d: The number of dimensions, at least 2.
        max_length: The number of rows of a learned table, at least 1.
        heads: The heads of the attention that rpe biases.
        options: dpe: over_half.

    >>> make_encoding("ldpe", d=100, max_length=50).table.shape
    torch.Size([50, 100])
    """
    if d < 2:
        raise ValueError(f"d={d}: must be at least 2")
    if max_length < 1:
        raise ValueError(f"max_length={max_length}: must be at least 1")
    if isinstance(scheme, OwnEncoding):
        return make_own(scheme, d, max_length)
    if isinstance(scheme, str):
        if scheme not in ENCODINGS:
            names = " ".join(ENCODINGS)
            raise ValueError(
                f"encoding={scheme!r} is not known; choose one of: {names}, or your own"
            )
        if scheme == "rpe":
            return RPE(d, max_length, heads, **options)
        return ENCODINGS[scheme](d, max_length, **options)
    module = scheme(d, max_length, **options) if isinstance(scheme, type) else scheme
    if not isinstance(module, nn.Module):
        module = OwnScheme(module)
    require_floats(module, d)
    return module


@torch.no_grad()
def require_floats(encoding: nn.Module, d: int) -> None:
    """Raise a ValueError unless the encoding of a session of two clicks is floats [1, 2, d]."""
    positions = torch.tensor([[0, 1]], device=device_of(encoding))
    encoded = encoding(positions, positions.flip(1), positions[:, -1] + 1)
    if not isinstance(encoded, Tensor):
        seen = type(encoded).__name__
    elif encoded.shape != (1, 2, d) or not encoded.is_floating_point():
        seen = f"{encoded.dtype} {tuple(encoded.shape)}"
    else:
        return
    raise ValueError(
        f"the encoding gave {seen} for one session of 2 clicks; "
        f"it must give floats of (1, 2, {d})"
    )


def device_of(module: nn.Module) -> torch.device:
    for tensor in (*module.parameters(), *module.buffers()):
        return tensor.device
    return torch.device("cpu")


def make_own(encoding: OwnEncoding, d: int, max_length: int) -> nn.Module:
    """As `make_encoding`; a module is copied, so that every model starts with the same weights."""
    scheme = encoding.scheme
    if isinstance(scheme, nn.Module):
        scheme = copy.deepcopy(scheme)
    try:
        module = make_encoding(scheme, d, max_length)
    except ValueError as error:
        raise ValueError(f"encoding {encoding}: {error}") from None
    except Exception as error:  # the user's own code may raise anything
        raise ValueError(
            f"encoding {encoding} failed: {type(error).__name__}: {error}"
        ) from error
    return module if isinstance(module, OwnScheme) else OwnScheme(module)


def attention_bias(
    encoding: nn.Module, forward: Tensor, backward: Tensor, length: Tensor
) -> Tensor | None:
    """What an attention layer adds to its scores: [B, heads, L, L], or None."""
    bias: Scheme | None = getattr(encoding, "attention_bias", None)
    return None if bias is None else bias(forward, backward, length)

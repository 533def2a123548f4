"""What stands at the last click of each session."""

from torch import Tensor


def at_last_click(states: Tensor, lengths: Tensor) -> Tensor:
    """[B, L, d] -> [B, d]: of each session what stands at its last click."""
    last = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2])
    return states.gather(1, last)[:, 0]

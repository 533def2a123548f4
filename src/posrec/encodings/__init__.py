"""Positional encodings and the theory that examines them."""

from .awareness import Analysis, analyse
from .schemes import ENCODINGS, attention_bias, make_encoding

__all__ = ["ENCODINGS", "Analysis", "analyse", "attention_bias", "make_encoding"]

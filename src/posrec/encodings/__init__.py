"""Positional encodings and the theory that examines them."""

from posrec.encodings.awareness import Analysis, analyse
from posrec.encodings.schemes import ENCODINGS, attention_bias, make_encoding

__all__ = ["ENCODINGS", "Analysis", "analyse", "attention_bias", "make_encoding"]

"""Pickles of plain lists, tuples and ints, and of nothing else.

Loading a pickle runs whatever its author put in it, and a few bytes of it can ask for gigabytes. So every instruction
of a file is looked at before it is loaded: those that build lists, tuples and ints are allowed, their sizes are bounded
by that of the file, and no other is. The unpickler itself refuses every import, and therefore every call, too.
"""

import io
import pickle
import pickletools
import re
from functools import cache
from typing import Any

MANY = 4096  # instructions matched at a time, so that the regular expression keeps little state


class PlainUnpickler(pickle.Unpickler):
    """Refuses everything that is looked up by name, and therefore every call."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside itself")


def load_plain(data: bytes) -> Any:
    """The lists, tuples and ints of a pickle; raises UnpicklingError, or another error of pickle, for anything else."""
    check_instructions(data)
    content = PlainUnpickler(io.BytesIO(data)).load()
    check_sharing(content, len(data))
    return content


def check_instructions(data: bytes) -> None:
    allowed, at = instructions(len(data)), 0
    while found := allowed.match(data, at):
        at = found.end()
    if data[at : at + 1] == b".":  # the end
        return
    names = {one.code.encode("latin-1"): one.name for one in pickletools.opcodes}
    raise pickle.UnpicklingError(f"it has {names.get(data[at : at + 1], 'an unknown instruction')} at byte {at}")


@cache
def instructions(size: int) -> "re.Pattern[bytes]":
    """Matches up to MANY instructions that a pickle of `size` bytes may have.

    The index of `r`, at which the unpickler stores an object, is little-endian. It may not be much larger than the file
    is long, because the unpickler allocates memory for all indices below it.
    """
    highest, third = size >> 24, b"." if size >> 24 else b"[\\x00-\\x%02x]" % (size >> 16)
    digits = len(str(size))
    one = b"|".join([
        rb"(?:M..|K.|J.{4})+",  # ints of two, one and four bytes, the bulk of a file
        rb"[\]()eatl\x85\x86\x87\x94]",  # lists and tuples: empty, begun, extended, ended, stored
        b"r.." + third + b"[\\x00-\\x%02x]" % min(highest, 255),
        rb"q.|h.|j.{4}",  # store at, and fetch from, an index
        b"\\x8a(?:" + b"|".join(b"\\x%02x.{%d}" % (width, width) for width in range(9)) + b")",  # longer ints
        rb"\x80.|\x95.{8}",  # the protocol, and how many bytes come next
        rb"[IL]-?[0-9]{1,20}L?\n|g[0-9]{1,10}\n|p[0-9]{1,%d}\n" % digits,  # protocol 0 is text
    ])  # fmt: skip
    return re.compile(b"(?:" + one + b"){1,%d}" % MANY, re.DOTALL)


def check_sharing(content: Any, size: int) -> None:
    """Refuse sessions that, written out, would be longer than the file: it refers to the same list many times."""
    for part in (content, *content[:2]) if isinstance(content, tuple | list) else ():
        if isinstance(part, tuple | list) and sum(len(one) for one in part if isinstance(one, tuple | list)) > size:
            raise pickle.UnpicklingError("it repeats the same list too often")

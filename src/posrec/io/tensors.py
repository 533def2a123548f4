"""Tensors with a note beside them, as safetensors files: loading one never executes anything."""

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.errors import InputError
from posrec.io.files import create_file, give_name, os_error_in, read_bytes
from posrec.io.unfinished import scratch_folder

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS, STATE = "model.safetensors", "state.safetensors"  # of a run: its weights, and its latest checkpoint


def save_tensors(path: Path, tensors: "dict[str, Tensor]", about: dict[str, Any]) -> None:
    """Replace a safetensors file; `about` is kept beside the tensors as JSON."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # save_file puts a new file under the name that it is given, without our lock and with mode 0600 whatever the umask.
    # So it gets a name in a folder of its own, which is locked, and the mode of the file that was there before.
    with scratch_folder(path) as folder:
        unfinished = folder / path.name
        create_file(unfinished)
        mode = stat.S_IMODE(unfinished.stat().st_mode)
        try:
            save_file(plain, unfinished, metadata={"about": json.dumps(about)})
        except SafetensorError as error:
            raise os_error_in(error) or error from None
        unfinished.chmod(mode)
        give_name(unfinished, path)


def load_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """The tensors of a file and the note beside them."""
    return parse_tensors(read_bytes(path), path)


def parse_tensors(content: bytes, path: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """`content` is that of the file `path`, which an error names.

    The content is copied, not mapped: a mapped file that is overwritten changes the tensors, and one that is cut short
    ends the process with SIGBUS.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = dict(sorted(load(content).items()))  # the library's order differs from call to call
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return tensors, json.loads(header["__metadata__"]["about"])
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} can't be read ({error}); it is damaged or was not written by posrec") from None

"""Files and folders that are written whole or not at all: they get their name only when they are complete.

Everything is written under a hidden temporary name beside its final one, flushed to the disk, and renamed
(unfinished.py, files.py, folders.py, tensors.py). checksums.json binds the files of a run or a dataset together
(checksums.py). Locks between processes are in locks.py.
"""

from posrec.io.checksums import CHECKSUMS, FolderReader, changing, write_checksums
from posrec.io.continuation import CONTINUATION, Continuation
from posrec.io.files import (
    os_error_in,
    parse_array,
    parse_json,
    read_bytes,
    read_json,
    refuse_unwritable,
    replace_array,
    whole_file,
    write_array,
    write_json,
    write_text,
)
from posrec.io.folders import DATASET, RUN, refuse_existing, require_folder, whole_folder
from posrec.io.tensors import STATE, WEIGHTS, load_tensors, save_tensors
from posrec.io.unfinished import scratch_folder

__all__ = [
    "CHECKSUMS",
    "CONTINUATION",
    "DATASET",
    "RUN",
    "STATE",
    "WEIGHTS",
    "Continuation",
    "FolderReader",
    "changing",
    "load_tensors",
    "os_error_in",
    "parse_array",
    "parse_json",
    "read_bytes",
    "read_json",
    "refuse_existing",
    "refuse_unwritable",
    "replace_array",
    "require_folder",
    "save_tensors",
    "scratch_folder",
    "whole_file",
    "whole_folder",
    "write_array",
    "write_checksums",
    "write_json",
    "write_text",
]

"""Files and folders that are written whole or not at all: they get their name only when they are complete.

Everything is written under a hidden temporary name beside its final one, flushed to the disk, and renamed
(unfinished.py, files.py, folders.py). checksums.json binds the files of a run or a dataset together (folders.py).
"""

from posrec.io.files import (
    CONTINUATION,
    STATE,
    WEIGHTS,
    load_tensors,
    os_error_in,
    parse_json,
    read_bytes,
    read_json,
    refuse_unwritable,
    save_tensors,
    whole_file,
    write_array,
    write_json,
    write_text,
)
from posrec.io.folders import (
    CHECKSUMS,
    DATASET,
    RUN,
    FolderReader,
    changing,
    refuse_existing,
    require_folder,
    whole_folder,
    write_checksums,
)
from posrec.io.unfinished import scratch_folder

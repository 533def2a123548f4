"""Files and folders that are written whole or not at all: under a temporary name, then renamed."""

from posrec.io.files import (
    ATTRIBUTES,
    CONTINUATION,
    STATE,
    WEIGHTS,
    load_tensors,
    open_regular,
    os_error_in,
    read_bytes,
    read_json,
    save_tensors,
    to_json,
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

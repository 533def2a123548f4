"""The encodings stand on torch and the standard library alone, so that the theory can be read and run by itself."""

import ast
import sys
from pathlib import Path

import pytest

import posrec.encodings

FILES = sorted(Path(posrec.encodings.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_encodings_import_torch_alone(file: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add(node.module or "")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1, "an import from outside the folder"
    outside = {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert outside <= {"torch"}

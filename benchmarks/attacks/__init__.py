"""The attacks of faults.py. They start servers, stores and commands as the tests do."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for tests/

"""The version of posrec; pyproject.toml has the one copy of it."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("posrec")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

"""The version of the installed package; pyproject.toml has the one copy."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("posrec")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"

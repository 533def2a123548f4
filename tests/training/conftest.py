"""A small dataset with something to learn: item i is mostly followed by item i + 1."""

import pytest

from posrec.data.dataset import PreparedDataset
from tests.helpers import chain_shop


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return chain_shop(tmp_path_factory.mktemp("small"), seed=0)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """Another dataset of the same kind."""
    return chain_shop(tmp_path_factory.mktemp("other"), seed=9)

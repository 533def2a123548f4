"""Files are looked at often, so that no test waits for the next look."""

import pytest


@pytest.fixture
def frequent_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers in this process."""
    monkeypatch.setattr("posrec.server.content.reload.POLL", 0.02)

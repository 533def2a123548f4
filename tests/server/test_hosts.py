"""Which Host headers are answered: a web page whose name resolves to 127.0.0.1 must not read recommendations."""

from pathlib import Path

import pytest

from tests.server.raw import ask, head, recommend
from tests.server.server_process import Server, serving

pytest.importorskip("uvicorn")

LOCAL = ("localhost", "LOCALHOST:8000", "127.0.0.1", "127.0.0.1:1", "[::1]:8000", "localhost.")
STRANGE = (
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "",
    "[::1",
    "192.0.2.1",
)


def statuses(server: Server, hosts: tuple[str, ...]) -> set[int]:
    return {ask(server, recommend(host=host)).status for host in hosts}


def test_a_local_server_answers_for_local_names_alone(plain_server: Server) -> None:
    assert statuses(plain_server, LOCAL) == {200}
    for host in STRANGE:
        answer = ask(plain_server, recommend(host=host))
        assert (answer.status, "--allow-host" in answer.json()["error"]) == (400, True), host
        assert ask(plain_server, head("GET", "/", host=host)).status == 400


def test_http_1_1_needs_one_host(plain_server: Server) -> None:
    assert ask(plain_server, recommend(host=None)).status == 400
    assert ask(plain_server, recommend("Host: evil.example")).status == 400
    assert ask(plain_server, recommend("Host: localhost", host="evil.example")).status == 400
    assert ask(plain_server, head("GET", "/healthz", host=None, version="1.0")).status == 200


def test_a_server_for_other_machines_answers_for_every_name(trained: Path) -> None:
    """Behind a proxy or in a container it can't know the names that it is reached under."""
    with serving(trained, "--host", "0.0.0.0") as server:
        assert statuses(server, (*LOCAL, "shop.example", "10.1.2.3:8000")) == {200}


@pytest.mark.slow
def test_more_names_can_be_allowed(trained: Path) -> None:
    with serving(trained, "--allow-host", "Shop.example", "--allow-host", "10.1.2.3") as server:
        assert statuses(server, (*LOCAL, "shop.example", "shop.EXAMPLE:443", "10.1.2.3")) == {200}
        assert statuses(server, STRANGE) == {400}
    with serving(trained, "--allow-host", "*") as server:
        assert statuses(server, (*LOCAL, "evil.example")) == {200}
    with serving(trained, "--host", "0.0.0.0", "--allow-host", "shop.example") as server:
        assert statuses(server, (*LOCAL, "shop.example")) == {200}
        assert statuses(server, STRANGE) == {400}

"""The shipped nginx.conf, in a real nginx."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.nginx_process import nginx_before
from tests.server.raw import SESSION, ask, head, post
from tests.server.server_process import Server, until

pytestmark = pytest.mark.skipif(
    shutil.which("nginx") is None, reason="nginx is not installed"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nginx")


@pytest.fixture(scope="module")
def nginx(plain_server: Server, folder: Path) -> Iterator[Server]:
    with nginx_before(folder, [plain_server, plain_server]) as nginx:
        yield nginx


def test_requests_are_answered(nginx: Server) -> None:
    assert nginx.recommend("i3", k=2).status == 200
    assert nginx.get("/v1/similar/%69%33?k=2").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/metrics/",
        "/metrics%2F",
        "/metrics%2f",
        "/%6Detrics",
        "//metrics",
        "/./metrics",
        "/x/../metrics",
        "/x%2F..%2Fmetrics",
        "/metrics;a",
        "/metrics%3Fa",
        "/metrics%20",
        "/metrics?a",
        "http://localhost/metrics",
    ],
)
def test_metrics_are_closed_however_they_are_spelled(nginx: Server, path: str) -> None:
    assert ask(nginx, head("GET", path)).status in (400, 403, 404)


@pytest.mark.parametrize("path", ["/v1/feedback/", "/v1/feedback%2F", "/v1%2Ffeedback"])
def test_what_writes_is_not_reached_by_a_path_that_may_be_sent_twice(
    nginx: Server, path: str
) -> None:
    answer = ask(nginx, post(path, SESSION, "Content-Type: application/json"))
    assert answer.status == 404
    assert "no such page" in answer.error  # --feedback would be named by the operation


def test_the_log_has_no_ids(nginx: Server, folder: Path) -> None:
    for path in ("/v1/sessions/anna/click", "/v1/session/anna/click", "/anna"):
        ask(nginx, post(path, SESSION))
    assert nginx.recommend("i3").status == 200
    log = folder / "access.log"
    until(lambda: "/v1/sessions/..." in log.read_text())
    assert "POST /v1/recommend " in log.read_text()
    assert "anna" not in log.read_text()

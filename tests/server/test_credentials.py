"""The API key and the store's password: never empty by mistake, and nowhere that other users can read."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import command
from tests.server.server_process import Server, children, serving, until
from tests.server.store_process import PROGRAM

pytest.importorskip("uvicorn")
pytest.importorskip("redis")

KEY, PASSWORD = "open-sesame-4711", "pa55w0rd"
STORE = f"redis://shop:{PASSWORD}@127.0.0.1:1/0"


def refused(run: Path, *options: object, message: str) -> None:
    """`posrec serve` refuses these options."""
    done = command("serve", run, "--port", 0, *options)
    assert (done.code, message in done.err) == (2, True), done.err


@pytest.mark.parametrize("key", ["", " ", "a\nb", " a", "a\t"])
def test_an_empty_or_impossible_key_is_refused(trained: Path, tmp_path: Path, key: str) -> None:
    refused(trained, "--api-key", key, message="the key")
    (tmp_path / "key").write_text(key + "\n")
    refused(trained, "--api-key-file", tmp_path / "key", message="the key")


def test_an_empty_variable_is_refused(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would otherwise serve everything to everyone, as an unset one does."""
    monkeypatch.setenv("POSREC_API_KEY", "")
    refused(trained, message="POSREC_API_KEY is empty")


def test_a_key_file_that_can_not_be_used(trained: Path, tmp_path: Path) -> None:
    refused(trained, "--api-key-file", tmp_path / "nothing", message="can't be read")
    refused(trained, "--api-key-file", tmp_path, message="can't be read")
    (tmp_path / "key").write_bytes(b"\xff\xfe")
    refused(trained, "--api-key-file", tmp_path / "key", message="not a text file")
    (tmp_path / "key").write_text(KEY)
    refused(trained, "--api-key-file", tmp_path / "key", "--api-key", KEY, message="give the API key once")


def asks_for_the_key(server: Server) -> None:
    assert server.recommend("i3").status == 401
    assert server.ask("POST", "/v1/recommend", {"session": ["i3"]}, X_API_Key=KEY).status == 200


def test_a_key_in_a_file(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    with serving(trained, "--api-key-file", tmp_path / "key") as server:
        asks_for_the_key(server)


def test_a_key_in_a_variable(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSREC_API_KEY", KEY)
    with serving(trained) as server:
        asks_for_the_key(server)
    monkeypatch.delenv("POSREC_API_KEY")
    (tmp_path / "key").write_text(KEY)
    monkeypatch.setenv("POSREC_API_KEY_FILE", str(tmp_path / "key"))
    with serving(trained, "--workers", 2) as server:
        asks_for_the_key(server)


@pytest.mark.skipif(not Path("/proc/self/cmdline").is_file(), reason="there is no /proc here")
def test_secrets_are_not_in_the_process_list(trained: Path) -> None:
    with serving(trained, "--workers", 2, "--api-key", KEY, f"--session-store={STORE}", forked=False) as server:
        pids = [server.process.pid, *until(lambda: children(server))]
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes().decode() for pid in pids]
        assert len(lines) == 3
        for line in lines:
            assert "serve" in line
            assert KEY not in line
            assert PASSWORD not in line
        for worker in pids[1:]:
            inherited = Path(f"/proc/{worker}/environ").read_bytes().decode()
            assert KEY not in inherited
            assert PASSWORD not in inherited
        asks_for_the_key(server)
        assert server.ask("POST", "/v1/sessions/a/click", {"item": "i3"}, X_API_Key=KEY).status == 503
        assert PASSWORD not in str(server.log)
        assert KEY not in str(server.log)


@pytest.mark.parametrize("store", [
    f"nonsense://shop:{PASSWORD}@host/0", f"redis://shop:{PASSWORD}@host:port/0", f"redis://:{PASSWORD}/x@host:1",
])  # fmt: skip
def test_messages_do_not_show_the_password(trained: Path, store: str) -> None:
    done = command("serve", trained, "--port", 0, "--session-store", store)
    assert (done.code, "--session-store" in done.err) == (2, True)
    assert PASSWORD not in done.err


@pytest.mark.skipif(PROGRAM is None, reason="redis-server is not installed")
def test_the_store_in_a_variable(trained: Path, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSREC_SESSION_STORE", store.address())
    with serving(trained) as server:
        assert server.ask("POST", "/v1/sessions/variable/click", {"item": "i3"}).status == 200

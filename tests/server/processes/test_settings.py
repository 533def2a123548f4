"""The options of `posrec serve`: where the API key and the store's password are read from, and what
is refused."""

from pathlib import Path

import pytest

from tests.helpers import command
from tests.server.server_process import Server, serving

pytest.importorskip("granian")
pytest.importorskip("redis")

KEY = "open-sesame-4711"
PASSWORD = "pa55w0rd"


def refused(run: Path, *options: object, message: str) -> None:
    done = command("serve", run, *options)
    assert (done.code, message in " ".join(done.err.split())) == (2, True), done.err


@pytest.mark.parametrize("key", ["", " ", "a\nb", " a", "a\t"])
def test_an_empty_or_impossible_key_is_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("POSREC_API_KEY", key)
    refused(trained, message="the key")
    monkeypatch.delenv("POSREC_API_KEY")
    (tmp_path / "key").write_text(key + "\n")
    refused(trained, "--api-key-file", tmp_path / "key", message="the key")


def test_an_empty_variable_is_refused(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSREC_API_KEY_FILE", "")
    refused(trained, message="POSREC_API_KEY_FILE is empty")


def test_a_key_file_that_can_not_be_used(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(trained, "--api-key-file", tmp_path / "nothing", message="can't be read")
    (tmp_path / "key").write_bytes(b"\xff\xfe")
    refused(trained, "--api-key-file", tmp_path / "key", message="not a text file")
    (tmp_path / "key").write_text(KEY)
    monkeypatch.setenv("POSREC_API_KEY", KEY)
    refused(
        trained, "--api-key-file", tmp_path / "key", message="give the API key once"
    )


def test_a_key_file_in_a_variable(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    monkeypatch.setenv("POSREC_API_KEY_FILE", str(tmp_path / "key"))
    with serving(trained, "--workers", 2) as server:
        assert server.recommend("i3").status == 401
        assert (
            server.ask(
                "POST", "/v1/recommend", {"session": ["i3"]}, X_API_Key=KEY
            ).status
            == 200
        )


@pytest.mark.parametrize(
    "store",
    [
        f"nonsense://shop:{PASSWORD}@host/0",
        f"redis://shop:{PASSWORD}@host:port/0",
        f"redis://:{PASSWORD}/x@host:1",
        "nonsense",
    ],
)
def test_messages_do_not_show_the_password(trained: Path, store: str) -> None:
    done = command("serve", trained, "--port", 0, "--session-store", store)
    assert (done.code, "--session-store" in done.err) == (2, True)
    assert PASSWORD not in done.err


def test_other_wrong_options(
    trained: Path, counted: Path, tmp_path: Path, plain_server: Server
) -> None:
    refused(tmp_path / "nowhere", message="is not a run folder")
    refused(trained, "--port", plain_server.port, message="is taken")
    refused(
        trained,
        "--deny-file",
        tmp_path / "nowhere.txt",
        message="nowhere.txt can't be read",
    )
    refused(trained, "--split", "90,10", message="is for several runs")
    for split in ("90", "a,b", "-1,2", "0,0", "1,2,3"):
        refused(
            trained, counted, "--split", split, message="a share for each of the 2 runs"
        )

"""The options of `posrec serve`: where the API key and the store's password are read from, and what
is refused."""

import resource
from pathlib import Path

import pytest

from tests.helpers import command
from tests.server.server_process import Server, children, serving

KEY = "open-sesame-4711"
PASSWORD = "pa55w0rd"


def assert_refused(run: Path, *options: object, keyword: str) -> None:
    done = command("serve", run, "--port", 0, *options)
    assert done.code == 2
    assert keyword in " ".join(done.err.split())


@pytest.mark.parametrize("key", ["", " ", "a\nb", " a", "a\t"])
def test_an_empty_or_impossible_key_is_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("POSREC_API_KEY", key)
    assert_refused(trained, keyword="the key")
    monkeypatch.delenv("POSREC_API_KEY")
    (tmp_path / "key").write_text(key + "\n")
    assert_refused(trained, "--api-key-file", tmp_path / "key", keyword="the key")


def test_an_empty_variable_is_refused(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSREC_API_KEY_FILE", "")
    assert_refused(trained, keyword="POSREC_API_KEY_FILE")


def test_a_key_file_that_can_not_be_used(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    assert_refused(trained, "--api-key-file", file, keyword="can't be read")
    file.write_bytes(b"\xff\xfe")
    assert_refused(trained, "--api-key-file", file, keyword="not a text file")
    file.write_text(KEY)
    monkeypatch.setenv("POSREC_API_KEY", KEY)
    assert_refused(trained, "--api-key-file", file, keyword="once")


def test_a_key_file_in_a_variable(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    monkeypatch.setenv("POSREC_API_KEY_FILE", str(tmp_path / "key"))
    with serving(trained, "--workers", 2) as server:
        body = {"session": ["i3"]}
        assert server.post("/v1/recommend", body).status == 401
        assert server.post("/v1/recommend", body, X_API_Key=KEY).status == 200


@pytest.mark.parametrize(
    "store",
    [
        f"nonsense://shop:{PASSWORD}@host/0",
        f"redis://shop:{PASSWORD}@host:port/0",
        f"redis://:{PASSWORD}/x@host:1",
        f"redis://:a?{PASSWORD}@host:1",
        f"redis://host:port?password={PASSWORD}",
        f"redis://host:port?password=a@{PASSWORD}",
        f"rediss:{PASSWORD}@host",
        "nonsense",
    ],
)
def test_messages_do_not_show_the_password(trained: Path, store: str) -> None:
    done = command("serve", trained, "--port", 0, "--session-store", store)
    assert done.code == 2
    assert "--session-store" in done.err
    assert PASSWORD not in done.err


def test_the_command_line_does_not_keep_the_password(trained: Path) -> None:
    store = f"redis://127.0.0.1:1?password={PASSWORD}"
    with serving(trained, "--session-store", store, forked=False) as server:
        line = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        assert b"serve" in line
        assert PASSWORD.encode() not in line
        for pid in (server.process.pid, *children(server)):
            assert resource.prlimit(pid, resource.RLIMIT_CORE)[0] == 0
        click = server.post("/v1/sessions/a/click", {"item": "i3"})
        assert click.status == 503  # the address has reached the server
        assert PASSWORD not in str(server.log)


def test_other_wrong_options(
    trained: Path, counted: Path, tmp_path: Path, plain_server: Server
) -> None:
    assert_refused(tmp_path / "nowhere", keyword="run folder")
    assert_refused(trained, "--port", plain_server.port, keyword="is taken")
    missing = tmp_path / "nowhere.txt"
    assert_refused(trained, "--deny-file", missing, keyword="nowhere.txt")
    assert_refused(trained, "--split", "90,10", keyword="several runs")
    for split in ("90", "a,b", "-1,2", "0,0", "1,2,3"):
        assert_refused(trained, counted, "--split", split, keyword="each of the 2 runs")


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        (("--tls-key", "key.pem"), "both"),
        (("--tls-key", "none.pem", "--tls-certificate", "none.pem"), "can't be used"),
    ],
)
def test_a_certificate_that_can_not_be_used(
    trained: Path, options: tuple[str, ...], keyword: str
) -> None:
    assert_refused(trained, *options, keyword=keyword)

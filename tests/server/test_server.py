"""The server as a process of its own: every route, and the same results as the Recommender."""

import json
import shutil
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from posrec.io import changing
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import EXPORT, ITEMS, NETWORK
from posrec.runs.run import load_run
from tests.helpers import command
from tests.server.server_process import Server, accepts, serving, until

pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def server(trained: Path) -> Iterator[Server]:
    with serving(trained, "--log-requests") as server:
        yield server


@pytest.fixture(scope="module")
def recommender(trained: Path) -> Recommender:
    return Recommender(load_run(trained), "cpu")


@pytest.mark.parametrize("session", [["i3"], ["i3", "i4", "i5"], ["i1", "i2", "i1"], [f"i{n % 30}" for n in range(50)]])
@pytest.mark.parametrize("more", [{}, {"exclude_seen": True}, {"deny": ["i6", "zz"]}, {"allow": ["i6", "i9", "zz"]},
                                  {"allow": ["i6", "i4"], "exclude_seen": True}])  # fmt: skip
def test_the_server_recommends_what_the_recommender_does(
    server: Server, recommender: Recommender, session: list[str], more: dict
) -> None:
    answer = server.recommend(*session, k=7, **more)
    assert answer.status == 200, answer.body
    expected = recommender.recommend(session, 7, **more)
    given = answer.json()
    assert [one["item"] for one in given["items"]] == [one.item for one in expected]
    assert [one["score"] for one in given["items"]] == pytest.approx([one.score for one in expected], abs=1e-4)
    assert (given["unknown"], given["popular"]) == ([], False)


def test_unknown_items_are_named_and_empty_sessions_get_popular_ones(server: Server, recommender: Recommender) -> None:
    known = server.recommend("i3", "nothing like it", 7).json()
    assert (known["unknown"], known["popular"]) == (["nothing like it", "7"], False)
    popular = [(one.item, one.score) for one in recommender.recommend(["?"], 5)]
    for session in (["?"], []):
        given = server.recommend(*session, k=5).json()
        assert given["popular"]
        assert [(one["item"], one["score"]) for one in given["items"]] == popular
    assert server.metric("posrec_unknown_items_total") >= 3


def test_fewer_items_than_asked_for(server: Server) -> None:
    assert len(server.recommend("i3", k=1000).json()["items"]) == 30
    assert server.recommend("i3", allow=["zz"]).json()["items"] == []
    assert len(server.recommend("i3", "i4", k=1000, exclude_seen=True).json()["items"]) == 28


def test_explanations_add_up(server: Server, recommender: Recommender) -> None:
    answer = server.ask("POST", "/v1/explain", {"session": ["i3", "zz", "i4"], "item": "i5"}).json()
    expected = recommender.explain(["i3", "zz", "i4"], "i5")
    assert answer["score"] == pytest.approx(expected.score, abs=1e-4)
    assert sum(part["value"] for part in answer["parts"]) == pytest.approx(answer["score"], abs=1e-4)
    assert [(one["item"], one["position"]) for one in answer["clicks"]] == [("i3", 0), ("i4", 2)]
    assert [one["left_out"] for one in answer["clicks"]] == pytest.approx([c.effect for c in expected.clicks], abs=1e-4)
    assert sum(one["attention"] for one in answer["clicks"]) == pytest.approx(1, abs=1e-3)
    assert answer["unknown"] == ["zz"]
    assert server.ask("POST", "/v1/explain", {"session": ["i3"], "item": "zz"}).status == 404
    assert server.ask("POST", "/v1/explain", {"session": ["zz"], "item": "i3"}).status == 400


def test_items_are_found_by_id(server: Server, recommender: Recommender) -> None:
    found = server.ask("GET", "/v1/items?query=I1&limit=50").json()["items"]
    assert {one["item"] for one in found} == {"i1", *(f"i{n}" for n in range(10, 20))}
    assert [one["clicks"] for one in found] == sorted((one["clicks"] for one in found), reverse=True)
    assert recommender.popularity is not None
    everything = server.ask("GET", "/v1/items?limit=1000").json()["items"]
    assert sum(one["clicks"] for one in everything) == int(recommender.popularity.sum())
    assert len(server.ask("GET", "/v1/items").json()["items"]) == 20
    assert server.ask("GET", "/v1/items?query=%0A").json()["items"] != []  # only white space: the most clicked
    assert server.ask("GET", "/v1/items?query=nope").json()["items"] == []


def test_about_the_run(server: Server) -> None:
    about = server.ask("GET", "/v1/run").json()
    assert (about["model"], about["items"], about["max_length"]) == ("posrec", 30, 10)
    assert about["trained"]["epochs"] == 8


def test_pages_and_probes(server: Server) -> None:
    assert server.ask("GET", "/healthz").body == b"ok"
    assert server.ask("GET", "/readyz").status == 200
    page = server.ask("GET", "/docs").body.decode()
    assert "/v1/recommend" in page
    assert "http://" not in page
    assert "https://" not in page  # nothing from other hosts
    schema = server.ask("GET", "/openapi/openapi.json").json()
    assert {"/v1/recommend", "/v1/explain", "/v1/items", "/v1/run", "/v1/sessions/{session_id}/click"} <= set(
        schema["paths"]
    )
    assert server.ask("GET", "/nothing").status == 404
    assert server.ask("GET", "/v1/recommend").status == 405


def test_counts_and_log(server: Server) -> None:
    before = server.metric('posrec_requests_total{path="/v1/recommend",status="2xx"}')
    seen = server.metric("posrec_recommend_seconds_count")
    assert server.recommend("i3").status == 200
    assert server.metric('posrec_requests_total{path="/v1/recommend",status="2xx"}') == before + 1
    assert server.metric("posrec_recommend_seconds_count") == seen + 1
    assert server.metric("posrec_batch_size_count") >= 1
    line = until(lambda: server.said("request"))[-1]
    assert {"time", "level", "process", "method", "path", "status", "ms"} <= set(line)


def test_no_cors_unless_asked_for(server: Server, trained: Path) -> None:
    assert "access-control-allow-origin" not in server.ask("GET", "/v1/run", Origin="https://shop.example").headers
    with serving(trained, "--allow-origin", "https://shop.example", "--api-key", "secret") as other:
        known = {"Origin": "https://shop.example", "X_API_Key": "secret"}
        answer = other.ask("POST", "/v1/recommend", {"session": ["i3"]}, **known)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://shop.example")
        # The key may be in either header; only probes work without it.
        assert other.recommend("i3").status == 401
        assert other.ask("GET", "/metrics", Authorization="Bearer wrong").status == 401
        assert other.ask("GET", "/metrics", Authorization="Bearer secret").status == 200
        assert other.ask("GET", "/metrics", Authorization="Digest secret").status == 401
        assert other.ask("GET", "/healthz").status == 200


def test_a_counting_model_is_served(counted: Path) -> None:
    with serving(counted) as server:
        answer = server.recommend("i3", k=3)
        assert answer.status == 200
        expected = Recommender(load_run(counted), "cpu").recommend(["i3"], 3)
        assert [one["score"] for one in answer.json()["items"]] == [one.score for one in expected]
        assert server.ask("POST", "/v1/explain", {"session": ["i3"], "item": "i4"}).json()["parts"] == []


def test_an_export_that_is_added_takes_over(
    trained: Path, trained_with_export: Path, tmp_path: Path, recommender: Recommender
) -> None:
    expected = [one.item for one in recommender.recommend(["i3", "i4"], 5)]
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    with serving(run, onnx=True) as server:
        assert [line["by"] for line in server.said("serving")] == ["torch"]
        until(lambda: server.said(f"{run} has no export, so torch computes, more slowly; posrec export {run} adds it"))
        with changing(run, *EXPORT):
            for name in (NETWORK, ITEMS):
                shutil.copy(trained_with_export / name, run / name)
        until(lambda: server.said("serving")[-1]["by"] == "onnx")
        assert [one["item"] for one in server.recommend("i3", "i4", k=5).json()["items"]] == expected
        assert len([line for line in server.log if "has no export" in line.get("message", "")]) == 1


def test_stopping_finishes_accepted_requests(trained: Path) -> None:
    """The server is stopped when it has accepted eight requests whose bodies are not sent yet."""
    body = json.dumps({"session": [f"i{n % 30}" for n in range(10)], "item": "i3"}).encode()
    head = (
        f"POST /v1/explain HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    )
    with serving(trained) as server, ExitStack() as open_ones:
        address = ("127.0.0.1", server.port)
        asking = [open_ones.enter_context(socket.create_connection(address, timeout=120)) for _ in range(8)]
        for one in asking:
            one.sendall(head.encode())
            assert one.recv(4096).startswith(b"HTTP/1.1 100")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: not accepts(server))
        for one in asking:
            one.sendall(body)
        assert [one.makefile("rb").readline() for one in asking] == [b"HTTP/1.1 200 OK\r\n"] * 8
        assert server.process.wait(120) in (0, -signal.SIGTERM)
        until(lambda: server.said("stopped"))


def test_a_replaced_run_is_loaded_and_a_truncated_one_is_not(trained: Path, counted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    with serving(run) as server:
        weights = (run / "model.safetensors").read_bytes()
        (run / "model.safetensors").write_bytes(weights[: len(weights) // 2])
        until(lambda: any("can't be served" in line["message"] for line in server.log))
        assert server.ask("GET", "/v1/run").json()["model"] == "posrec"
        assert server.recommend("i3").status == 200
        assert server.metric("posrec_failed_reloads_total") == 1
        aside = tmp_path / "aside"
        run.rename(aside)
        shutil.copytree(counted, run)
        until(lambda: server.ask("GET", "/v1/run").json()["model"] == "pop")
        assert server.recommend("i3").status == 200
        assert server.metric("posrec_reloads_total") == 1


def test_wrong_options_have_a_plain_message(trained: Path, tmp_path: Path, server: Server) -> None:
    no_run = command("serve", tmp_path / "nowhere")
    assert (no_run.code, "is not a run folder" in no_run.err) == (2, True)
    taken = command("serve", trained, "--port", server.port)
    assert (taken.code, "is taken" in taken.err) == (2, True)
    store = command("serve", trained, "--port", 0, "--session-store", "nonsense")
    assert (store.code, "--session-store" in store.err) == (2, True)

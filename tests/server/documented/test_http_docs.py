"""docs/http.md: every request is answered as shown, and the tables of fields are those of the
OpenAPI document."""

import json
import math
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers import ROOT
from tests.server.documented_run import save_documented_run
from tests.server.server_process import Answer, Server, serving

pytest.importorskip("granian")

PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"^```sh\n(curl .*?)\n```\n\n```json\n(.*?)\n```", PAGE, re.MULTILINE | re.DOTALL
)
DRAWN = {
    "id": r"[0-9a-f]{12}-run-[0-9a-f]{32}",
    "run": r"[0-9a-f]{12}",
    "fingerprint": r"[0-9a-f]{12}",
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Server]]:
    """Without and with an API key."""
    folder = tmp_path_factory.mktemp("documented")
    run = save_documented_run(folder)
    with (
        serving(run, "--feedback", folder / "feedback") as plain,
        serving(run, key="my-key") as guarded,
    ):
        yield {False: plain, True: guarded}


def asked(servers: dict[bool, Server], line: str) -> Answer:
    words = shlex.split(line.replace("\\\n", " "))[1:]
    method = "GET"
    body = None
    address = ""
    headers: dict[str, str] = {}
    while words:
        match words.pop(0):
            case "-s":
                continue
            case "-X":
                method = words.pop(0)
            case "-d":
                method = "POST"
                body = words.pop(0).encode()
            case "-H":
                name, _, value = words.pop(0).partition(": ")
                headers[name] = value
            case word:
                address = word.removeprefix("localhost:8000")
    return servers["X-API-Key" in headers].ask(method, address, body, **headers)


def is_as_shown(shown: Any, found: Any, name: str = "") -> bool:
    """Numbers to four digits after the point; ids of answers and runs only by their form."""
    match shown:
        case dict():
            same = isinstance(found, dict) and list(shown) == list(found)
            return same and all(
                is_as_shown(value, found[key], key) for key, value in shown.items()
            )
        case list():
            same = isinstance(found, list) and len(shown) == len(found)
            return same and all(map(is_as_shown, shown, found))
        case float():
            return math.isclose(shown, found, abs_tol=2e-4)
    if name in DRAWN:
        return all(re.fullmatch(DRAWN[name], one) for one in (shown, found))
    return type(shown) is type(found) and shown == found


def test_every_request_has_its_answer() -> None:
    assert len(EXAMPLES) == PAGE.count("\ncurl ") > 10


def test_the_request_of_the_how_to_is_one_of_these() -> None:
    shown = re.findall(
        r"^curl -s .*$",
        (ROOT / "docs" / "serving.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert shown == [EXAMPLES[1][0]]


@pytest.mark.parametrize(
    ("line", "shown"), EXAMPLES, ids=[line[:60] for line, _ in EXAMPLES]
)
def test_a_request_is_answered_as_shown(
    servers: dict[bool, Server], line: str, shown: str
) -> None:
    answer = asked(servers, line)
    assert is_as_shown(json.loads(shown), answer.json()), (
        f"{answer.status} {answer.body.decode()}"
    )


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    import http_fields  # type: ignore[import-not-found]

    yield http_fields
    sys.modules.pop("http_fields")


@pytest.fixture(scope="module")
def document(servers: dict[bool, Server]) -> Any:
    return servers[False].ask("GET", "/openapi/openapi.json").json()


def test_the_tables_of_fields_are_those_of_the_code(
    generator: Any, document: Any
) -> None:
    """If this fails: python docs/site/http_fields.py"""
    schemas = document["components"]["schemas"]
    assert generator.written(PAGE, schemas) == PAGE
    assert set(re.findall(r"<!-- fields (\w+)", PAGE)) == set(schemas) - {"ErrorAnswer"}


def test_every_route_has_a_section(document: Any) -> None:
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"`{path}`" in PAGE or f"\n## {method.upper()} {path}\n" in PAGE, (
                path
            )
    headings = re.findall(r"^## (GET|POST|DELETE) (/v1/\S+)$", PAGE, re.MULTILINE)
    assert {(method.lower(), path) for method, path in headings} == {
        (method, path)
        for path, methods in document["paths"].items()
        for method in methods
        if path.startswith("/v1/")
    }


def test_statuses_and_parameters_are_those_of_the_document(document: Any) -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    described = {
        tuple(text.split("\n", 1)[0].split(" ", 1)): text
        for text in sections
        if text.startswith(("GET /v1", "POST", "DELETE"))
    }
    assert len(described) == 9
    for (method, path), text in described.items():
        route = document["paths"][path][method.lower()]
        (statuses,) = re.findall(r"^Status: (.*)$", text, re.MULTILINE)
        listed = set(re.findall(r"\b\d{3}\b", statuses))
        assert listed <= set(route["responses"]), path
        assert {status for status in route["responses"] if status < "300"} <= listed, (
            path
        )
        rows = re.findall(
            r"^\| `(\w+)` \| .* \| (?:`(\d+)`|required)? *\| .* \|$",
            text.partition("| parameter |")[2],
            re.MULTILINE,
        )
        expected = [
            (one["name"], str(one["schema"].get("default", "")))
            for one in route.get("parameters", [])
        ]
        assert (
            method == "POST"
            or [row for row in rows if row[0] in dict(expected)] == expected
        ), path

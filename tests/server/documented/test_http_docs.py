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
from tests.server.asgi import in_process
from tests.server.asking import Answer, Asker
from tests.server.documented.documented_run import save_documented_run
from tests.server.server_process import serving

PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(
    r"^```sh\n(curl .*?)\n```\n\n```json\n(.*?)\n```", PAGE, re.MULTILINE | re.DOTALL
)
# Fields that are drawn at random or change with the code, by the form of their values.
DRAWN = {
    "id": r"[0-9a-f]{12}-run-[0-9a-f]{32,}",
    "run": r"[0-9a-f]{12}",
    "fingerprint": r"[0-9a-f]{12}",
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Asker]]:
    """Without and with an API key."""
    folder = tmp_path_factory.mktemp("documented")
    run = save_documented_run(folder)
    with (
        serving(run, "--feedback", folder / "feedback") as plain,
        in_process(run, api_key="my-key") as guarded,
    ):
        yield {False: plain, True: guarded}


def answer_to(servers: dict[bool, Asker], curl: str) -> Answer:
    words = shlex.split(curl.replace("\\\n", " "))[1:]
    method = "GET"
    body = None
    path = ""
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
                path = word.removeprefix("localhost:8000")
    server = servers["X-API-Key" in headers]
    if path == "/v1/feedback" and body is not None:  # it needs an answer of this server
        answer_id = server.recommend("SAN1-BLU-2").json()["id"].encode()
        body = re.sub(rb"[0-9a-f]{12}-run-[0-9a-f]+", answer_id, body)
    return server.ask(method, path, body, **headers)


def assert_as_shown(shown: Any, received: Any, name: str = "") -> None:
    """Numbers to four digits after the point; ids of answers and runs only by their form."""
    if isinstance(shown, dict):
        assert list(received) == list(shown)
        for key in shown:
            assert_as_shown(shown[key], received[key], key)
    elif isinstance(shown, list):
        assert len(received) == len(shown)
        for element, received_element in zip(shown, received, strict=True):
            assert_as_shown(element, received_element)
    elif isinstance(shown, float):
        assert math.isclose(shown, received, abs_tol=2e-4)
    elif name in DRAWN:
        assert re.fullmatch(DRAWN[name], shown)
        assert re.fullmatch(DRAWN[name], received)
    else:
        assert (type(received), received) == (type(shown), shown)


def test_every_request_has_its_answer() -> None:
    assert len(EXAMPLES) == PAGE.count("\ncurl ") > 10


def test_the_request_of_the_how_to_is_one_of_these() -> None:
    how_to = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert re.findall(r"^curl -s .*$", how_to, re.MULTILINE) == [EXAMPLES[1][0]]


@pytest.mark.parametrize(
    ("curl", "shown"), EXAMPLES, ids=[curl[:60] for curl, _ in EXAMPLES]
)
def test_a_request_is_answered_as_shown(
    servers: dict[bool, Asker], curl: str, shown: str
) -> None:
    assert_as_shown(json.loads(shown), answer_to(servers, curl).json())


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    import http_fields

    yield http_fields
    sys.modules.pop("http_fields")


@pytest.fixture(scope="module")
def document(servers: dict[bool, Asker]) -> Any:
    return servers[False].get("/openapi/openapi.json").json()


def test_the_tables_of_fields_are_those_of_the_code(
    generator: Any, document: Any
) -> None:
    """If this fails: python docs/site/http_fields.py"""
    schemas = document["components"]["schemas"]
    assert generator.written(PAGE, schemas) == PAGE
    assert set(re.findall(r"<!-- fields (\w+)", PAGE)) == set(schemas) - {"ErrorAnswer"}


def test_every_route_has_a_section(document: Any) -> None:
    routes = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
    }
    sections = set(re.findall(r"^## (GET|POST|DELETE) (/v1/\S+)$", PAGE, re.MULTILINE))
    assert sections == {(method, path) for method, path in routes if "/v1/" in path}
    for _, path in routes - sections:
        assert f"`{path}`" in PAGE


def test_statuses_and_parameters_are_those_of_the_document(document: Any) -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    described = [
        text for text in sections if text.startswith(("GET /v1", "POST", "DELETE"))
    ]
    assert len(described) == 10
    for text in described:
        method, path = text.split("\n", 1)[0].split(" ", 1)
        route = document["paths"][path][method.lower()]
        (statuses,) = re.findall(r"^Status: (.*)$", text, re.MULTILINE)
        listed = set(re.findall(r"\b\d{3}\b", statuses))
        successes = {status for status in route["responses"] if status < "300"}
        assert successes <= listed <= set(route["responses"]), path
        if method != "POST":
            assert parameters_in(text) == parameters_of(route), path


def parameters_in(section: str) -> list[tuple[str, str]]:
    """Names and defaults in the table of parameters, if the section has one."""
    table = section.partition("| parameter |")[2].partition("\n\n")[0]
    row = r"^\| `(\w+)` \| .* \| (?:`(\d+)`|required)? *\| .* \|$"
    return re.findall(row, table, re.MULTILINE)


def parameters_of(route: Any) -> list[tuple[str, str]]:
    return [
        (parameter["name"], str(parameter["schema"].get("default", "")))
        for parameter in route.get("parameters", [])
    ]

"""A real browser, and a server of runs that are trained for some seconds on a part of a shop."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import posrec
from posrec.demo.shop import open_shop, write_log
from posrec.recommend.recommender import Recommender
from tests.helpers import fitted, items_of
from tests.server.server_process import serving, until

QUICK = {"d": 16, "epochs": 1, "learning_rate": 0.01, "batch_size": 200}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the start of the demo shop's log; its items also have a price and a stock."""
    folder = tmp_path_factory.mktemp("shop")
    clicks, items = write_log(open_shop(), folder)
    lines = clicks.read_text().splitlines(keepends=True)
    clicks.write_text("".join(lines[:8000]))
    heading, *rows = items.read_text().splitlines()
    priced = [f"{row},{10 + n % 90}.5,{n % 4}" for n, row in enumerate(rows)]
    items.write_text("\n".join([f"{heading},price,stock", *priced]) + "\n")
    data = posrec.prepare(clicks, "csv", folder / "data", items=items)
    fitted(data, "posrec", folder / "posrec", QUICK)
    fitted(data, "posrec-plus", folder / "plus", {**QUICK, "protocol": "paper"})
    fitted(data, "itemknn", folder / "itemknn")
    return folder


@pytest.fixture(scope="session")
def recommender(runs: Path) -> Recommender:
    return Recommender.load(runs / "posrec", "cpu")


@pytest.fixture(scope="session")
def goods(recommender: Recommender) -> list[str]:
    """Sandals, a tent, a stove and a jacket."""
    ids = recommender.vocabulary.ids[: recommender.items]
    kinds = ("SAN", "TEN", "STO", "JAC")
    return [next(item for item in ids if item.startswith(kind)) for kind in kinds]


@pytest.fixture(scope="session")
def port(runs: Path) -> Iterator[int]:
    pytest.importorskip("granian")
    with serving(runs / "posrec") as server:
        yield server.port


# Not for the session: its driver keeps an event loop running, and other tests start their own.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []  # it is refused to root
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


class Visit:
    """What a visitor of the playground does and sees."""

    def __init__(self, page: Any, port: int, recommender: Recommender) -> None:
        self.page = page
        self.address = f"http://127.0.0.1:{port}/"
        self.recommender = recommender  # of the run that is served
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.context.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text))

    def open(self, *items: str, k: int = 20) -> None:
        query = "".join(f"&item={item}" for item in items)
        self.page.goto(f"{self.address}?k={k}{query}")
        self.page.locator(".goods").first.wait_for()
        self.settle()

    def settle(self) -> None:
        """Wait until every answer is drawn."""
        until(lambda: not self.texts("[aria-busy=true], .ghosts"))
        self.page.locator(".row, #clicks .blank").first.wait_for()

    def texts(self, selector: str) -> list[str]:
        texts: list[str] = self.page.locator(selector).all_inner_texts()
        return texts

    def numbers(self, selector: str) -> list[float]:
        return [number(text) for text in self.texts(selector)]

    def shown(self, within: str = "#recommended") -> list[str]:
        return self.texts(f"{within} .details .id")

    def expect(self, session: list[str], **options: Any) -> None:
        until(lambda: self.texts(".click .id") == session)
        self.settle()
        answer = self.recommender.recommend(session, **options)
        assert self.shown() == items_of(answer)
        scores = [item.score for item in answer]
        assert self.numbers("#recommended .score") == pytest.approx(scores, abs=6e-4)

    def expect_explained(self, item: str) -> None:
        self.page.locator(".about .id", has_text=item).wait_for()
        self.settle()

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def choose(self, radio: str) -> None:
        self.page.get_by_role("radio", name=radio, exact=True).check(force=True)


def number(text: str) -> float:
    return float(text.replace("−", "-").removesuffix("%"))


def answer_to(curl: str, **variables: str) -> Any:
    environment = {**os.environ, **variables}
    return json.loads(subprocess.check_output(["bash", "-c", curl], env=environment))


@pytest.fixture
def visitor(chromium: Any, port: int, recommender: Recommender) -> Any:
    """Opens a page of the server of posrec, or of another one."""

    @contextmanager
    def visiting(port: int = port, **options: Any) -> Iterator[Visit]:
        # Playwright evaluates expressions by `eval`, which the policy of the pages forbids.
        defaults = {"reduced_motion": "reduce", "bypass_csp": True}
        context = chromium.new_context(**{**defaults, **options})
        context.set_default_timeout(90_000)
        yield Visit(context.new_page(), port, recommender)
        context.close()

    return visiting


@pytest.fixture
def visit(visitor: Any) -> Iterator[Visit]:
    """The page asks nothing but its server, and the console stays empty."""
    with visitor() as visit:
        yield visit
    allowed = (visit.address, "data:")
    assert [url for url in visit.requests if not url.startswith(allowed)] == []
    assert visit.errors == []

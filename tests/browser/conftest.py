"""A real browser and a real server. The run: PosRec, trained for some seconds on a part of the demo
shop."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from posrec.data.dataset import PreparedDataset
from posrec.data.prepare.pipeline import prepare
from posrec.demo.shop import open_shop, write_log
from posrec.fitting.fit import fit_run
from posrec.progress import SilentProgress
from posrec.recommend.recommender import Recommender
from posrec.recommend.results import Recommendations
from tests.server import server_process

LINES = 8000  # of the demo shop's log
LAPTOP = {"width": 1440, "height": 900}
QUICK = {"d": 16, "epochs": 1, "learning_rate": 0.01, "batch_size": 200}


@pytest.fixture(scope="session")
def part_of_shop(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder = tmp_path_factory.mktemp("shop")
    clicks, items = write_log(open_shop(), folder)
    kept = clicks.read_text().splitlines(keepends=True)[: LINES + 1]
    clicks.write_text("".join(kept))
    heading, *rows = items.read_text().splitlines()
    priced = [
        f"{row},{10 + place % 90}.5,{place % 4}" for place, row in enumerate(rows)
    ]
    items.write_text("\n".join([f"{heading},price,stock", *priced]) + "\n")
    return prepare(
        clicks, "csv", folder / "data", items=items, progress=SilentProgress()
    )


@pytest.fixture(scope="session")
def runs(
    part_of_shop: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    settings: dict[str, dict[str, Any]] = {
        "posrec": QUICK,
        "itemknn": {},
        "posrec-plus": {**QUICK, "protocol": "paper"},
    }
    folder = tmp_path_factory.mktemp("runs")
    for model, own in settings.items():
        fit_run(
            part_of_shop,
            model,
            folder / model,
            own,
            "cpu",
            progress=SilentProgress(),
            export=False,
        )
    return {model: folder / model for model in settings}


@pytest.fixture(scope="session")
def run(runs: dict[str, Path]) -> Path:
    return runs["posrec"]


@pytest.fixture(scope="session")
def recommender(run: Path) -> Recommender:
    return Recommender.load(run, "cpu")


@contextmanager
def serving(*runs: Path, api_key: str | None = None) -> Iterator[str]:
    pytest.importorskip("granian")
    with server_process.serving(*runs, key=api_key) as server:
        yield f"http://127.0.0.1:{server.port}/"


@pytest.fixture(scope="session")
def address(run: Path) -> Iterator[str]:
    with serving(run) as url:
        yield url


@pytest.fixture(
    scope="module"
)  # its driver keeps an event loop running, and other tests start their own
def chromium() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api")
    path = next(
        filter(
            None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        ),
        None,
    )
    if path is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    arguments = (
        ["--no-sandbox"] if os.geteuid() == 0 else []
    )  # chromium refuses a sandbox to root
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@dataclass
class PageVisit:
    page: Any
    address: str
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def open(self, *items: str, k: int | None = None) -> None:
        asked = [f"item={item}" for item in items] + ([f"k={k}"] if k else [])
        self.page.goto(self.address + ("?" + "&".join(asked) if asked else ""))
        self.page.locator(".goods").first.wait_for()
        if items:
            self.settle()

    def settle(self) -> None:
        """Wait until every answer is drawn."""
        self.page.wait_for_function(
            "!document.querySelector('[aria-busy=true], .ghosts') && document.querySelector('.row, #clicks .blank')"
        )

    def session(self) -> list[str]:
        items: list[str] = self.page.locator(".click .id").all_inner_texts()
        return items

    def shown(self) -> list[str]:
        rows = self.page.locator("#recommended .row")
        items: list[str] = rows.evaluate_all(
            "rows => rows.map(row => row.dataset.slide)"
        )
        return items

    def scores(self) -> list[float]:
        return [
            number(text)
            for text in self.page.locator("#recommended .score").all_inner_texts()
        ]

    def expect(self, session: list[str], answer: Recommendations) -> None:
        """Wait for this session and compare its answer, of whose scores the page shows three
        digits."""
        self.page.wait_for_function(
            "items => [...document.querySelectorAll('.click .id')].map(id => id.textContent).join() === items.join()",
            arg=session,
        )
        self.settle()
        assert self.shown() == [one.item for one in answer]
        assert self.scores() == pytest.approx([one.score for one in answer], abs=6e-4)

    def expect_explained(self, item: str) -> None:
        self.page.wait_for_function(
            "item => document.querySelector('.about .id')?.textContent === item",
            arg=item,
        )
        self.settle()

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def answered(line: str, **environment: str) -> Any:
    """The answer to a curl command of the page."""
    environment = {**os.environ, **environment}
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    return json.loads(done.stdout)


@contextmanager
def visiting(chromium: Any, address: str, **options: Any) -> Iterator[PageVisit]:
    # Playwright waits for expressions by `eval`, which the policy of the pages forbids; a test of
    # its own keeps it.
    defaults = {"viewport": LAPTOP, "reduced_motion": "reduce", "bypass_csp": True}
    context = chromium.new_context(**{**defaults, **options})
    context.set_default_timeout(90_000)
    visit = PageVisit(context.new_page(), address)
    context.on("request", lambda request: visit.requests.append(request.url))
    visit.page.on(
        "console",
        lambda message: (
            visit.errors.append(message.text) if message.type != "log" else None
        ),
    )
    visit.page.on("pageerror", lambda error: visit.errors.append(str(error)))
    try:
        yield visit
    finally:
        context.close()


@pytest.fixture
def visit(chromium: Any, address: str) -> Iterator[PageVisit]:
    """In every test the page asks nothing but its server, and the console stays empty."""
    with visiting(chromium, address) as visit:
        yield visit
    assert [
        url for url in visit.requests if not url.startswith((address, "data:"))
    ] == []
    assert visit.errors == []


@pytest.fixture(scope="session")
def goods(recommender: Recommender) -> list[str]:
    """Sandals, a tent, a stove and a jacket."""
    ids = recommender.vocabulary.ids[: recommender.items]
    return [
        next(item for item in ids if item.startswith(kind))
        for kind in ("SAN", "TEN", "STO", "JAC")
    ]

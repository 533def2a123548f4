"""A real browser before a server with a real run: a corner of the demo shop, PosRec trained on it for some seconds."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from posrec.data.dataset import PreparedDataset
from posrec.data.prepare import prepare
from posrec.demo.shop import open_shop, write_log
from posrec.fitting import fit_run
from posrec.progress import SilentProgress
from posrec.recommend.recommender import Recommender
from posrec.recommend.results import Recommendations
from tests.server import server_process

LINES = 8000  # of the demo shop's log
LAPTOP, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="session")
def corner(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder = tmp_path_factory.mktemp("corner")
    clicks, items = write_log(open_shop(), folder)
    kept = clicks.read_text().splitlines(keepends=True)[: LINES + 1]
    clicks.write_text("".join(kept))
    return prepare(clicks, "csv", folder / "data", items=items, progress=SilentProgress())


def trained(data: PreparedDataset, model: str, folder: Path, settings: dict[str, Any]) -> Path:
    finished, _ = fit_run(data, model, folder / "run", settings, "cpu", progress=SilentProgress())
    return finished.path


@pytest.fixture(scope="session")
def run(corner: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"d": 16, "epochs": 1, "learning_rate": 0.01, "batch_size": 200}
    return trained(corner, "posrec", tmp_path_factory.mktemp("run"), settings)


@pytest.fixture(scope="session")
def counting_run(corner: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(corner, "itemknn", tmp_path_factory.mktemp("run"), {})


@pytest.fixture(scope="session")
def recommender(run: Path) -> Recommender:
    """What the page must agree with."""
    return Recommender.load(run, "cpu")


@contextmanager
def serving(run: Path, port: int = 0, api_key: str | None = None) -> Iterator[str]:
    """The address of `posrec serve`, ready."""
    pytest.importorskip("litestar")
    options = ["--cache", run.parent / "cache", "--port", port, *(["--api-key", api_key] if api_key else [])]
    with server_process.serving(run, *options, onnx=True) as server:
        yield f"http://127.0.0.1:{server.port}/"


@pytest.fixture(scope="session")
def address(run: Path) -> Iterator[str]:
    with serving(run) as url:
        yield url


@pytest.fixture(scope="module")  # its driver keeps an event loop running, and other tests start one of their own
def chromium() -> Iterator[Any]:
    """Debian's chromium; the tests are skipped where it or its driver is absent."""
    driver = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("no chromium here; apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # chromium refuses a sandbox to root
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page, with what went on behind it."""

    page: Any
    address: str
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, *items: str, k: int | None = None) -> None:
        """With a session in the address, and until it is drawn."""
        asked = [f"item={item}" for item in items] + ([f"k={k}"] if k else [])
        self.page.goto(self.address + ("?" + "&".join(asked) if asked else ""))
        self.page.locator(".goods").first.wait_for()
        if items:
            self.settle()

    def settle(self) -> None:
        """Until every answer is drawn."""
        self.page.wait_for_function(
            "!document.querySelector('[aria-busy=true], .ghosts') && document.querySelector('.row, #clicks .blank')"
        )

    def session(self) -> list[str]:
        cards = self.page.locator(".click")
        return [cards.nth(place).locator(".id").inner_text() for place in range(cards.count())]

    def shown(self) -> list[str]:
        """The items that are recommended."""
        rows = self.page.locator("#recommended .row")
        return rows.evaluate_all("rows => rows.map(row => row.dataset.slide)")

    def scores(self) -> list[float]:
        texts = self.page.locator("#recommended .score").all_inner_texts()
        return [float(text.replace("−", "-")) for text in texts]

    def agrees_with(self, answer: Recommendations) -> bool:
        """Item by item; the server computes in ONNX Runtime, so scores are the same to 1e-4, and three digits shown."""
        assert self.shown() == [one.item for one in answer]
        assert self.scores() == pytest.approx([one.score for one in answer], abs=6e-4)
        return True


@contextmanager
def visiting(chromium: Any, address: str, **options: Any) -> Iterator[Visit]:
    context = chromium.new_context(**{"viewport": LAPTOP, "reduced_motion": "reduce", **options})
    context.set_default_timeout(20_000)
    visit = Visit(context.new_page(), address)
    context.on("request", lambda request: visit.requests.append(request.url))
    visit.page.on("console", lambda said: visit.complaints.append(said.text) if said.type != "log" else None)
    visit.page.on("pageerror", lambda error: visit.complaints.append(str(error)))
    try:
        yield visit
    finally:
        context.close()


@pytest.fixture
def visit(chromium: Any, address: str) -> Iterator[Visit]:
    """On a laptop. Whatever a test does, nothing but the server is asked, and the console stays empty."""
    with visiting(chromium, address) as visit:
        yield visit
    assert [url for url in visit.requests if not url.startswith((address, "data:"))] == []
    assert visit.complaints == []


@pytest.fixture(scope="session")
def goods(recommender: Recommender) -> list[str]:
    """Four items of the shop: sandals, a tent, a stove and a jacket, as far as the corner has them."""
    ids = recommender.vocabulary.ids[: recommender.items]
    return [next(item for item in ids if item.startswith(kind)) for kind in ("SAN", "TEN", "STO", "JAC")]

"""examples/nightly: nights in a row on a growing log, with a server that loads each new model."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from posrec.demo.shop import open_shop, write_log
from posrec.errors import InputError
from tests.helpers import ROOT, listed, module_at
from tests.server.server_process import serving, until

SETTINGS = ("d=16", "epochs=1", "batch_size=256", "learning_rate=0.01")
QUICK = ["--no-export", "--keep", "3", *(f"--set={pair}" for pair in SETTINGS)]
DAY = 86_400_000


@pytest.fixture(scope="module")
def nightly() -> ModuleType:
    return module_at(ROOT / "examples" / "nightly" / "nightly.py")


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The log of a month of the demo shop with few shoppers: its header and its clicks in order of
    time."""
    clicks, _ = write_log(open_shop(), tmp_path_factory.mktemp("shop"), sessions=2500)
    return clicks.read_text().splitlines(keepends=True)


class Shop:
    """A log that grows by days, and the nights over it."""

    def __init__(self, nightly: ModuleType, lines: list[str], folder: Path) -> None:
        self.nightly = nightly
        self.lines = lines
        self.log = folder / "clicks.csv"
        self.home = folder / "home"

    def grow_to(self, day: int) -> None:
        header, *clicks = self.lines
        times = [int(line.rsplit(",", 1)[1]) for line in clicks]
        until_day = sum(time < times[0] + day * DAY for time in times)
        self.log.write_text("".join([header, *clicks[:until_day]]))

    def night(self, *options: str) -> int:
        base = ["--log", str(self.log), "--home", str(self.home), "--device", "cpu"]
        return int(self.nightly.main([*base, *options]))

    @property
    def records(self) -> list[dict[str, object]]:
        lines = (self.home / "nights.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def current(self) -> str:
        return (self.home / "current").resolve().name

    @property
    def config(self) -> dict[str, Any]:
        """Of the run that is served."""
        config: dict[str, Any] = json.loads(
            (self.home / "current" / "config.json").read_text()
        )
        return config


@pytest.fixture
def shop(nightly: ModuleType, lines: list[str], tmp_path: Path) -> Shop:
    return Shop(nightly, lines, tmp_path)


@pytest.mark.process
def test_nights_in_a_row_and_a_server_that_follows(shop: Shop) -> None:
    shop.grow_to(20)
    assert shop.night(*QUICK) == 0  # the first night has nothing to compare with
    first = shop.current
    item = shop.lines[1].split(",")[1]
    with serving(shop.home / "current") as server:
        shop.grow_to(24)
        assert shop.night(*QUICK, "--tolerance", "0.05") == 0
        second = shop.current
        assert second != first
        until(lambda: server.metric("posrec_reloads_total") == 1)
        assert Path(shop.config["started_from"]["run"]).name == first

        shop.log.write_text("session_id,item_id,timestamp\nonly,one\n")
        assert shop.night(*QUICK) == 1  # a log that can't be read
        shop.grow_to(25)
        # A loss that is not a number, and a model that is not good enough.
        assert shop.night(*QUICK, "--set", "learning_rate=1e30") == 1
        assert shop.night(*QUICK, "--tolerance=-1") == 3
        assert shop.current == second
        assert server.recommend(item, k=3).status == 200
        assert server.metric("posrec_reloads_total") == 1
    promoted = (True, False)
    failed = (False, True)
    refused = (False, False)
    outcomes = [(night["promoted"], "failed" in night) for night in shop.records]
    assert outcomes == [promoted, promoted, failed, failed, refused]
    assert (shop.home / "runs" / second / "model.safetensors").exists()


def test_only_the_latest_nights_are_kept_and_always_the_served_one(shop: Shop) -> None:
    """Nights are counted by their datasets; one that failed has no run, and what a killed one left
    is not counted."""
    for name in ("1", "2", "3", "4"):
        for kind in ("runs", "data"):
            (shop.home / kind / name).mkdir(parents=True)
        (shop.home / "data" / f"{name}.bad-lines.jsonl").write_text("")
    (shop.home / "data" / ".5.unfinished-x").mkdir()
    shop.nightly.switch(shop.home / "current", Path("runs") / "1")
    shop.nightly.remove_old(shop.home, 2)
    assert listed(shop.home / "runs") == ["1", "3", "4"]
    left = [file for name in "134" for file in (name, f"{name}.bad-lines.jsonl")]
    assert listed(shop.home / "data") == [".5.unfinished-x", *left]
    shop.nightly.switch(shop.home / "current", Path("runs") / "4")
    assert shop.current == "4"


def test_two_nights_never_run_at_once(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    from filelock import FileLock

    shop.home.mkdir()
    with FileLock(shop.home / ".lock"):
        assert shop.night() == 1
    assert "another night" in capsys.readouterr().err


def test_a_metric_that_does_not_exist_fails_the_night_and_the_next_one_works(
    shop: Shop,
) -> None:
    shop.grow_to(8)
    assert shop.night("--model", "pop", "--metric", "clicks") == 1
    assert not (shop.home / "current").exists()
    assert shop.night("--model", "pop") == 0
    assert shop.night() == 0  # a model that counts is counted anew
    assert "--metric clicks" in str(shop.records[0]["failed"])


def test_options_of_preparing(shop: Shop) -> None:
    shop.grow_to(20)
    clicks = shop.log.read_text().partition("\n")[2]
    shop.log.write_text("a,2,c\n" + clicks)
    assert shop.night(*QUICK) == 1  # the columns can't be guessed
    columns = ("session_column=a", "item_column=2", "time_column=c")
    # The format can't be concluded from a header with a number.
    options = [f"--prepare={pair}" for pair in (*columns, "format=csv")]
    assert shop.night(*QUICK, *options, "--prepare", "min_support=few") == 1
    assert "min_support" in str(shop.records[-1]["failed"])
    assert shop.night(*QUICK, *options, "--prepare", "min_support=6") == 0
    (night,) = (shop.home / "data").glob("*")
    manifest = json.loads((night / "manifest.json").read_text())
    assert manifest["options"]["min_support"] == 6

    with pytest.raises(SystemExit):
        shop.night("--prepare", "gap")


def test_several_session_columns_identify_a_session(nightly: ModuleType) -> None:
    columns = [("session_column", "user"), ("gap", "30m"), ("session_column", "visit")]
    assert nightly.named(columns) == {"session_column": ["user", "visit"], "gap": "30m"}
    with pytest.raises(InputError, match="gap is given twice"):
        nightly.named([*columns, ("gap", "1h")])


def test_another_model_starts_from_random_weights_and_so_does_a_fresh_one(
    shop: Shop,
) -> None:
    shop.grow_to(8)
    always = (*QUICK, "--tolerance", "1")
    models = []
    for more in (("--model", "posrec"), (), ("--fresh",), ("--model", "stamp")):
        assert shop.night(*always, *more) == 0
        models.append((shop.config["model"], "started_from" in shop.config))
    fresh = ("posrec", False)
    assert models == [fresh, ("posrec", True), fresh, ("stamp", False)]


def test_a_model_of_ones_own_is_trained_every_night(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from posrec.models.registry import MODELS\nMINE = MODELS['stamp']\n"
    )
    shop.grow_to(8)
    own = ("--model", f"{tmp_path / 'mine.py'}:MINE", *QUICK, "--tolerance", "1")
    assert shop.night(*own) == 0
    assert shop.night(*own) == 0
    first = shop.home / "runs" / str(shop.records[0]["night"])
    assert shop.config["started_from"]["run"] == str(first.resolve())


def test_a_test_day_of_a_few_clicks_promotes_nothing(shop: Shop) -> None:
    """The last days are counted back from the latest click, whose clock may be wrong."""
    shop.grow_to(8)
    session, item, time = shop.log.read_text().splitlines()[-1].split(",")
    with shop.log.open("a") as file:
        for click in range(3):
            late = int(time) + 50 * DAY + click
            file.write(f"{session}-late,{item},{late}\n")
    assert shop.night("--model", "pop") == 1
    assert "only 2 samples" in str(shop.records[0]["failed"])

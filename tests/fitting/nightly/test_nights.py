"""posrec nightly: nights in a row on a marketplace, good and bad ones."""

import json
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import polars as pl
import pytest

import posrec
from posrec.fitting.nightly.home import remove_old, switch
from tests.data.reading import prepared
from tests.helpers import CommandResult, command, fitted, items_of, listed, refused
from tests.marketplace import COLUMNS, START, Event, Marketplace
from tests.server.server_process import serving, until

NAMES = [f"--prepare={column}" for column in COLUMNS]
SETTINGS = ("d=16", "epochs=2", "batch_size=256", "learning_rate=0.01")
QUICK = ["--no-export", *(f"--set={pair}" for pair in SETTINGS)]
ATTRIBUTES = ["--set", "attributes=category,title:words,price"]
COUNTED = ["--model", "coclick"]
FIRST_DAY = 5  # of the log of the first night


@cache
def marketplace() -> Marketplace:
    return Marketplace()


class Shop:
    """A log that grows by days, and the nights over it."""

    def __init__(self, folder: Path, goods: Marketplace) -> None:
        self.goods = goods
        self.log = folder / "log.jsonl"
        self.items = folder / "items.jsonl"
        self.home = folder / "home"
        self.day = FIRST_DAY

    def night(self, *options: str, kind: str = "good") -> CommandResult:
        """The night after a day that was logged in this way; a promoted one is followed by the
        next day."""
        self.goods.write_log(self.log, self.day, kind)
        self.goods.write_items(self.items, self.day)
        done = self.again("--items", str(self.items), *options)
        self.day += done.code == 0
        return done

    def again(self, *options: str) -> CommandResult:
        files = ["--log", self.log, "--home", self.home]
        return command("nightly", *files, *NAMES, "--device", "cpu", *options)

    @property
    def records(self) -> list[dict[str, Any]]:
        lines = (self.home / "nights.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def reasons(self) -> str:
        return "; ".join(self.records[-1]["reasons"])

    @property
    def current(self) -> str:
        return (self.home / "current").resolve().name

    def config(self, folder: str = "current") -> dict[str, Any]:
        config: dict[str, Any] = json.loads(
            (self.home / folder / "config.json").read_text()
        )
        return config


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, marketplace())


def run_five_nights(shop: Shop, *options: str) -> CommandResult:
    """A good night, three bad ones, and a good one."""
    codes = [shop.night(*options).code]
    for kind in ("shuffled items", "partial", "empty"):
        codes.append(shop.night(*options, kind=kind).code)
        assert shop.current == shop.records[0]["night"]
    done = shop.night(*options)
    codes.append(done.code)
    assert codes == [0, 3, 3, 4, 0]
    outcomes = [night["outcome"] for night in shop.records]
    assert outcomes == ["promoted", "held", "held", "nothing new", "promoted"]
    first, shuffled, partial, empty, last = [
        "; ".join(night["reasons"]) for night in shop.records
    ]
    assert first.startswith("recall@20 on all clicks is the new model's 0.")
    assert "the new model's recall@20 on all clicks is 0." in shuffled
    assert "the running model's recall@20 on the clicks whose item both" in shuffled
    assert "the latest day has" in partial
    assert "clicks, and the median of 1 promoted night is" in partial
    assert empty.startswith("no session of two clicks is later than those")
    assert "and the running model's 0." in last
    return done


def test_five_nights_of_which_three_are_bad(shop: Shop) -> None:
    done = run_five_nights(shop, *COUNTED)
    assert "unfinished" not in done.err  # the folder of the log that is trained on
    table = command("nightly", "--home", shop.home, "--history").out
    assert table.startswith("night")
    for night in shop.records:
        assert f"{night['night'][:15]}" in table
    assert "nothing new" in table
    as_json = command("nightly", "--home", shop.home, "--history", "--json").out
    assert json.loads(as_json) == shop.records


@pytest.mark.slow
def test_five_nights_of_a_large_marketplace(tmp_path: Path) -> None:
    """About 280,000 events of 21 days on 8,200 listings, and the default model with attributes,
    which knows the listings that nobody has clicked."""
    goods = Marketplace(days=21, listings_a_day=325, visits_a_day=4620)
    assert 270_000 < len(goods.events) < 290_000
    assert abs(len(goods.listings) - 8200) < 200
    shop = Shop(tmp_path, goods)
    shop.day = 18
    run_five_nights(shop, *QUICK, *ATTRIBUTES)
    last = shop.records[-1]
    assert 0.15 < last["latest_day"]["unknown"] < 0.35
    assert last["samples"]["known"] == last["samples"]["all"]
    assert last["running"]["all"] > 0.4


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("shuffled sessions", "of the latest day's clicks repeat the one before"),
        ("doubled", "of the latest day's clicks repeat the one before"),
        ("equal times", "of the latest day's clicks have the time of the one before"),
    ],
)
def test_a_bad_night_is_held_with_its_reason(
    shop: Shop, kind: str, reason: str
) -> None:
    assert shop.night(*COUNTED).code == 0
    done = shop.night(*COUNTED, kind=kind)
    assert done.code == 3
    assert f"held, and the running model stays: {shop.reasons}" in done.err
    assert reason in shop.reasons
    assert shop.current == shop.records[0]["night"]
    assert not (shop.home / "runs" / shop.records[1]["night"]).exists()


@pytest.mark.parametrize("kind", ["shuffled items", "shuffled sessions"])
def test_the_level_alone_finds_shuffled_clicks(shop: Shop, kind: str) -> None:
    """Also where the new model is as good as the running one, and the volume is as usual."""
    options = (*COUNTED, "--factor", "1000", "--tolerance", "0.05")
    assert shop.night(*options).code == 0
    assert shop.night(*options, kind=kind).code == 3
    assert "the new model's recall@20 on all clicks is 0." in shop.reasons
    assert "the running model's recall@20 on the clicks" in shop.reasons
    assert "and the running model's 0." not in shop.reasons


def test_a_log_whose_ids_were_all_exchanged_is_held(shop: Shop) -> None:
    """The new model is as good as ever on it, but what it recommends does not exist."""
    assert shop.night(*COUNTED).code == 0
    shop.goods.write_log(shop.log, shop.day)
    ids = sorted({event.item for event in shop.goods.log(shop.day)})
    other = dict(zip(ids, ids[7:] + ids[:7], strict=True))
    lines = [json.loads(line) for line in shop.log.read_text().splitlines()]
    for line in lines:
        line["listing"]["id"] = other[line["listing"]["id"]]
    shop.log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert shop.again(*COUNTED).code == 3
    (reason,) = shop.records[-1]["reasons"]
    assert reason.startswith("the running model's recall@20 on the clicks whose item")


def test_force_promotes_what_the_gate_has_held_and_records_why(shop: Shop) -> None:
    assert shop.night(*COUNTED).code == 0
    assert shop.night(*COUNTED, kind="doubled").code == 3
    held = shop.records[-1]["reasons"]
    done = shop.night(*COUNTED, "--force", kind="doubled")
    assert done.code == 0
    assert f"forced: {held[0]}" in done.err
    night = shop.records[-1]
    assert night["outcome"] == "promoted"
    assert night["forced"][: len(held)] == held
    assert shop.current == night["night"]
    table = command("nightly", "--home", shop.home, "--history").out
    assert "forced" in table


def test_an_unchanged_and_an_empty_log_end_at_once(shop: Shop) -> None:
    assert shop.night(*COUNTED).code == 0
    assert shop.again(*COUNTED).code == 4
    shop.log.write_text("")
    done = shop.again(*COUNTED)
    assert done.code == 4
    assert "log.jsonl is empty; there is nothing to read" in done.err
    first, *others = [night["night"] for night in shop.records]
    assert listed(shop.home / "data") == [first]
    assert listed(shop.home / "judged") == [first]
    assert len(others) == 2
    shop.goods.write_log(shop.log, FIRST_DAY)
    assert shop.again(*COUNTED, "--force").code == 0
    assert "running" not in shop.records[-1]  # it was trained on what would judge it
    (forced,) = shop.records[-1]["forced"]
    assert forced.startswith("no session of two clicks is later than")


@pytest.mark.parametrize("model", [COUNTED, [*QUICK, *ATTRIBUTES]])
def test_the_served_run_has_read_the_latest_day(shop: Shop, model: list[str]) -> None:
    for _ in range(2):
        assert shop.night(*model).code == 0
    night = shop.records[-1]
    served = shop.config()
    judged = shop.config(f"judged/{night['night']}")
    data = posrec.load(shop.home / "data" / night["night"])
    # What was judged on the latest day had not read it, and what is served has.
    assert judged["trained_until"] < data.test.times.min()
    assert served["trained_until"] == data.full_test.times.max()
    assert judged["dataset"] == night["judged"]["dataset"] == data.fingerprint
    assert served["dataset"] == night["trained_on"]["dataset"] != data.fingerprint
    assert (served["night"], served["judged"]) == (night["night"], night["judged"])
    recommender = posrec.Recommender.load(shop.home / "current", device="cpu")
    read = set(data.new_items) & set(recommender.vocabulary.ids)
    assert len(read) > 5  # listings that had no click before
    if model is not COUNTED:
        started = Path(served["started_from"]["run"])
        assert started == (shop.home / "judged" / night["night"]).resolve()
        before = Path(judged["started_from"]["run"])
        assert before.name == shop.records[0]["night"]
        assert before.parent.name == "judged"


def test_the_running_model_is_judged_as_it_is_served_with_the_items(shop: Shop) -> None:
    """With attributes it knows listings that nobody had clicked when it was trained: its figure is
    that of its answers to the sessions that came after."""
    options = (*QUICK, *ATTRIBUTES, "--tolerance", "0.1")
    assert shop.night(*options).code == 0
    running = posrec.Recommender.load(shop.home / "current", device="cpu")
    trained_until = shop.config()["trained_until"]
    assert shop.night(*options).code == 0
    night = shop.records[-1]
    assert 0.1 < night["latest_day"]["unknown"] < 0.4
    assert night["samples"]["known"] == night["samples"]["all"]

    served = running.with_items(pl.read_ndjson(shop.items))
    visits: defaultdict[str, list[Event]] = defaultdict(list)
    for event in shop.goods.log(shop.day - 1):
        visits[event.visit].append(event)
    prefixes = []
    targets = []
    for events in visits.values():
        items = [event.item for event in events]
        for end in range(1, len(items) if events[0].time > trained_until else 0):
            prefixes.append(items[:end])
            targets.append(items[end])
    assert len(targets) == night["samples"]["all"]

    def hits(recommender: posrec.Recommender) -> list[bool]:
        answers = recommender.recommend(prefixes, k=20, now=START)
        pairs = zip(targets, answers, strict=True)
        return [target in items_of(answer) for target, answer in pairs]

    of_running = hits(served)
    # Listings of the same kind and price have the same vector: ties count against the target.
    assert -0.03 < night["running"]["all"] - fmean(of_running) < 1e-6
    assert fmean(hits(running)) < night["running"]["all"] - 0.1

    folder = shop.home / "judged" / night["night"]
    judged = posrec.Recommender.load(folder, device="cpu")
    of_new = hits(judged.with_items(pl.read_ndjson(shop.items)))
    assert -0.03 < night["new"]["all"] - fmean(of_new) < 1e-6
    gained = [new - old for new, old in zip(of_new, of_running, strict=True)]
    error = pstdev(gained) / len(gained) ** 0.5
    assert night["error"]["all"] == pytest.approx(error, abs=0.003)


@pytest.mark.process
def test_a_server_follows_the_nights(shop: Shop) -> None:
    assert shop.night(*QUICK).code == 0
    item = shop.goods.events[-1].item
    with serving(shop.home / "current") as server:
        assert shop.night(*QUICK, "--tolerance", "0.2").code == 0
        second = shop.current
        until(lambda: server.metric("posrec_reloads_total") == 1)
        shop.goods.write_log(shop.log, shop.day)
        shop.log.write_text('{"visit": {"id": "only"}}\n')
        assert shop.again(*QUICK).code == 1  # a log that can't be read
        # A loss that is not a number.
        done = shop.night(*QUICK, "--set", "learning_rate=1e30")
        assert done.code == 1
        assert "the night failed, and the running model stays" in done.err
        assert shop.night(*QUICK, "--tolerance=-1").code == 3
        assert shop.current == second
        assert server.recommend(item, k=3).status == 200
        assert server.metric("posrec_reloads_total") == 1
    outcomes = [night["outcome"] for night in shop.records]
    assert outcomes == ["promoted", "promoted", "failed", "failed", "held"]


def test_only_the_latest_nights_are_kept_and_always_the_served_one(
    tmp_path: Path,
) -> None:
    """Nights are counted by their datasets; one that failed has no run, and what a killed one left
    is not counted."""
    for name in ("1", "2", "3", "4"):
        for kind in ("runs", "data", "judged"):
            (tmp_path / kind / name).mkdir(parents=True)
        (tmp_path / "data" / f"{name}.bad-lines.jsonl").write_text("")
    (tmp_path / "data" / ".5.unfinished-x").mkdir()
    switch(tmp_path / "current", Path("runs") / "1")
    remove_old(tmp_path, 2)
    assert listed(tmp_path / "runs") == listed(tmp_path / "judged") == ["1", "3", "4"]
    left = [file for name in "134" for file in (name, f"{name}.bad-lines.jsonl")]
    assert listed(tmp_path / "data") == [".5.unfinished-x", *left]
    switch(tmp_path / "current", Path("runs") / "4")
    assert (tmp_path / "current").resolve().name == "4"


def test_two_nights_never_run_at_once(shop: Shop) -> None:
    from filelock import FileLock

    shop.home.mkdir()
    with FileLock(shop.home / ".lock"):
        assert "is being written by another process" in shop.night().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--metric", "clicks"], "--metric clicks is not one of recall@5, "),
        (["--prepare", "gap"], "--prepare gap: write key=value"),
    ],
)
def test_wrong_options(tmp_path: Path, options: list[str], message: str) -> None:
    home = tmp_path / "home"
    error = refused("nightly", "--log", "log.csv", "--home", home, *options)
    assert message in error
    assert not home.exists()


def test_a_log_is_needed_but_for_the_history(tmp_path: Path) -> None:
    assert "--log is missing" in refused("nightly", "--home", tmp_path)
    assert command("nightly", "--home", tmp_path, "--history").code == 0
    error = refused("nightly", "--home", tmp_path / "none", "--history")
    assert "does not exist; check the path" in error
    (tmp_path / "nights.jsonl").write_text('{"night": "1"}\n')
    error = refused("nightly", "--home", tmp_path, "--history")
    assert "has a line without an outcome" in error


def test_options_of_preparing(shop: Shop) -> None:
    assert shop.night(*COUNTED, "--prepare", "min_support=few").code == 1
    assert "min_support" in shop.reasons
    assert shop.night(*COUNTED, "--prepare", "min_support=6").code == 0
    night = shop.home / "data" / shop.current
    manifest = json.loads((night / "manifest.json").read_text())
    assert manifest["options"]["min_support"] == 6


def test_several_session_columns_identify_a_session(shop: Shop) -> None:
    extra = "--prepare=session_column=visit.id,event.type"
    assert shop.night(*COUNTED, extra).code == 0


def test_another_model_starts_from_random_weights_and_so_does_a_fresh_one(
    shop: Shop,
) -> None:
    """What is judged starts anew; what is served continues it."""
    models = []
    for more in (["--model", "posrec"], [], ["--fresh"], ["--model", "stamp"]):
        assert shop.night(*QUICK, "--force", *more).code == 0
        judged = shop.config(f"judged/{shop.current}")
        assert "started_from" in shop.config()
        models.append((judged["model"], "started_from" in judged))
    fresh = ("posrec", False)
    assert models == [fresh, ("posrec", True), fresh, ("stamp", False)]


def test_a_model_of_ones_own_is_trained_every_night(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from posrec.models.registry import MODELS\nMINE = MODELS['stamp']\n"
    )
    own = ("--model", f"{tmp_path / 'mine.py'}:MINE", *QUICK, "--force")
    assert shop.night(*own).code == 0
    assert shop.night(*own).code == 0
    first = shop.home / "judged" / str(shop.records[0]["night"])
    judged = shop.config(f"judged/{shop.current}")
    assert judged["started_from"]["run"] == str(first.resolve())


def test_a_run_of_posrec_train_can_be_the_first_that_is_served(
    shop: Shop, tmp_path: Path
) -> None:
    """It has no model that was judged, so the night starts from it."""
    shop.goods.write_log(shop.log, 4)
    columns: dict[str, Any] = dict(column.split("=") for column in COLUMNS)
    data = prepared(shop.log, tmp_path / "d", **columns)
    settings = dict(pair.split("=") for pair in SETTINGS)
    fitted(data, "posrec", shop.home / "runs" / "0", settings)
    switch(shop.home / "current", Path("runs") / "0")
    assert shop.night(*QUICK, "--tolerance", "0.2").code == 0
    judged = shop.config(f"judged/{shop.current}")
    assert Path(judged["started_from"]["run"]).parent.name == "runs"


def test_a_test_day_of_a_few_clicks_promotes_nothing(shop: Shop) -> None:
    """The last days are counted back from the latest click, whose clock may be wrong."""
    assert shop.night(*COUNTED).code == 0
    shop.goods.write_log(shop.log, shop.day)
    events = [json.loads(line) for line in shop.log.read_text().splitlines()]
    often, _ = Counter(event["listing"]["id"] for event in events).most_common(1)[0]
    with shop.log.open("a") as file:
        for event in events[-3:]:
            event["event"]["time"] = f"2027{event['event']['time'][4:]}"
            event["visit"]["id"] = "late"
            event["listing"]["id"] = often
            file.write(json.dumps(event) + "\n")
    assert shop.again(*COUNTED).code == 3
    assert "only 2 samples of all clicks, fewer than 100 (--least)" in shop.reasons

"""What the order and the positions of clicks are worth: shuffled samples, tests, the command."""

import random
from pathlib import Path

import torch
from hypothesis import given, strategies as st

from posrec.data.dataset import SessionDataset
from posrec.evaluation.evaluate import Evaluation
from posrec.evaluation.metrics import rank_metrics
from posrec.experiments.positions import (
    QUESTIONS,
    ROWS,
    answer_questions,
    shuffled_samples,
)
from posrec.io import read_json
from posrec.testing import write_dataset
from tests.helpers import command

SESSIONS = st.lists(st.lists(st.integers(1, 9), min_size=2, max_size=8), min_size=1)


@given(SESSIONS, st.integers(1, 6))
def test_a_shuffled_sample_keeps_its_latest_clicks_and_its_target(
    sessions: list[list[int]], max_length: int
) -> None:
    items = torch.tensor([item for session in sessions for item in session])
    lengths = torch.tensor([0, *map(len, sessions)])
    times = torch.arange(len(sessions))
    samples = SessionDataset(items, lengths.cumsum(0), times)
    generator = torch.Generator().manual_seed(0)
    shuffled, click = shuffled_samples(samples, max_length, generator)
    assert torch.equal(shuffled.items, items[click])
    expected = [
        (session[max(0, end - max_length) : end], session[end], number)
        for number, session in enumerate(sessions)
        for end in range(1, len(session))
    ]
    assert len(shuffled) == shuffled.sessions == len(expected)
    for number, (before, target, time) in enumerate(expected):
        *clicks, last = shuffled.session(number).tolist()
        assert sorted(clicks) == sorted(before)
        assert last == target
        assert shuffled.times[number] == time


def evaluation_of(ranks: list[int]) -> Evaluation:
    by_sample = torch.tensor(ranks)
    return Evaluation(rank_metrics(by_sample), by_sample, by_sample)


def test_gains_are_in_points_of_percent_and_tested_in_pairs() -> None:
    """200 sessions of one sample. In `shuffled`, half of the ranks are past 20."""
    first = evaluation_of([1] * 200)
    half = evaluation_of([1, 40] * 100)
    evaluations = {row: [first] for row in ROWS} | {"shuffled": [half]}
    answers = answer_questions(evaluations, torch.arange(200))
    order, *others = answers[: len(QUESTIONS)]
    assert order.points == 50
    # The standard error of a share of one half in 200 is 100 * 0.5 / sqrt(199).
    assert abs(order.margin - 1.972 * 50 / 199**0.5) < 0.01
    assert order.is_shown
    assert [answer.points for answer in others] == [0, 0, 0]
    assert not any(answer.is_shown for answer in others)


def test_several_seeds_make_the_interval_wider() -> None:
    seeds = [evaluation_of([1] * 150 + [40] * 50), evaluation_of([1] * 200)]
    evaluations = dict.fromkeys(ROWS, seeds)
    answer = answer_questions(evaluations, torch.arange(200))[0]
    assert answer.points == 0
    # The same samples in both rows: the error is that of the seeds alone, with 2 degrees of
    # freedom. The standard error of each mean is 100 * 0.1768 / sqrt(2).
    assert abs(answer.margin - 4.303 * 12.5 * 2**0.5) < 0.1


def test_the_command_finds_that_positions_matter(tmp_path: Path) -> None:
    """The next item follows from the third to last."""
    draw = random.Random(0)
    sessions = []
    for _ in range(1200):
        session = draw.choices(range(60), k=3)
        for _ in range(draw.randrange(1, 6)):
            session.append((7 * session[-3] + 3) % 60)
        sessions.append([f"i{item}" for item in session])
    write_dataset(tmp_path / "shop", sessions[:1000], sessions[1000:])
    settings = ("--set", "epochs=10", "--set", "d=16", "--set", "learning_rate=0.02")
    out = tmp_path / "out"
    options = (*settings, "--out", out, "--device", "cpu", "--json")
    done = command("positions", tmp_path / "shop", *options)
    assert done.code == 0, done.err
    found = read_json(out / "positions.json")
    assert set(found["metrics"]) == set(ROWS)
    worths = [worth for worth in found["worths"] if worth["metric"] == "mrr@20"]
    for worth in worths[:2]:  # order, end
        assert worth["points"] > 0
        assert worth["p"] < 0.05
    assert (out / "positions.svg").read_text().startswith("<svg")

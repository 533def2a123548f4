"""The experiments as data: which jobs they ask for, and that they share what is the same."""

import pytest

from posrec.experiments.reproduce.grid import (
    EXPERIMENTS,
    all_jobs,
    choose_experiments,
    jobs_of,
)
from posrec.experiments.reproduce.jobs import config_of

POSREC = {
    "diginetica": "posrec",
    "yoochoose1_64": "posrec lambda2=0.5",
    "shop": "posrec",
}


def rows(experiment: str, dataset: str, label: str) -> list[str]:
    (row,) = [row for row in EXPERIMENTS[experiment].rows if row.label == label]
    return [job.row for job in jobs_of(row, dataset, 1)]


@pytest.mark.parametrize("dataset", POSREC)
def test_experiments_share_the_job_of_the_usual_posrec(dataset: str) -> None:
    best = {"yoochoose1_64": "0.5"}.get(dataset, "1")
    same = [("overall", "PosRec"), ("encodings", "LDPE"), ("anchors", "PosRec"), ("figures", "LDPE"),
            ("sensitivity", f"λ2 = {best}")]  # fmt: skip
    assert [rows(experiment, dataset, label) for experiment, label in same] == [
        [POSREC[dataset]]
    ] * 5


def test_what_a_dataset_changes() -> None:
    assert rows("overall", "diginetica", "STAMP") == ["stamp dropout=0.2"]
    assert rows("plug-in", "diginetica", "STAMP + LDPE") == [
        "stamp dropout=0.2 encoding=ldpe"
    ]
    assert rows("overall", "yoochoose1_64", "STAMP") == ["stamp"]
    assert rows("sensitivity", "yoochoose1_64", "λ2 = 1") == [
        "posrec"
    ]  # the default is 1
    assert rows("plug-in", "shop", "SASRec") == ["sasrec"]


def test_seeds_by_model_and_the_first_seed_of_all_comes_first() -> None:
    jobs = all_jobs(choose_experiments("overall"), ["shop"], seeds=5)
    of = {job.model: sum(other.model == job.model for other in jobs) for job in jobs}
    assert (of["posrec"], of["sasrec"], of["stan"], of["pop"]) == (5, 3, 1, 1)
    order = [(job.model, job.seed) for job in jobs]
    assert order[:15] == [(row.model, 0) for row in EXPERIMENTS["overall"].rows]
    assert order[15:19] == [
        ("bprmf", 1),
        ("bprmf", 2),
        ("fpmc", 1),
        ("fpmc", 2),
    ]  # one compiled step serves both
    assert order[-2:] == [("posrec", 3), ("posrec", 4)]


def test_every_job_is_asked_for_once_and_its_settings_exist() -> None:
    jobs = all_jobs(
        choose_experiments("all"),
        ["diginetica", "yoochoose1_64"],
        seeds=5,
        shared_settings={"d": 16, "hidden": 16},
    )
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        assert config_of(job).items() >= job.settings.items()
    assert {job.settings.get("d") for job in jobs if job.model == "posrec"} == {16}
    assert all("d" not in job.settings for job in jobs if job.model in ("pop", "stan"))


def test_the_figures_need_one_seed_only() -> None:
    jobs = all_jobs(choose_experiments("figures"), ["shop"], 5)
    assert [job.row for job in jobs] == ["posrec encoding=lpe", "posrec"]

"""The experiments as data: which jobs they ask for, and that they share what is the same."""

from collections import Counter

import pytest

from posrec.experiments.reproduce.grid import (
    EXPERIMENTS,
    all_jobs,
    choose_experiments,
    jobs_of,
)
from posrec.experiments.reproduce.jobs import config_of


def row_of(experiment: str, dataset: str, label: str) -> str:
    (row,) = [row for row in EXPERIMENTS[experiment].rows if row.label == label]
    (job,) = jobs_of(row, dataset, 1)
    return job.row


@pytest.mark.parametrize(
    ("dataset", "posrec", "best"),
    [
        ("diginetica", "posrec", "λ2 = 1"),
        ("yoochoose1_64", "posrec lambda2=0.5", "λ2 = 0.5"),
        ("shop", "posrec", "λ2 = 1"),
    ],
)
def test_experiments_share_the_job_of_the_usual_posrec(
    dataset: str, posrec: str, best: str
) -> None:
    assert row_of("overall", dataset, "PosRec") == posrec
    assert row_of("encodings", dataset, "LDPE") == posrec
    assert row_of("anchors", dataset, "PosRec") == posrec
    assert row_of("figures", dataset, "LDPE") == posrec
    assert row_of("sensitivity", dataset, best) == posrec


def test_what_a_dataset_changes() -> None:
    assert row_of("plug-in", "diginetica", "STAMP + LDPE") == "stamp encoding=ldpe"
    # The default is 1.
    assert row_of("sensitivity", "yoochoose1_64", "λ2 = 1") == "posrec"
    assert row_of("plug-in", "shop", "SASRec") == "sasrec"


def test_seeds_by_model_and_the_first_seed_of_all_comes_first() -> None:
    jobs = all_jobs(choose_experiments("overall"), ["shop"], seeds=5)
    order = [(job.model, job.seed) for job in jobs]
    assert order[:15] == [(row.model, 0) for row in EXPERIMENTS["overall"].rows]
    # The seeds of a model stand together: one compiled step serves both.
    assert order[15:19] == [("bprmf", 1), ("bprmf", 2), ("fpmc", 1), ("fpmc", 2)]
    assert order[-2:] == [("posrec", 3), ("posrec", 4)]
    seeds = Counter(job.model for job in jobs)
    assert [seeds[name] for name in ("posrec", "sasrec", "stan", "pop")] == [5, 3, 1, 1]


def test_every_job_is_asked_for_once_and_its_settings_exist() -> None:
    datasets = ["diginetica", "yoochoose1_64"]
    settings = {"d": 16, "hidden": 16}
    jobs = all_jobs(choose_experiments("all"), datasets, 5, settings)
    assert len({job.name for job in jobs}) == len(jobs)
    for job in jobs:
        assert config_of(job).items() >= job.settings.items()
    assert {job.settings.get("d") for job in jobs if job.model == "posrec"} == {16}
    assert all("d" not in job.settings for job in jobs if job.model in ("pop", "stan"))


def test_the_figures_need_one_seed_only() -> None:
    jobs = all_jobs(choose_experiments("figures"), ["shop"], 5)
    assert [job.row for job in jobs] == ["posrec encoding=lpe", "posrec"]

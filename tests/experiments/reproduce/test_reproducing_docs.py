"""The commands of docs/reproducing.md, and those of docs/training.md that tune, run as they are, on small shops.

Jobs are stubs with drawn ranks, and nothing is drawn into the report: every training and every figure of `all` would
take minutes, and the end-to-end test has them.
"""

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import ROOT, chain_shop, command

from posrec.data.dataset import PreparedDataset
from posrec.evaluation.metrics import rank_metrics
from posrec.experiments.reproduce import jobs, report
from posrec.experiments.reproduce.jobs import WORST, Job, JobResult, config_of, path_of, write_arrays
from posrec.io import write_json


def commands(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def drawn_job(job: Job, data: PreparedDataset, folder: Path, *_: Any) -> JobResult:
    draw = np.random.default_rng([job.seed, len(job.row)])
    ranks = torch.from_numpy(draw.integers(1, 40, len(data.test)))
    path = path_of(job, folder)
    write_arrays(path.with_suffix(".npz"), {"ranks": ranks.clamp(max=WORST).numpy().astype(np.uint8)})
    record = {
        "dataset": job.dataset, "model": job.model, "settings": dict(job.settings), "seed": job.seed,
        "fingerprint": data.fingerprint, "posrec": "0", "torch": "0", "python": "3", "machine": "none",
        "config": config_of(job), "metrics": {name: 100 * float(value) for name, value in rank_metrics(ranks).items()},
        "total_seconds": 1,
    }  # fmt: skip
    write_json(path, record)
    return JobResult(job, record, path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("diginetica", "yoochoose1_64", "shop"):
        (tmp_path / "made" / name).mkdir(parents=True)
        chain_shop(tmp_path / "made" / name, seed=1, sessions=100).path.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "draw_table", lambda *_: False)
    monkeypatch.setattr(report, "figures_by_name", lambda *_: {})
    monkeypatch.setattr(jobs, "run_job", drawn_job)
    return tmp_path


@pytest.mark.process
def test_every_command_runs(folder: Path) -> None:
    pytest.importorskip("optuna")
    shown = commands("reproducing.md") + [line for line in commands("training.md") if line.startswith("posrec tune ")]
    assert len(shown) == 8
    for line in shown:
        if "results/" in line:  # of the repository; here the results of the command above it
            (folder / "results" / "reproduction").mkdir(parents=True, exist_ok=True)
            archive = folder / "results" / "reproduction" / "jobs.tar.xz"
            subprocess.run(["tar", "cJf", archive, "-C", folder / "reproduction" / "jobs", "."], check=True)
        program, *arguments = shlex.split(line, comments=True)
        if program == "posrec":
            if "--trials" in arguments:
                arguments[arguments.index("--trials") + 1] = "1"
                arguments += ["--set", "d=8", "--epochs", "1"] if "posrec" in arguments else []
            done = command(*arguments)
            assert done.code == 0, f"{line}\n{done.err}"
        else:
            subprocess.run([program, *arguments], check=True)
    summary = json.loads((folder / "reproduction" / "summary.json").read_text())
    assert (summary["experiment"], summary["jobs"]) == ("encodings", {"wanted": 60, "missing": 0})
    rebuilt = json.loads((folder / "rebuilt" / "summary.json").read_text())
    assert (rebuilt["experiment"], rebuilt["jobs"]) == ("all", {"wanted": 254, "missing": 0})
    for name in ("report.md", "summary.json", "jobs"):
        assert (folder / "quick" / name).exists()


def test_the_time_table_counts_the_jobs_of_each_round() -> None:
    from posrec.experiments.reproduce.grid import all_jobs, choose_experiments, round_of

    text = (ROOT / "docs" / "reproducing.md").read_text(encoding="utf-8")
    rounds = [round_of(job.seed) for job in all_jobs(choose_experiments("all"), ["diginetica", "yoochoose1_64"], 5)]
    shown = re.findall(r"^\| (?:seed|PosRec's seeds)[^|]*\| (\d+) \|", text, re.MULTILINE)
    assert [int(count) for count in shown] == [rounds.count(number) for number in range(3)]
    assert f"all {len(rounds)} jobs" in text
    assert f"{len(rounds) // 2} trainings a dataset" in text

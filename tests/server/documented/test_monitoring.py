"""examples/monitoring and the table of metrics in docs/serving.md name what a server prints at
/metrics."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.server.server_process import Server

yaml = pytest.importorskip("yaml")

MONITORING = ROOT / "examples" / "monitoring"
RULES = MONITORING / "alerts.yml"
PROMTOOL = shutil.which("promtool")


def printed(server: Server) -> str:
    return server.ask("GET", "/metrics").body.decode()


def expressions() -> list[str]:
    """Every query of the dashboard and of the alert rules."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    queries = [
        target["expr"] for panel in dashboard["panels"] for target in panel["targets"]
    ]
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return queries + [rule["expr"] for rule in group["rules"]]


def test_dashboard_and_alerts_ask_for_metrics_that_the_server_has(
    plain_server: Server,
) -> None:
    text = printed(plain_server)
    series = re.findall(r"^(posrec_\w+)(?:{(.*)})? ", text, re.MULTILINE)
    names = {name for name, _ in series}
    labels = {label for _, own in series for label in own.split(",")}
    queries = " ".join(expressions())
    assert set(re.findall(r"posrec_\w+", queries)) <= names
    assert set(re.findall(r'(?:event|status)="\w+"', queries)) <= labels
    grouped = {
        label
        for group in re.findall(r"by \((.*?)\)", queries)
        for label in group.split(", ")
    }
    assert grouped - {label.partition("=")[0] for label in labels} == {
        "job",
        "instance",
    }  # which Prometheus adds


def test_the_page_lists_all_metrics(plain_server: Server) -> None:
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    table = page.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    kinds = dict(
        re.findall(r"^# TYPE (\S+) (\w+)$", printed(plain_server), re.MULTILINE)
    )
    described = {
        name: kind
        for names, kind in re.findall(r"^\| (`.*?`) \| (\w+) \|", table, re.MULTILINE)
        for name in re.findall(r"`(posrec_\w+)`", names)
    }
    assert described == kinds


@pytest.mark.skipif(PROMTOOL is None, reason="Prometheus is not installed")
def test_prometheus_accepts_the_files_and_the_alerts_fire(tmp_path: Path) -> None:
    shutil.copytree(MONITORING, tmp_path, dirs_exist_ok=True)
    shutil.copy(Path(__file__).with_name("alert_cases.yml"), tmp_path)
    (tmp_path / "posrec.key").write_text("my-key")
    for arguments in (
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "alert_cases.yml"],
    ):
        done = subprocess.run(
            [str(PROMTOOL), *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

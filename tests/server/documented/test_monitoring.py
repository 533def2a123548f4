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
PROMTOOL = shutil.which("promtool")


@pytest.fixture
def metrics(plain_server: Server) -> str:
    return plain_server.get("/metrics").body.decode()


def queries() -> list[str]:
    """Of the dashboard and of the alert rules."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    alerts = yaml.safe_load((MONITORING / "alerts.yml").read_text(encoding="utf-8"))
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    (group,) = alerts["groups"]
    return [query["expr"] for query in (*targets, *group["rules"])]


def test_dashboard_and_alerts_ask_for_metrics_that_the_server_has(metrics: str) -> None:
    series = re.findall(r"^(posrec_\w+)(?:{(.*)})? ", metrics, re.MULTILINE)
    names = {name for name, _ in series}
    pairs = {pair for _, labels in series for pair in labels.split(",")}
    labels = {pair.partition("=")[0] for pair in pairs}
    text = " ".join(queries())
    assert set(re.findall(r"posrec_\w+", text)) <= names
    assert set(re.findall(r'(?:event|status)="\w+"', text)) <= pairs
    groups = re.findall(r"by \((.*?)\)", text)
    grouped_by = {label for group in groups for label in group.split(", ")}
    added_by_prometheus = {"job", "instance"}
    assert grouped_by - labels == added_by_prometheus


def test_the_page_lists_all_metrics(metrics: str) -> None:
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    table = page.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    described = {
        name: kind
        for names, kind in re.findall(r"^\| (`.*?`) \| (\w+) \|", table, re.MULTILINE)
        for name in re.findall(r"`(posrec_\w+)`", names)
    }
    printed = re.findall(r"^# TYPE (\S+) (\w+)$", metrics, re.MULTILINE)
    assert described == dict(printed)


@pytest.mark.skipif(PROMTOOL is None, reason="Prometheus is not installed")
@pytest.mark.parametrize(
    "arguments", ["check config prometheus.yml", "test rules alert_cases.yml"]
)
def test_prometheus_accepts_the_files_and_the_alerts_fire(
    tmp_path: Path, arguments: str
) -> None:
    shutil.copytree(MONITORING, tmp_path, dirs_exist_ok=True)
    shutil.copy(Path(__file__).with_name("alert_cases.yml"), tmp_path)
    (tmp_path / "posrec.key").write_text("my-key")
    line = [str(PROMTOOL), *arguments.split()]
    done = subprocess.run(
        line, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""The server under load: a run of your own, or posrec-plus and PosRec at Diginetica's size.

    python -m benchmarks.speed.serve --workers 2
    python -m benchmarks.speed.serve --workers 2 --run runs/tonight --data shop

Without --run the weights are random; --data is a prepared dataset whose test sessions are sent. The
client runs on the same cores. Latencies on a machine with other work are upper bounds. With
--rounds the loads are repeated, and every figure is the median over the rounds.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.inputs import default_run_and_posrec, shoppers
from benchmarks.harness.results import options, write_result
from benchmarks.reliability.paced_client import paced, post
from benchmarks.reliability.served import (
    Server,
    processor_seconds,
    serving,
    wait_for_workers,
)
from posrec.runs.run import load_run

Figures = dict[str, Any]

WRK_SCRIPT = """
wrk.method = "POST"
local bodies = {}
for line in io.lines("BODIES") do bodies[#bodies + 1] = line end
request = function()
  return wrk.format(nil, "/v1/recommend", nil, bodies[math.random(#bodies)])
end
"""
SESSIONS = 2000
MILLISECONDS = {"us": 0.001, "ms": 1.0, "s": 1000.0}
PACED_CONNECTIONS = 64
SATURATING_CONNECTIONS = 64
OVERLOAD_CONNECTIONS = 2000
OVERLOAD = 3  # times the requests a second that were answered at saturation


def main() -> None:
    arguments = options(
        __doc__,
        "results/serve.json",
        items=43_097,
        rate=1000,
        seconds=60,
        workers=1,
        rounds=1,
        run="",
        data="",
    )
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = default_run_and_posrec(arguments.run, arguments.items, folder)
        report = {
            "seed": 0,
            "workers": arguments.workers,
            "models": {
                model: measure(run, folder, arguments) for model, run in runs.items()
            },
        }
    write_result(arguments.out, report)


def measure(run: Path, folder: Path, arguments: argparse.Namespace) -> Figures:
    bodies = [
        json.dumps({"session": session, "k": 20})
        for session in shoppers(run, data_for(run, arguments), SESSIONS)
    ]
    (folder / "bodies").write_text("\n".join(bodies) + "\n")
    wrk_script = folder / "post.lua"
    wrk_script.write_text(WRK_SCRIPT.replace("BODIES", str(folder / "bodies")))
    requests = [post("/v1/recommend", body.encode()) for body in bodies]
    began = time.perf_counter()
    with serving(
        run, "--workers", arguments.workers, onnx=True, forked=False
    ) as server:
        server.recommend("i1")
        first_answer = time.perf_counter() - began
        wait_for_workers(server, arguments.workers)
        rounds = [
            measure_round(server, wrk_script, requests, arguments)
            for _ in range(arguments.rounds)
        ]
    return {
        "items": load_run(run).config["items"],
        "start_to_first_answer_seconds": round(first_answer, 2),
        "loads": {
            load: medians([figures[load] for figures in rounds]) for load in rounds[0]
        },
    }


def data_for(run: Path, arguments: argparse.Namespace) -> str:
    """The dataset has the items of the run that was given."""
    return arguments.data if str(run) == arguments.run else ""


def measure_round(
    server: Server,
    wrk_script: Path,
    requests: list[bytes],
    arguments: argparse.Namespace,
) -> dict[str, Figures]:
    """The figures of each load: the latency of a single connection, a fixed rate, saturation, and
    overload. The paced client sends the fixed rates, which wrk cannot."""
    short = min(10, arguments.seconds)
    figures: dict[str, Figures] = {}

    def by_wrk(connections: int) -> Figures:
        return run_wrk(server.port, wrk_script, connections, short)

    def at_rate(rate: float, seconds: float, connections: int) -> Figures:
        return paced(server.port, requests, rate, seconds, connections)

    loads: dict[str, Callable[[], Figures]] = {
        "one connection": lambda: by_wrk(1),
        f"{arguments.rate} a second": lambda: at_rate(
            arguments.rate, arguments.seconds, PACED_CONNECTIONS
        ),
        "saturation": lambda: by_wrk(SATURATING_CONNECTIONS),
        "overload": lambda: at_rate(
            OVERLOAD * figures["saturation"]["per_second"], short, OVERLOAD_CONNECTIONS
        ),
    }
    for name, send_load in loads.items():
        processor_before = processor_seconds(server)
        load_average = os.getloadavg()[0]
        figures[name] = send_load()
        spent = processor_seconds(server) - processor_before
        figures[name] |= {
            "cpu_ms_a_request": round(1000 * spent / figures[name]["requests"], 3),
            "load_average_before": load_average,
        }
        print(name, figures[name], flush=True)
    return figures


def run_wrk(port: int, script: Path, connections: int, seconds: int) -> Figures:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
    command += ["-s", str(script), f"http://127.0.0.1:{port}"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    percentiles = re.findall(r"(50|90|99)%\s+([\d.]+)(us|ms|s)", output)
    latencies = {
        f"p{percent}_ms": float(value) * MILLISECONDS[unit]
        for percent, value, unit in percentiles
    }
    failures = re.findall(r"Non-2xx or 3xx responses: (\d+)", output)
    failures += re.findall(r"(?:connect|read|write|timeout) (\d+)", output)
    requests = int(re.findall(r"(\d+) requests in", output)[0])
    return {
        "connections": connections,
        "requests": requests,
        "per_second": round(requests / seconds),
        **latencies,
        "errors": sum(map(int, failures)),
    }


def medians(rounds: Sequence[Figures]) -> Figures:
    """The median of every figure; what is not a figure is taken from the last round."""
    result: Figures = {}
    for name, value in rounds[-1].items():
        if isinstance(value, int | float):
            median = statistics.median(figures[name] for figures in rounds)
            value = round(median, 3)
        result[name] = value
    return result


if __name__ == "__main__":
    main()

"""The server under load: a catalogue of Diginetica's size, sessions of 1 to 10 clicks, the client
on the same cores.

    python benchmarks/serve.py --workers 2
    python benchmarks/serve.py --items 1000000 --rate 100 --out results/serve_million.json

Speed does not depend on the weights, so they are random. Four loads: one connection (latency
alone), --rate requests a second from paced_client.py (`wrk` can't hold a rate), saturation, and
overload: three times as many requests a second as were answered at saturation, over 2,000
connections. Latencies measured beside other work are upper bounds; with --rounds the loads are
repeated, and every figure is the median over the rounds."""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from attacks.paced_client import paced, plain_requests
from attacks.served import processor_seconds, serving, wait_for_workers
from harness import options, saved_random_run, write_result

SCRIPT = """
wrk.method = "POST"
request = function()
  local clicks = {}
  for place = 1, math.random(1, 10) do clicks[place] = '"i' .. math.random(0, ITEMS - 1) .. '"' end
  return wrk.format(nil, "/v1/recommend", nil, '{"session":[' .. table.concat(clicks, ",") .. '],"k":20}')
end
"""


def by_wrk(port: int, script: Path, connections: int, seconds: int) -> dict[str, Any]:
    address = f"http://127.0.0.1:{port}"
    line = [
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{seconds}s",
        "--latency",
        "-s",
        str(script),
        address,
    ]
    printed = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    units = {"us": 0.001, "ms": 1.0, "s": 1000.0}
    found = {
        f"p{p}_ms": float(v) * units[u]
        for p, v, u in re.findall(r"(50|90|99)%\s+([\d.]+)(us|ms|s)", printed)
    }
    errors = sum(map(int, re.findall(r"Non-2xx or 3xx responses: (\d+)", printed)))
    errors += sum(
        map(int, re.findall(r"(?:connect|read|write|timeout) (\d+)", printed))
    )
    requests = int(re.findall(r"(\d+) requests in", printed)[0])
    counts = {
        "connections": connections,
        "requests": requests,
        "per_second": round(requests / seconds),
    }
    return {**counts, **found, "errors": errors}


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every figure; what is not a figure is that of the last round."""
    return {
        name: round(statistics.median(one[name] for one in rounds), 3)
        if isinstance(value, int | float)
        else value
        for name, value in rounds[-1].items()
    }


def main() -> None:
    given = options(
        __doc__,
        "results/serve.json",
        items=43_097,
        rate=1000,
        seconds=60,
        workers=1,
        rounds=1,
    )
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    requests = plain_requests(given.items)
    short = min(10, given.seconds)
    rounds: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as name:
        run = saved_random_run(given.items, Path(name) / "run")
        script = Path(name) / "post.lua"
        script.write_text(SCRIPT.replace("ITEMS", str(given.items)))
        began = time.perf_counter()
        with serving(
            run, "--workers", given.workers, onnx=True, forked=False
        ) as server:
            server.recommend("i1")
            first_answer = time.perf_counter() - began
            wait_for_workers(server, given.workers)
            for load in (
                "one connection",
                f"{given.rate} a second",
                "saturation",
                "overload",
            ) * given.rounds:
                before = processor_seconds(server)
                busy = os.getloadavg()[0]
                if load.endswith("a second"):
                    found = paced(server.port, requests, given.rate, given.seconds, 64)
                elif load == "overload":
                    found = paced(
                        server.port,
                        requests,
                        3 * rounds["saturation"][-1]["per_second"],
                        short,
                        2000,
                    )
                else:
                    found = by_wrk(
                        server.port, script, 64 if load == "saturation" else 1, short
                    )
                spent = processor_seconds(server) - before
                found |= {
                    "cpu_ms_a_request": round(1000 * spent / found["requests"], 3),
                    "load_average_before": busy,
                }
                rounds.setdefault(load, []).append(found)
                print(load, found, flush=True)
    report = {
        "seed": 0,
        "items": given.items,
        "workers": given.workers,
        "start_to_first_answer_seconds": round(first_answer, 2),
        "loads": {load: medians(of_load) for load, of_load in rounds.items()},
    }
    write_result(given.out, report)


if __name__ == "__main__":
    main()

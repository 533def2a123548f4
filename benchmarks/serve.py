"""The server under load: a catalogue of Diginetica's size, sessions of 1 to 10 clicks, the client on the same cores.

    python benchmarks/serve.py --seconds 60 --out results/serve.json

Speed does not depend on the weights, so they are random. Four loads: one connection (latency alone), --rate requests a
second from paced_client.py (`wrk` can't hold a rate), saturation, and overload: three times as many requests a second
as were answered at saturation, over 2,000 connections. Latencies measured beside other work are upper bounds; with
--rounds the loads are repeated, and every figure is the median over the rounds.
"""

import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fault_server import Server
from harness import parser_for, random_run, write_result
from paced_client import paced
from posrec.recommend.export.writing import write_export
from posrec.runs.run import load_run, save_run

SCRIPT = """
wrk.method = "POST"
request = function()
  local clicks = {}
  for place = 1, math.random(1, 10) do clicks[place] = '"i' .. math.random(0, ITEMS - 1) .. '"' end
  return wrk.format(nil, "/v1/recommend", nil, '{"session":[' .. table.concat(clicks, ",") .. '],"k":20}')
end
"""


def by_wrk(url: str, script: Path, connections: int, seconds: int) -> dict[str, Any]:
    line = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(script), url]
    printed = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    units = {"us": 0.001, "ms": 1.0, "s": 1000.0}
    found = {f"p{p}_ms": float(v) * units[u] for p, v, u in re.findall(r"(50|90|99)%\s+([\d.]+)(us|ms|s)", printed)}
    errors = sum(map(int, re.findall(r"Non-2xx or 3xx responses: (\d+)", printed)))
    errors += sum(map(int, re.findall(r"(?:connect|read|write|timeout) (\d+)", printed)))
    requests = int(re.findall(r"(\d+) requests in", printed)[0])
    counts = {"connections": connections, "requests": requests, "per_second": round(requests / seconds)}
    return {**counts, **found, "errors": errors}


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of every figure; what is not a figure is that of the last round."""
    return {
        name: round(statistics.median(one[name] for one in rounds), 3) if isinstance(value, int | float) else value
        for name, value in rounds[-1].items()
    }


def requests(items: int, number: int = 2000) -> list[bytes]:
    draw, made = random.Random(0), []
    for _ in range(number):
        clicks = [f"i{draw.randrange(items)}" for _ in range(draw.randint(1, 10))]
        body = json.dumps({"session": clicks, "k": 20}).encode()
        head = b"POST /v1/recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        made.append(head + body)
    return made


def main() -> None:
    parser = parser_for(__doc__, "results/serve.json")
    parser.add_argument("--items", type=int, default=43_097)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="repeat the loads and report medians")
    parser.add_argument("--connections", type=int, default=64, help="at saturation")
    parser.add_argument("--torch", action="store_true", help="no ONNX export, which takes long for large catalogues")
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_run(random_run(arguments.items, folder / "run"), folder / "run")
        if not arguments.torch:
            write_export(load_run(folder / "run"))
        (folder / "post.lua").write_text(SCRIPT.replace("ITEMS", str(arguments.items)))
        began = time.perf_counter()
        server = Server(folder / "run", "--workers", arguments.workers, onnx=not arguments.torch)
        server.ask(["i1"])
        first_answer = time.perf_counter() - began
        server.wait_for("serving", arguments.workers)
        loads: dict[str, Any] = {}
        every: dict[str, list[dict[str, Any]]] = {}
        try:
            names = ("one connection", f"{arguments.rate} a second", "saturation", "overload")
            for load in names * arguments.rounds:
                before = server.processor_seconds()
                busy = os.getloadavg()[0]
                if load.endswith("a second"):
                    found = paced(server.port, requests(arguments.items), arguments.rate, arguments.seconds, 64)
                elif load == "overload":
                    rate = 3 * loads["saturation"]["per_second"]
                    found = paced(server.port, requests(arguments.items), rate, min(10, arguments.seconds), 2000)
                else:
                    connections = 1 if load.startswith("one") else arguments.connections
                    url = f"http://127.0.0.1:{server.port}"
                    found = by_wrk(url, folder / "post.lua", connections, min(10, arguments.seconds))
                spent = server.processor_seconds() - before
                found |= {"cpu_ms_a_request": round(1000 * spent / found["requests"], 3), "load_average_before": busy}
                every.setdefault(load, []).append(found)
                loads[load] = medians(every[load])
                print(load, found, flush=True)
        finally:
            server.stop()
    report = {
        "seed": 0,
        "items": arguments.items,
        "workers": arguments.workers,
        "start_to_first_answer_seconds": round(first_answer, 2),
        "loads": loads,
    }
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()

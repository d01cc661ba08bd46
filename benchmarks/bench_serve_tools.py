"""Tool calls over HTTP: how many a second a core, and how long a call takes, as clients of other trainers ask.

    agent-rl bench serve_tools
    agent-rl bench serve_tools --clients 8 --endpoint run_code

`agent-rl serve-tools` runs as a process of its own. Each client is a thread with one connection, which asks for the 40
snippets of `tool_snippets.toml` one after the other, in random order. The exit code is 1 if a reply is not the one that
the snippet ought to get. Clients run on the same cores as the server. benchmarks/README.md explains the figures.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.command import Failure
from benchmarks.reporting import percentile, print_figures, print_table
from benchmarks.tool_processes import FAILING, SNIPPETS, children_of, processes_of

STARTED = re.compile(r"serving tools at http://[\d.]+:(\d+): (\d+) programs")
ENDING_SECONDS = 20.0
Endpoint = Literal["run", "run_code"]


@dataclass(kw_only=True)
class Options:
    """The options."""

    rounds: int = 5
    """Rounds through the endpoints."""
    passes: int = 5
    """Passes of each client over the 40 snippets a round."""
    clients: int = len(os.sched_getaffinity(0))
    """Clients at once."""
    interpreters: int = len(os.sched_getaffinity(0))
    """Warm interpreters of each weight."""
    endpoint: tuple[Endpoint, ...] = ("run", "run_code")
    """``run`` of code-judge, ``run_code`` of SandboxFusion."""
    seed: int = 0


def asked(endpoint: Endpoint, code: str) -> bytes:
    """The body of a request."""
    body = {"type": "python", "solution": code} if endpoint == "run" else {"language": "python", "code": code}
    return json.dumps(body).encode()


def succeeded(endpoint: Endpoint, body: dict[str, Any]) -> bool:
    """Whether the program of a reply ended with status 0."""
    return bool(body["run_success"]) if endpoint == "run" else body["status"] == "Success"


def client(port: int, endpoint: Endpoint, codes: Sequence[str]) -> tuple[list[float], int]:
    """Ask for the codes; seconds of each call, and how many programs did not end with status 0."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    took, failed = [], 0
    for code in codes:
        content = asked(endpoint, code)
        began = time.perf_counter()
        connection.request("POST", f"/{endpoint}", content)
        reply = connection.getresponse()
        said = reply.read()
        took.append(time.perf_counter() - began)
        if reply.status != 200:
            raise Failure(f"a call got status {reply.status}: {said[:200]!r}")
        failed += not succeeded(endpoint, json.loads(said))
    connection.close()
    return took, failed


def measure(port: int, endpoint: Endpoint, options: Options, draw: random.Random) -> tuple[float, list[float]]:
    """Calls a second of all clients, and the seconds of each call."""
    parts = [draw.sample(SNIPPETS * options.passes, len(SNIPPETS) * options.passes) for _ in range(options.clients)]
    began = time.perf_counter()
    with ThreadPoolExecutor(options.clients) as pool:
        ended = list(pool.map(lambda codes: client(port, endpoint, codes), parts))
    seconds = time.perf_counter() - began
    failed, expected = sum(fails for _, fails in ended), len(FAILING) * options.passes * options.clients
    if failed != expected:
        raise Failure(f"{failed} programs failed; {expected} of the mix do")
    took = [each for some, _ in ended for each in some]
    return len(took) / seconds, took


def spent(server: int) -> float:
    """Processor seconds of the server, of its interpreters and of the programs that they ran."""
    tree = [server, *(one for pid in children_of(server) for one in processes_of(pid))]
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in tree]
    return sum(int(ticks) for fields in stats for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(options: Options) -> Iterator[tuple[int, int]]:
    """The port and the process of a server, which ends with the block."""
    words = ["serve-tools", "--port", "0", "--interpreters", str(options.interpreters)]
    process = subprocess.Popen([sys.executable, "-m", "actors.cli", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = STARTED.match(process.stdout.readline())
        if said is None:
            raise Failure("the server did not start; it says why above")
        yield int(said[1]), process.pid
    finally:
        process.terminate()
        try:
            process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def main(options: Options) -> int:
    """Measure, and print the figures."""
    draw, cores = random.Random(options.seed), len(os.sched_getaffinity(0))
    rates: dict[str, list[float]] = {name: [] for name in options.endpoint}
    latencies: dict[str, list[float]] = {name: [] for name in options.endpoint}
    with served(options) as (port, server):
        for _ in range(2):  # the first pass starts the interpreters that have modules loaded
            client(port, options.endpoint[0], SNIPPETS)
        before = spent(server)
        for _ in range(options.rounds):
            for name in options.endpoint:
                rate, took = measure(port, name, options, draw)
                rates[name].append(rate)
                latencies[name] += took
        used = spent(server) - before
    rows = [
        [f"/{name}", statistics.median(rates[name]), 1e3 * percentile(took, 0.5), 1e3 * percentile(took, 0.99)]
        for name, took in latencies.items()
    ]
    print_table(f"{options.clients} clients, {cores} cores", ["endpoint", "calls/s", "p50 ms", "p99 ms"], rows)
    every_rate = [rate for some in rates.values() for rate in some]
    together = [each for took in latencies.values() for each in took]
    print_figures(
        {
            "serve_tools_calls_per_s_core": statistics.median(every_rate) / cores,
            "serve_tools_calls_per_cpu_s": len(together) / used,
            "serve_tools_p50_ms": 1e3 * percentile(together, 0.5),
            "serve_tools_p99_ms": 1e3 * percentile(together, 0.99),
        }
    )
    return 0

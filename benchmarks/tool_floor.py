"""The program of the floor's interpreters (see ``tool_processes.py``): fork, ``exec()``, end. Standard library only."""

# pathlib is memory that every fork would pay for:

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from actors.sandbox.inside.child import run_code
from actors.sandbox.inside.warm_up import collapse_into_huge_pages, warm_up

OWN_PASSES = 15
"""How often a snippet runs in one process to tell the time it takes by itself."""
HIGHEST_FIRST_COST = 3
"""Passes left out of that: what is built lazily is no cost of the code's own."""


def main() -> None:
    """The floor's program: warm up as the sandbox's interpreters do, then do as standard input says, line by line."""
    config = json.loads(sys.argv.pop())
    sys.path[:] = config["paths"]
    sys.stdin.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    warm_up(config["modules"], run_code)
    collapse_into_huge_pages(os.open("/proc", os.O_PATH | os.O_DIRECTORY))
    gc.collect()
    gc.freeze()
    answers.write("0\n")
    for line in sys.stdin:
        order = json.loads(line)
        if "at_once" in order:
            answers.write(f"{run_forks(order['codes'], order['at_once'])}\n")
        else:
            answers.write(f"{json.dumps(in_child(order['codes'], time_each))}\n")


def run_forks(codes: Sequence[str], at_once: int) -> int:
    """Fork a child for each, ``at_once`` alive; how many of the snippets raised."""
    alive = failed = 0
    for code in codes:
        if alive == at_once:
            failed += os.wait()[1] != 0
            alive -= 1
        if os.fork() == 0:
            run_and_end(code)
        alive += 1
    return failed + sum(os.wait()[1] != 0 for _ in range(alive))


def run_and_end(code: str) -> NoReturn:
    """The child of a call."""
    status = 1
    try:
        run_here(code)
        sys.stdout.flush()
        status = 0
    finally:
        os._exit(status)


def run_here(code: str) -> None:
    """Compile and execute."""
    exec(compile(code, "<tool>", "exec"), {"__name__": "__main__"})  # noqa: S102


def in_child(codes: Sequence[str], work: Callable[[Sequence[str]], Any]) -> Any:
    """Do ``work`` in a fork, so that this process stays as it is; its result."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            os.write(writer, json.dumps(work(codes)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        result = json.loads(answer.read())
    os.wait()
    return result


def time_each(codes: Sequence[str]) -> list[float]:
    """Median seconds of each snippet."""
    seconds: list[list[float]] = [[] for _ in codes]
    for _ in range(OWN_PASSES):
        for at, code in enumerate(codes):
            sys.stdout = io.StringIO()
            started = time.perf_counter()
            with contextlib.suppress(Exception):  # some are meant to fail
                run_here(code)
            seconds[at].append(time.perf_counter() - started)
    return [statistics.median(times[HIGHEST_FIRST_COST:]) for times in seconds]

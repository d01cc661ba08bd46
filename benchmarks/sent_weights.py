"""Weights from a learner's ranks to one engine process by gloo: for ``agent-rl bench weights --ranks``.

The processes are made by this file, with the shipped sender and receiver. The model is random values, of which each
rank holds its rows. There is no training and no engine.
"""

from __future__ import annotations

import json
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from actors.weights.transfer import bucket_bytes, receive, send
from agent_rl.messages import TransferOffer

if TYPE_CHECKING:
    from agent_rl.learning.exporting import Shares

ROWS, COLUMNS = 1024, 1024
"""The shape of each tensor: 2 MiB of bfloat16."""
WORKER = "worker"


def measured(ranks: int, mbyte: int, rounds: int) -> dict[str, float]:
    """Medians of the rounds: seconds; processor seconds, MB sent and growth of memory in MB, of the busiest rank."""
    found = [_transfer(ranks, mbyte) for _ in range(rounds)]
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def _transfer(ranks: int, mbyte: int) -> dict[str, float]:
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as stack:
        names = [f"t{number}" for number in range(mbyte // 2)]
        offer = TransferOffer(
            backend="gloo",
            address="127.0.0.1",
            port=listener.getsockname()[1],
            key="benchmark",
            senders=ranks,
            ranks=1,
            bucket_bytes=bucket_bytes(ranks),
            names=tuple(names),
            shapes=((ROWS, COLUMNS),) * len(names),
            dtypes=("bfloat16",) * len(names),
        )
        who = [WORKER, *map(str, range(ranks))]
        processes = [stack.enter_context(_process(each, offer, listener)) for each in who]
        for process in processes:
            cast("IO[str]", process.stdout).readline()  # ready
        began = time.monotonic()
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        worker, *senders = [json.loads(cast("IO[str]", process.stdout).readline()) for process in processes]
        return {
            "seconds": time.monotonic() - began,
            "worker_cpu_seconds": worker["processor"],
            **{name: max(each[key] for each in senders) for name, key in FIGURES.items()},
        }


FIGURES = {"rank_cpu_seconds": "processor", "rank_sent_mb": "sent_mb", "rank_growth_mb": "growth_mb"}


@contextmanager
def _process(who: str, offer: TransferOffer, listener: socket.socket) -> Iterator[Any]:
    given = [who, json.dumps(asdict(offer)), str(listener.fileno())]
    command = [sys.executable, "-m", "benchmarks.sent_weights", *given]
    kept = [listener.fileno()] if who == "0" else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=kept) as process:
        try:
            yield process
        finally:
            process.kill()


def main(who: str, offered: str, descriptor: str) -> None:
    """Be one of the processes: get ready, wait for a line, send or receive, say what it took."""
    import torch

    torch.set_num_threads(1)
    offer = TransferOffer(**json.loads(offered))
    rank = None if who == WORKER else int(who)
    shares = None if rank is None else _shares(offer, rank)
    print("ready", flush=True)
    sys.stdin.readline()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before, busy, sent = _memory("VmRSS"), _busy(), 0
    if rank is None or shares is None:
        receive(offer, 0, "cpu")
    else:
        listener = None if rank else socket.socket(fileno=int(descriptor))
        sent = send(offer, shares, "cpu", rank=rank, listener=listener)
    figures = {"processor": _busy() - busy, "sent_mb": sent / 1e6, "growth_mb": _memory("VmHWM") - before}
    print(json.dumps(figures), flush=True)


def _shares(offer: TransferOffer, rank: int) -> Shares:
    import torch

    from agent_rl.learning.exporting import Shares

    rows = ROWS // offer.senders
    first, last = rank * rows, ROWS if rank == offer.senders - 1 else (rank + 1) * rows
    part = slice(first, last), slice(0, COLUMNS)
    values = {name: torch.randn(last - first, COLUMNS).to(torch.bfloat16) for name in offer.names}
    shape = torch.Size((ROWS, COLUMNS))
    return Shares(
        dict.fromkeys(offer.names, (shape, torch.bfloat16)),
        {name: (part, tensor.detach) for name, tensor in values.items()},
    )


def _memory(name: str) -> float:
    """A figure of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) * 1024 / 1e6


def _busy() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(*sys.argv[1:])

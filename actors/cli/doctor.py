"""``agent-rl doctor``: what this machine has, one small trial on each device, and a text to paste into an issue."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from actors.cli.output import complain, say
from agent_rl.models.devices import Machine, gpus_here
from agent_rl.topology_checks.describe import size_text
from agent_rl.topology_checks.placement import ranges

TRIAL_SECONDS = 300.0
"""How long the trial of one device may take; importing torch takes most of it."""
PACKAGES = ("torch", "transformers", "vllm", "flash-attn", "peft", "pyzmq", "trio")
LIBRARIES = {"libnccl.so.2": "NCCL", "librccl.so.1": "RCCL"}
DRIVERS = {"NVIDIA": Path("/proc/driver/nvidia/version"), "AMD": Path("/sys/module/amdgpu/version")}
Row = tuple[str, str]
PIECE_SECONDS = 600.0
"""How long a benchmark of ``--trial`` may take."""


@dataclass(frozen=True)
class Piece:
    """A benchmark of ``--trial``, and the figures of its last line that are shown."""

    name: str
    command: Sequence[str]
    figures: Sequence[str]


def pieces(device: str, *, vllm: bool) -> list[Piece]:
    """The benchmarks of a device: a GPU also has a model of 1.7B weights and, with ``vllm``, its engine."""
    gpu = device.startswith("cuda")
    shares = ("update_share_of_matmul", "prefill_share", "decode_64_share")
    limits = (*shares, "update_tokens_per_s", "decode_64_tokens_per_s", "engine_gflops", "engine_gb_per_s")
    sizes = ("135m", "1.7b") if gpu else ("135m",)
    on = [f"actors.{role}.settings.device={device}" for role in ("learner", "rollout_generator")] if gpu else []
    sets = [part for setting in on for part in ("--set", setting)]
    reached = ("success_after_sampled_median", "success_after_greedy_median", "minutes_median")
    examples = ("quickstart", "quickstart_vllm") if vllm and gpu else ("quickstart",)
    overlap = ("overlap", "--steps", "10", "--rounds", "1", "--sft-steps", "300", *sets)
    return [
        *(
            Piece(f"{each} weights", ("limits", "--size", each, "--device", device, "--rounds", "1"), limits)
            for each in sizes
        ),
        *(Piece(each, ("learning", each, "--seeds", "1", *sets), reached) for each in examples),
        Piece("asynchronous over synchronous", overlap, ("async_over_sync", "async_over_sync_slow_tools")),
    ]


def piece_row(piece: Piece) -> Row:
    """Run a benchmark; the figures, or what its last line said instead."""
    command = [sys.executable, "-m", "benchmarks.command", *piece.command]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIECE_SECONDS, check=False)
        found = json.loads(_last_line(done.stdout))
        return piece.name, ", ".join(f"{name} {found[name]:.3g}" for name in piece.figures)
    except subprocess.TimeoutExpired:
        return piece.name, f"not over after {PIECE_SECONDS:g} s"
    except (ValueError, KeyError, TypeError):
        return piece.name, f"failed: {_last_line(done.stderr) or _last_line(done.stdout)}"


def doctor(
    *,
    trials: Annotated[bool, Parameter(negative="--no-trials", help="try an engine and a step on each device")] = True,
    devices: Annotated[
        tuple[str, ...], Parameter(help="try these in place of cpu and every GPU, as torch names them")
    ] = (),
    trial: Annotated[
        bool, Parameter(negative="", help="measure the last device, too: models, quickstart, overlap; some ten minutes")
    ] = False,
) -> int:
    """Look at this machine, and try a small engine, an update of its weights and a step of the learner on each device.

    The exit code is 1 when a trial failed.
    """
    rows = facts()
    gpus = len(gpus_here()) if Machine.here().built_for else 0
    names = devices or ("cpu", *(f"cuda:{number}" for number in range(gpus)))
    failed = False
    for name in names if trials else ():
        works, said = tried(name)
        failed = failed or not works
        rows.append((f"trial on {name}", "engine, weight update and learner step work" if works else said))
        rows += [(f"speed of {name}", said)] if works else []
    if trial and not failed:
        for piece in pieces(names[-1], vllm=find_spec("vllm") is not None):
            complain(f"{piece.name}: agent-rl bench {' '.join(piece.command)}")
            rows.append(piece_row(piece))
    say("To report a fault, paste this text into an issue:\n\n```")
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"{name.ljust(width)}  {value}")
    say("```")
    return int(failed)


def facts() -> list[Row]:
    """What this machine has, without torch. Nothing here fails because something is missing."""
    machine = Machine.here()
    rows = [
        ("agent-rl", _version("agent-rl")),
        ("python", f"{platform.python_version()} at {sys.executable}"),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("cores", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"),
        ("memory", _memory()),
        *((package, _version(package)) for package in PACKAGES),
        (
            "torch is built for",
            {"": "processors alone", "hip": "ROCm", "cuda": "CUDA"}.get(machine.built_for, "unknown"),
        ),
        *((f"driver of {vendor}", _first_line(path)) for vendor, path in DRIVERS.items()),
    ]
    found = gpus_here()
    for gpu in found:
        near = f", cores {ranges(gpu.cores)}" if gpu.cores else ""
        rows.append((f"GPU {gpu.number}", f"{gpu.name} at {gpu.bus}{near}"))
    if not found:
        rows.append(("GPUs", f"none found ({', '.join(machine.gpus)} in /dev)" if machine.gpus else "none"))
    if machine.visible is not None:
        rows.append(("visible GPUs", machine.visible or "none"))
    rows += [(name, _library(file)) for file, name in LIBRARIES.items()]
    rows += [
        ("user namespaces", _works("unshare", "--user", "--map-root-user", "true")),
        ("network namespaces", _works("unshare", "--user", "--map-root-user", "--net", "true")),
        ("cgroups", _cgroups()),
        ("shared memory", _room(Path("/dev/shm"))),  # noqa: S108 - looked at, not written
        ("disk of this folder", _room(Path.cwd())),
        ("temporary files", _room(Path(tempfile.gettempdir()))),
    ]
    return rows


def tried(device: str) -> tuple[bool, str]:
    """Run `actors.engines.small_trial` in a process. Returns whether all works, and the speed or the fault."""
    command = [sys.executable, "-m", "actors.engines.small_trial", device]
    environment = os.environ | {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return False, f"not over after {TRIAL_SECONDS:g} s"
    said = _last_line(done.stdout) or _last_line(done.stderr)
    return done.returncode == 0, said or f"ended with exit code {done.returncode}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _first_line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").partition("\n")[0].strip() or "loaded"
    except OSError:
        return "none"


def _memory() -> str:
    fields = dict(line.split(":", 1) for line in _text(Path("/proc/meminfo")).splitlines() if ":" in line)
    sizes = {name: int(value.split()[0]) * 1024 for name, value in fields.items() if value.split()[:1]}
    if "MemTotal" not in sizes:
        return "unknown"
    return f"{size_text(sizes['MemTotal'])}, {size_text(sizes.get('MemAvailable', 0))} available"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _library(file: str) -> str:
    """Where a library of collectives is: beside torch's packages, or where the system's linker looks."""
    for folder in map(Path, sys.path):
        for found in folder.glob(f"nvidia/*/lib/{file}") if folder.is_dir() else ():
            return str(found)
        inside = folder / "torch/lib" / file
        if inside.is_file():
            return str(inside)
    known = next((line for line in _output("ldconfig", "-p").splitlines() if file in line), "")
    return known.rpartition("=> ")[2] or "not found"


def _cgroups() -> str:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return f"version 2: {_first_line(Path('/sys/fs/cgroup/cgroup.controllers'))}"
    return "version 1" if Path("/sys/fs/cgroup").is_dir() else "none"


def _room(path: Path) -> str:
    try:
        usage = shutil.disk_usage(path)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    writable = "" if os.access(path, os.W_OK) else ", not writable"
    return f"{size_text(usage.free)} of {size_text(usage.total)} free at {path}{writable}"


def _works(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown ({type(error).__name__}: {command[0]})"
    return "work" if done.returncode == 0 else f"do not work: {_last_line(done.stderr)}"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""

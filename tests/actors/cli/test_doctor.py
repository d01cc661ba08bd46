"""`agent-rl doctor`: a text to paste, whatever the machine lacks; and a real trial on the processor."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from actors.cli import doctor
from actors.cli.main import main
from agent_rl.models.devices import Gpu, Machine


def test_the_text_names_what_the_machine_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--no-trials"]) == 0
    out = capsys.readouterr().out
    for name in ("python", "torch", "vllm", "NCCL", "RCCL", "user namespaces", "cgroups", "shared memory", "GPUs"):
        assert any(line.startswith(name) for line in out.splitlines()), name
    assert out.count("```") == 2
    assert "trial on" not in out


def test_a_machine_that_lacks_everything_is_described_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def absent(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("unshare")

    def not_installed(name: str) -> str:
        raise doctor.PackageNotFoundError(name)

    monkeypatch.setattr(subprocess, "run", absent)
    monkeypatch.setattr(doctor, "version", not_installed)
    monkeypatch.setattr(doctor, "_text", lambda _: "")
    monkeypatch.setattr(doctor, "DRIVERS", {"NVIDIA": tmp_path / "none"})
    monkeypatch.setattr(doctor, "gpus_here", list)
    assert main(["doctor", "--no-trials"]) == 0
    out = capsys.readouterr().out
    assert "Traceback" not in out
    assert "unknown (FileNotFoundError: unshare)" in out
    assert out.count("not installed") >= 7


def test_a_trial_that_fails_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = Gpu(0, "AMD gfx942", "0000:05:00.0", frozenset(range(48)))
    monkeypatch.setattr(doctor, "gpus_here", lambda: [gpu])
    monkeypatch.setattr(Machine, "here", lambda: Machine("hip", ["kfd"], None))
    said = {"cpu": (True, "products in GFLOP/s"), "cuda:0": (False, "RuntimeError: HIP error: out of memory")}
    monkeypatch.setattr(doctor, "tried", said.__getitem__)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "trial on cpu" in out
    assert "RuntimeError: HIP error: out of memory" in out
    assert "AMD gfx942 at 0000:05:00.0, cores 0-47" in out


@pytest.mark.slow
def test_the_processor_runs_an_engine_an_update_and_a_step_and_an_unknown_device_does_not() -> None:
    works, speed = doctor.tried("cpu")
    assert works
    assert re.fullmatch(r"products in GFLOP/s: float32 \d+, bfloat16 \d+; memory \d+ GB/s, \d+ threads", speed)
    works, fault = doctor.tried("abacus")
    assert not works
    assert "abacus" in fault
    assert "Traceback" not in fault


def test_a_trial_measures_the_last_device_and_says_what_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "tried", lambda _: (True, "fast"))
    wanted = [
        doctor.Piece("links", ("transport", "--quick"), ("calls_per_s",)),
        doctor.Piece("unknown", ("size", "--abacus"), ("lines_product",)),
    ]
    asked = []
    monkeypatch.setattr(doctor, "pieces", lambda device, **_: asked.append(device) or wanted)
    assert main(["doctor", "--trial", "--devices", "cpu", "--devices", "cpu"]) == 0
    out = capsys.readouterr().out
    assert asked == ["cpu"]
    assert re.search(r"(?m)^links +calls_per_s [\d.e+]+$", out)
    assert re.search(r"(?m)^unknown +failed: .*abacus", out)


def test_each_benchmark_of_a_trial_takes_its_options_and_a_gpu_has_more() -> None:
    from tests.examples.test_pages import options_of

    for device, vllm in (("cpu", True), ("cuda:0", False), ("cuda:0", True)):
        for piece in doctor.pieces(device, vllm=vllm):
            assert {word for word in piece.command if word.startswith("--")} <= options_of(piece.command[0])
    names = [piece.name for piece in doctor.pieces("cuda:0", vllm=True)]
    assert names == ["135m weights", "1.7b weights", "quickstart", "quickstart_vllm", "asynchronous over synchronous"]
    assert len(doctor.pieces("cpu", vllm=True)) == 3

"""Whether this machine can have the device that a setting names, found without torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

REMEDY = 'set the actor\'s device to "cpu", or to "cuda" on a host with a GPU and a torch that was built for it'
KINDS = ("cpu", "cuda", "mps", "xpu", "hpu", "npu")
"""What a device's name may begin with."""
GPU_NODES = ("nvidia[0-9]*", "dxg", "kfd", "nvhost-gpu", "nvgpu")
"""Below /dev: NVIDIA's, of Windows' subsystem for Linux, AMD's, of NVIDIA's small boards."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of GPUs without torch."""

    built_for: str
    """The accelerator that the installed torch was built for: "cuda", "hip", "" for none, "unknown"."""
    gpus: Sequence[str]
    """Device files of GPUs."""
    visible: str | None
    """``CUDA_VISIBLE_DEVICES``, or ROCm's; None when it is not set."""

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Machine:
        """The machine that this process runs on."""
        nodes = [node.name for pattern in GPU_NODES for node in Path("/dev").glob(pattern)]
        names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
        return cls(_built_for(), nodes, next((environment[name] for name in names if name in environment), None))


def device_fault(name: str, machine: Machine) -> str:
    """Why no actor of this machine can have the device, with the remedy; empty when it may have it."""
    kind, _, number = name.partition(":")
    if kind not in KINDS or (number and not number.isdecimal()) or name.endswith(":"):
        return f'{name!r} is no device; write "cpu", "cuda" or, for one of several, "cuda:1"'
    if kind != "cuda":
        return ""
    reason = ""
    if machine.built_for == "":
        reason = "the installed torch was built for processors alone"
    elif not machine.gpus:
        reason = "this machine has no GPU"
    elif machine.visible is not None and machine.visible.strip() in {"", "-1"}:
        reason = "CUDA_VISIBLE_DEVICES hides all GPUs"
    elif number:
        count = gpu_count(machine)
        if count is not None and int(number) >= count:
            reason = f"there {'is' if count == 1 else 'are'} {count} of them, counted from cuda:0"
    return f"there is no {name!r} here: {reason}; {REMEDY}" if reason else ""


def gpu_count(machine: Machine) -> int | None:
    """How many GPUs a process of this machine sees; None where that cannot be told, as on AMD's."""
    if machine.visible is not None:
        return len(machine.visible.split(","))
    return len([gpu for gpu in machine.gpus if re.fullmatch(r"nvidia\d+", gpu)]) or None


def _built_for() -> str:
    """By the text of torch's version file: importing torch takes seconds."""
    spec = find_spec("torch")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        try:
            text = (Path(place) / "version.py").read_text(encoding="utf-8")
        except OSError:
            continue
        versions = dict(re.findall(r"^(cuda|hip)\s*(?::[^=]*)?=\s*'([^']+)'", text, re.MULTILINE))
        return next(iter(versions), "")
    return "unknown"

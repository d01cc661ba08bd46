"""Whether this machine can have the device that a setting names, found without torch."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from agent_rl.files.cgroups import memory_here

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
    bfloat16: bool | None = None
    """Whether the processor multiplies bfloat16 itself, which is several times as fast as float32; without, it is
    several times as slow. None where that cannot be told."""
    cores: int | None = None
    """Those that this process may use."""
    memory: int | None = None
    """Bytes, or as many as this machine's container may have."""

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Machine:
        """The machine that this process runs on."""
        nodes = [node.name for pattern in GPU_NODES for node in Path("/dev").glob(pattern)]
        names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
        visible = next((environment[name] for name in names if name in environment), None)
        bfloat16, cores = multiplies_bfloat16(_text(Path("/proc/cpuinfo"))), len(os.sched_getaffinity(0))
        return cls(_built_for(), nodes, visible, bfloat16, cores, memory_here())


def multiplies_bfloat16(cpuinfo: str) -> bool | None:
    """Whether a processor has instructions for products in bfloat16, by the kernel's file; None: it does not say."""
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    return None if flags is None else not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags[1].split())


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


def gpu_memory() -> int | None:
    """Bytes of the smallest GPU of this machine, as nvidia-smi says; None where that cannot be told, as on AMD's."""
    words = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout
        return min(map(int, said.split())) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine, in the order of PCI buses, by which CUDA and HIP are made to number them."""

    number: int
    name: str
    bus: str
    cores: frozenset[int]
    """The processor's cores near it; empty when the machine does not say."""


def gpus_here(root: Path = Path("/")) -> list[Gpu]:
    """The GPUs of this machine, by the files of NVIDIA's and AMD's drivers, in PCI order."""
    found = [*_nvidia(root / "proc/driver/nvidia/gpus"), *_amd(root / "sys/class/kfd/kfd/topology/nodes")]
    return [
        Gpu(number, name, bus, _cores(root / "sys/bus/pci/devices" / bus / "local_cpulist"))
        for number, (bus, name) in enumerate(sorted(found))
    ]


def _nvidia(folder: Path) -> list[tuple[str, str]]:
    found = []
    for file in folder.glob("*/information"):
        fields = dict(re.findall(r"^([^:\n]+):\s*(.*)$", _text(file), re.MULTILINE))
        found.append((file.parent.name.lower(), fields.get("Model", "NVIDIA").strip()))
    return found


def _amd(folder: Path) -> list[tuple[str, str]]:
    found = []
    for file in folder.glob("*/properties"):
        fields = dict(line.split(maxsplit=1) for line in _text(file).splitlines() if len(line.split()) == 2)
        if int(fields.get("simd_count", 0)):  # the others are processors
            place, version = int(fields.get("location_id", 0)), int(fields.get("gfx_target_version", 0))
            bus = f"{int(fields.get('domain', 0)):04x}:{place >> 8:02x}:{place >> 3 & 31:02x}.{place & 7}"
            name = f"AMD gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
            found.append((bus, name))
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _cores(file: Path) -> frozenset[int]:
    """The numbers of a list such as ``0-15,32-47``."""
    cores: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", _text(file)):
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def visible_devices(gpus: Sequence[int], machine: Machine) -> dict[str, str]:
    """The environment of a process that is to see only these GPUs of those that this process sees.

    Raises ValueError when this process does not see so many.
    """
    name = "HIP_VISIBLE_DEVICES" if machine.built_for == "hip" else "CUDA_VISIBLE_DEVICES"
    seen = None if machine.visible is None else [each.strip() for each in machine.visible.split(",") if each.strip()]
    if seen is not None and gpus and max(gpus) >= len(seen):
        raise ValueError(f"GPU {max(gpus)} is wanted, and {name} shows {len(seen)}: {machine.visible}")
    numbers = [str(gpu) if seen is None else seen[gpu] for gpu in gpus]
    return {name: ",".join(numbers), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def cores_near(gpus: Sequence[int], machine: Machine, found: Sequence[Gpu]) -> frozenset[int]:
    """The cores near all of these GPUs, of those that this process sees; empty when that cannot be told."""
    seen = None if machine.visible is None else [each.strip() for each in machine.visible.split(",")]
    if seen is not None and not all(each.isdecimal() for each in seen):  # identifiers rather than numbers
        return frozenset()
    numbers = [gpu if seen is None else int(seen[gpu]) for gpu in gpus if seen is None or gpu < len(seen)]
    near = [found[number].cores for number in numbers if number < len(found)]
    return frozenset().union(*near) if len(near) == len(gpus) and all(near) else frozenset()


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

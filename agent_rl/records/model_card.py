"""The model card of a checkpoint: ``README.md`` with the metadata of Hugging Face. `card` is pure.

The card says the recipe, the data files, the figures known when it was written, the base's licence, and how to load
the checkpoint. It is no part of what `checkpoint_files.verify` checks, so that people may write into it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agent_rl.config.topology import EvaluateStage, RlStage, SftStage, Topology
from agent_rl.figures import AnswerFigures
from agent_rl.files.disk import whole
from agent_rl.models.hub import is_hub_name
from agent_rl.records.checkpoint_files import Position

FILE = "README.md"
UNKNOWN = "unknown"
LICENCES = {"apache license": "apache-2.0", "mit license": "mit", "llama": "other", "gemma": "gemma"}
"""What the first lines of a licence file say, and how Hugging Face names that licence."""
LOADED = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("PATH")
tokenizer = AutoTokenizer.from_pretrained("PATH")
```"""
OF_ALGORITHM = (
    *("groups_per_step", "samples", "keep", "resampling", "advantage", "loss", "clip_low", "clip_high", "temperature"),
    *("correction", "max_staleness", "overlong", "entropy_coefficient", "weight_decay", "updates_per_step", "epochs"),
)
"""The settings of ``[algorithm]`` that a card shows."""


@dataclass(frozen=True, slots=True)
class Base:
    """The model that the run started from. ``hub``: its name there, where that is known."""

    name: str
    licence: str
    hub: str | None = None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of problems or demonstrations; ``size`` in bytes, None where it is not on this host."""

    name: str
    use: str
    size: int | None

    @property
    def shown(self) -> str:
        """The size for people."""
        return "not on the learner's host" if self.size is None else f"{self.size:,} bytes"


@dataclass(frozen=True, slots=True)
class Measured:
    """Success in an evaluation, with its 95 % interval, of the policy after ``version`` updates."""

    name: str
    version: int
    way: str
    success: float
    low: float
    high: float
    problems: int

    @classmethod
    def of(cls, name: str, version: int, way: str, answers: AnswerFigures) -> Measured:
        """The figures of one way of answering."""
        return cls(name, version, way, answers.success, answers.low, answers.high, answers.problems)

    def cells(self) -> tuple[str, ...]:
        """The row of the card's table."""
        share, interval = f"{self.success:.1%}", f"{self.low:.1%} to {self.high:.1%}"
        return self.name, f"{self.version:,}", self.way, share, interval, f"{self.problems:,}"


def card(
    topology: Topology, position: Position, base: Base, data: Sequence[DataFile], measured: Sequence[Measured]
) -> str:
    """The text of the card."""
    name = f"{topology.run.name}, version {position.version}"
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation", "license": base.licence}
    if base.hub is not None:
        head["base_model"] = base.hub
    head["tags"] = ["reinforcement-learning", "tool-use", "agent-rl"]
    stages = "\n".join(
        f"{number}. {words}{' (reached)' if number - 1 == position.stage else ''}"
        for number, words in enumerate(_stages(topology), 1)
    )
    settings = {name: getattr(topology.algorithm, name) for name in OF_ALGORITHM}
    settings |= {"dtype": topology.model.dtype, "seed": topology.run.seed}
    if topology.model.lora is not None:
        settings |= {f"lora.{key}": value for key, value in topology.model.lora.model_dump().items()}
    environments = ", ".join(f"`{entry.name}`" for entry in topology.environments)
    files = [(f"`{file.name}`", file.use, file.shown) for file in data]
    figures = [each.cells() for each in measured]
    licence = f"`{base.licence}`, that of the base"
    if base.licence == UNKNOWN:
        licence = "unknown: look for it where the base comes from"
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n# {name}",
        f"`{base.name}`, trained by reinforcement learning with agent_rl on {environments}. Licence: {licence}.",
        "## Recipe",
        stages,
        _table(("setting", "value"), [(f"`{key}`", f"`{value}`") for key, value in settings.items()]),
        "## Data",
        _table(("file", "use", "size"), files) if files else "No files: the environments make their problems.",
        "## Figures",
        _table(("evaluation", "version", "answers", "success", "95 % interval", "problems"), figures)
        if figures
        else "No evaluation was complete when this card was written.",
        "## Use",
        LOADED,
        "`vllm serve PATH` serves it, and `agent-rl eval PATH` evaluates it with its tools.",
    ]
    return "\n\n".join(parts) + "\n"


def _stages(topology: Topology) -> Iterator[str]:
    for stage in topology.stages:
        words = f"`{stage.name}` ({stage.kind})"
        match stage:
            case SftStage() | RlStage():
                yield f"{words}: {stage.steps:,} steps, learning rate {stage.learning_rate:g}, {stage.schedule}"
            case EvaluateStage():
                yield f"{words}: {stage.problems:,} problems"
            case _:
                yield words


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def read_base(topology: Topology, directory: Path) -> Base:
    """The base in ``directory``, with its licence: that of its own card, or else what its licence file begins with."""
    path = topology.model.path
    if path is None:
        return Base("a model with fresh weights", UNKNOWN)
    head = _metadata(directory / FILE)
    known = head.get("base_model")
    hub = path if is_hub_name(path) else known if isinstance(known, str) else None
    licence = head.get("license")
    return Base(hub or Path(path).name, licence if isinstance(licence, str) else _licence_file(directory), hub)


def _metadata(path: Path) -> Mapping[str, Any]:
    """What the head of a card says; nothing where there is none that can be read."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        found = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", text, re.DOTALL)
        head = yaml.safe_load(found[1]) if found else None
    except (OSError, yaml.YAMLError):
        return {}
    return head if isinstance(head, dict) else {}


def _licence_file(directory: Path) -> str:
    for path in sorted([*directory.glob("LICEN[CS]E*"), *directory.glob("COPYING*")]):
        if path.is_file():
            begin = path.read_bytes()[:400].decode("utf-8", "replace").lower()
            return next((name for words, name in LICENCES.items() if words in begin), "other")
    return UNKNOWN


def data_files(topology: Topology, base: Path) -> list[DataFile]:
    """The files that the environments' settings and the supervised stages name, with what they are for.

    ``base``: the folder of the topology file.
    """
    named = [
        (key, text, base / entry.base)
        for entry in topology.environments
        for key, value in entry.settings.items()
        for text in ([value] if isinstance(value, str) else value if isinstance(value, list | tuple) else ())
        if isinstance(text, str) and ("file" in key or (base / entry.base / text).is_file())
    ]
    supervised = (stage for stage in topology.stages if isinstance(stage, SftStage))
    named += [(stage.name, text, base) for stage in supervised for text in stage.data]
    found: dict[tuple[str, str], DataFile] = {}
    for use, text, folder in named:
        whole_path = folder / text
        paths = [path for path in sorted(whole_path.parent.glob(whole_path.name)) if path.is_file()]
        for path in paths or [whole_path]:
            name = text if len(paths) < 2 else f"{text.rpartition('/')[0]}/{path.name}".removeprefix("/")
            found[use, name] = DataFile(name, use, path.stat().st_size if path.is_file() else None)
    return list(found.values())


def write_card(checkpoint: Path, text: str) -> None:
    """Write the card of a checkpoint. Raises DiskError."""
    with whole(checkpoint / FILE) as partial:
        partial.write_text(text, encoding="utf-8")

"""The model card of a checkpoint: ``README.md`` with the metadata of Hugging Face. `card` is pure.

The card says the recipe, the data files, the figures known when it was written, and the base's licence. It is no part
of what `checkpoint_files.verify` checks, so that people may write into it.
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
OF_ALGORITHM = (
    *("groups_per_step", "samples", "keep", "resampling", "advantage", "loss", "clip_low", "clip_high", "temperature"),
    *("correction", "max_staleness", "overlong", "entropy_coefficient", "weight_decay", "updates_per_step", "epochs"),
)
"""The settings of ``[algorithm]`` that a card shows."""


FIGURES = ("evaluation", "version", "answers", "success", "95 % interval", "problems")


@dataclass(frozen=True, slots=True)
class Base:
    """The model that the run started from. ``hub``: its name there, where that is known."""

    name: str
    licence: str
    hub: str | None = None


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


def card(topology: Topology, position: Position, base: Base, measured: Sequence[Measured]) -> str:
    """The text of the card."""
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation", "license": base.licence}
    if base.hub is not None:
        head["base_model"] = base.hub
    head["tags"] = ["reinforcement-learning", "tool-use", "agent-rl"]
    settings = {name: getattr(topology.algorithm, name) for name in OF_ALGORITHM} | {"dtype": topology.model.dtype}
    if topology.model.lora is not None:
        settings |= {f"lora.{key}": value for key, value in topology.model.lora.model_dump().items()}
    facts = [
        ("base", base.name),
        ("licence", base.licence if base.licence != UNKNOWN else "unknown: look for it where the base comes from"),
        ("environments", ", ".join(entry.name for entry in topology.environments)),
        *((f"stage {number}", words) for number, words in enumerate(_stages(topology, position.stage), 1)),
        ("data", ", ".join(_data(topology)) or "no files: the environments make their problems"),
        ("algorithm", ", ".join(f"{name} {value}" for name, value in settings.items())),
        ("seed", str(topology.run.seed)),
    ]
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n# {topology.run.name}, version {position.version}",
        _table(("trained with agent_rl", ""), facts),
        _table(FIGURES, [each.cells() for each in measured]) if measured else "No evaluation was complete yet.",
        "`vllm serve PATH` serves it, and `agent-rl eval PATH` evaluates it with its tools.",
    ]
    return "\n\n".join(parts) + "\n"


def _stages(topology: Topology, reached: int) -> Iterator[str]:
    for number, stage in enumerate(topology.stages):
        words = f"{stage.name} ({stage.kind}{', reached' if number == reached else ''})"
        match stage:
            case SftStage() | RlStage():
                yield f"{words}: {stage.steps:,} steps, learning rate {stage.learning_rate:g}, {stage.schedule}"
            case EvaluateStage():
                yield f"{words}: {stage.problems:,} problems"
            case _:
                yield words


def _data(topology: Topology) -> Iterator[str]:
    """The files that the supervised stages and the environments' settings name."""
    yield from (text for stage in topology.stages if isinstance(stage, SftStage) for text in stage.data)
    for key, value in ((key, value) for entry in topology.environments for key, value in entry.settings.items()):
        if "file" in key:
            yield from [value] if isinstance(value, str) else map(str, value if isinstance(value, list | tuple) else ())


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


def write_card(checkpoint: Path, text: str) -> None:
    """Write the card of a checkpoint. Raises DiskError."""
    with whole(checkpoint / FILE) as partial:
        partial.write_text(text, encoding="utf-8")

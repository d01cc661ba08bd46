"""The topology of an evaluation: one evaluate stage and no training, with the standard actors or those of a file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.config.source import Files, Source, first_of
from agent_rl.config.standard import DEVICE, completed
from agent_rl.evaluation.problems import EvaluationError, prompt_of
from agent_rl.files.reading_json import read_json, read_object
from agent_rl.models.hub import HubError, is_hub_name, model_files
from agent_rl.models.model_files import ModelFiles, Unreadable
from agent_rl.records.checkpoint_files import STATE_FILE
from agent_rl.rollout.prompts import OURS

EVALUATOR = "actors.evaluator:Evaluator"
LEARNER = "learner"
STAGE = "evaluation"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the model is asked, and how: ``stage`` has the settings of the evaluate stage."""

    model: Path
    environments: Sequence[Mapping[str, Any]]
    stage: Mapping[str, Any]
    seed: int


def find_model(named: str | Path, report: Callable[[str], object] = lambda _: None) -> tuple[Path, str, str | None]:
    """The Hugging Face directory of a model, a checkpoint or a run, a name for it, and the prompt of that run.

    Of a run the newest checkpoint is taken. A model on the hub is taken from the cache or fetched; ``report`` gets a
    line about it. Raises EvaluationError when there is none.
    """
    if is_hub_name(str(named)):
        try:
            return model_files(str(named), report), str(named).replace("/", "--"), None
        except HubError as error:
            raise EvaluationError(str(error)) from error
    path = Path(named).expanduser()
    if not path.is_dir():
        raise EvaluationError(
            f"there is no directory {path}: name a Hugging Face model (its directory, or organisation/name on the "
            "hub), a checkpoint or a run directory"
        )
    run = path if (path / "checkpoints").is_dir() else path.parent.parent
    prompt = _prompt_of(run)
    if (path / "config.json").is_file():
        _refuse_cut(path)
        name = path.resolve().name if prompt is None else f"{run.resolve().name}-{path.name}"
        return path.resolve(), name, prompt
    checkpoints = sorted(found for found in path.glob("checkpoints/version-*") if (found / "config.json").is_file())
    if not checkpoints:
        raise EvaluationError(
            f"{path} holds neither config.json (as a Hugging Face model does) nor checkpoints/version-* (as a run does)"
        )
    _refuse_cut(checkpoints[-1])
    return checkpoints[-1].resolve(), f"{path.resolve().name}-{checkpoints[-1].name}", prompt


def _refuse_cut(model: Path) -> None:
    """Refuse a checkpoint whose weight files have another size than when written. Checksums would take minutes."""
    state = model / STATE_FILE
    try:
        written = dict(read_json(state)["files"])
        sizes = {model / name: int(size) for name, (size, _) in written.items() if name.startswith("model")}
    except FileNotFoundError:
        return  # a model that no run has saved
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "name another checkpoint, or remove the file if the model is whole"
        raise EvaluationError(f"{state} cannot be read ({error}); {remedy}") from error
    for path, size in sizes.items():
        found = path.stat().st_size if path.is_file() else 0
        if found != size:
            raise EvaluationError(f"{path} is {found} bytes long, {size} were written: name an older checkpoint")


def _prompt_of(run: Path) -> str | None:
    if (made_with := read_object(run / "topology.json")) is None:
        return None
    named = sorted({key.rpartition(".")[0] for key in made_with if key.startswith("environments.")})
    return prompt_of(
        {"class": made_with.get(f"{key}.class_path"), "settings": made_with.get(f"{key}.settings")} for key in named
    )


def model_config(model: Path) -> tuple[int | None, str]:
    """By its config.json: how many tokens the model's sequences may have (None: unknown), and its data type."""
    try:
        files = ModelFiles.read(model)
    except Unreadable as error:
        raise EvaluationError(f"{error}; save the model again") from error
    return files.length, files.dtype


def evaluation_topology(asked: Asked, directory: Path, files: Files | None) -> dict[str, Any]:
    """The whole topology as TOML would read it, with the actors, hosts and model settings of ``files`` if given.

    Raises EvaluationError when the file's actors cannot evaluate, TopologyError when it cannot be read.
    """
    found = Source(files).data if files is not None else {}
    file = first_of(files) if files is not None else None
    actors = copy.deepcopy(completed(found).get("actors"))
    if not isinstance(actors, dict) or not isinstance(actors.get(LEARNER), dict):
        raise EvaluationError(f"{file} has no actor named {LEARNER!r}, whose place the evaluator takes")
    kept = {key: value for key, value in actors[LEARNER].items() if key in {"host", "links"}}
    actors[LEARNER] = {"class": EVALUATOR, **kept}
    for entry in actors.values():  # nothing is published, so nobody fetches it; nothing is trained, so nobody sleeps
        if isinstance(entry, dict):
            entry.pop("share", None)
            if isinstance(entry.get("links"), dict):
                for link in ("weights", DEVICE):
                    entry["links"].pop(link, None)
    model = {"path": str(asked.model), "dtype": model_config(asked.model)[1]}
    of_file = found["model"] if isinstance(found.get("model"), dict) else {}
    model |= {key: of_file[key] for key in ("dtype", "chat_template") if key in of_file}
    template = model.get("chat_template")
    if file is not None and isinstance(template, str) and template not in OURS:
        model["chat_template"] = str(file.absolute().parent / template)
    topology: dict[str, Any] = {
        "stages": [{"kind": "evaluate", "name": STAGE, "greedy": False, **asked.stage}],
        "run": {"name": "evaluation", "seed": asked.seed, "directory": str(directory)},
        "model": model,
        "environments": [dict(entry) for entry in asked.environments],
        "actors": actors,
    }
    for table in ("hosts", "security", "algorithm"):
        if table in found:
            topology[table] = copy.deepcopy(found[table])
    key_file = topology.get("security", {}).get("key_file")
    if isinstance(key_file, str) and file is not None:
        topology["security"]["key_file"] = str(file.absolute().parent / Path(key_file).expanduser())
    return topology

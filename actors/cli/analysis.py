"""``agent-rl analyze``: the entropy of tokens in rollouts of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from actors.cli.output import Mistake, complain, say, showing, table_console
from actors.cli.parameters import Positive, PositiveNumber, RunDirectory
from actors.cli.records import decode_stored


def analyze(
    directory: RunDirectory,
    /,
    *,
    step: Annotated[Positive | None, Parameter(help="the RL step of the rollouts; left out: the last one")] = None,
    rollouts: Annotated[Positive, Parameter(help="rollouts, drawn at random")] = 64,
    share: Annotated[
        float, Parameter(help="of a rollout's tokens that count as high-entropy", validator=Number(gt=0, lt=1))
    ] = 0.2,
    window: Annotated[Positive, Parameter(help="tokens after a tool response in which reflection is looked for")] = 64,
    model: Annotated[
        Path | None, Parameter(metavar="DIR", help="the model to use; left out: the nearest checkpoint of the run")
    ] = None,
    temperature: Annotated[PositiveNumber | None, Parameter(help="of the distribution; left out: the run's")] = None,
    device: Annotated[str, Parameter(help="where the model is computed, as in cuda")] = "cpu",
    microbatch_tokens: Annotated[Positive, Parameter(help="tokens of a forward pass")] = 16384,
    seed: Annotated[int, Parameter(help="of the draw of rollouts")] = 0,
    out: Annotated[
        Path | None, Parameter(metavar="DIR", help="where analysis.html and analysis.json go; left out: into RUN")
    ] = None,
) -> None:
    """Compute the entropy of each token of some rollouts: forking tokens, reflection tokens, words, a page."""
    from agent_rl.analysis.study import AnalysisError, draw, fitting_model, study, study_as_page, temperature_of
    from agent_rl.files.disk import DiskError, whole
    from agent_rl.files.reading_json import json_value
    from agent_rl.learning.finite import TrainingStoppedError
    from agent_rl.models.model_files import Unreadable
    from agent_rl.observe.report.page import html
    from agent_rl.records.checkpoint_files import STATE_FILE, CheckpointError, verify
    from agent_rl.records.entropies import EntropiesError, add_entropies
    from agent_rl.records.journal import JournalError

    if not directory.is_dir():
        raise Mistake(f"there is no run directory {directory}")
    if model is not None and not (model / "config.json").is_file():
        raise Mistake(f"--model {model}: there is no {model / 'config.json'}; name a Hugging Face directory")
    name, folder = directory.resolve().name, out or directory
    try:
        drawn = draw(directory, decode_stored, rollouts=rollouts, step=step, seed=seed)
        path, version = (model, None) if model is not None else fitting_model(directory, drawn)
        if (path / STATE_FILE).is_file():
            verify(path, training=False)
        settings: dict[str, Any] = {
            "share": share,
            "window": window,
            "temperature": temperature or temperature_of(directory),
        }
        complain(f"{len(drawn.rollouts)} rollouts through {path}")
        scored = _score(drawn.rollouts, path, device=device, microbatch_tokens=microbatch_tokens, **settings)
        figures = study(scored)
        made = {"steps": drawn.steps, "versions": drawn.versions, "model": str(path), "model_version": version}
        found = json_value({**settings, "seed": seed, **made, **figures, "notes": drawn.notes})
        page = html(study_as_page(name, figures, drawn, path, scored))
        for file, text in (("analysis.json", json.dumps(found, allow_nan=False)), ("analysis.html", page)):
            with whole(folder / file) as partial:
                partial.write_text(text, encoding="utf-8", errors="backslashreplace")
        named = zip(drawn.rollouts, scored, strict=True)
        add_entropies(folder, {trajectory.rollout: each.entropy for (trajectory, _), each in named})
    except (
        AnalysisError,
        JournalError,
        CheckpointError,
        EntropiesError,
        TrainingStoppedError,
        Unreadable,
        DiskError,
    ) as error:
        raise Mistake(str(error)) from error
    with showing(folder / "analysis.json"):
        _print(name, figures, drawn.notes)
        say(f"page: {folder / 'analysis.html'}")
        say(json.dumps({key: value for key, value in found.items() if key not in {"forking", "reflection"}}))


def _score(
    rollouts: Any, model: Path, *, share: float, window: int, temperature: float, device: str, microbatch_tokens: int
) -> list[Any]:
    """The rollouts with the entropies that the model gives to their tokens."""
    from tokenizers import Tokenizer

    from agent_rl.analysis.study import AnalysisError, Scored
    from agent_rl.analysis.tokens import highest, read_tokens, texts
    from agent_rl.learning.entropies import entropies
    from agent_rl.models.model_files import ModelFiles

    try:
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    except Exception as error:
        raise AnalysisError(f"{model / 'tokenizer.json'} cannot be read as a tokenizer: {error}") from error
    passed = entropies(
        model,
        [trajectory for trajectory, _ in rollouts],
        temperature=temperature,
        dtype=ModelFiles.read(model).dtype,
        device=device,
        microbatch_tokens=microbatch_tokens,
    )
    scored = []
    for (trajectory, problem), each in zip(rollouts, passed, strict=True):
        body = trajectory.unpack()
        pieces = texts(body.tokens.tolist(), lambda some: str(tokenizer.decode(some, skip_special_tokens=False)))
        called = {call.turn for call in trajectory.transcript.calls}
        turns = {place for place, turn in enumerate(trajectory.turn_order, 1) if turn in called}
        tokens = read_tokens(pieces, body.loss_mask > 0, turns, window)
        entropy, gap = each.entropy.astype(float), each.logprob.astype(float) - body.logprobs
        scored.append(Scored(tokens, entropy, gap, highest(entropy, share), problem))
    return scored


def _print(name: str, figures: dict[str, Any], notes: list[str]) -> None:
    from rich.table import Table

    table = Table("tokens", "number", "nats", "high", title=f"entropy of tokens in {name}", title_justify="left")
    for kind, mean in [("all", figures), *figures["kinds"].items()]:
        table.add_row(
            kind.replace("_", " "), f"{mean['tokens']:,}", f"{mean['entropy']:.3f}", f"{mean['high_share']:.1%}"
        )
    table_console().print(table)
    for kind in ("forking", "reflection"):
        say(f"{kind}: {', '.join(repr(word['word'])[1:-1] for word in figures[kind][:12]) or '-'}")
    for note in notes:
        say(f"note: {note}")

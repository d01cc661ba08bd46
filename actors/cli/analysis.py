"""``agent-rl analyze``: the entropy of tokens at the start, the middle and the end of a run's training."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from actors.cli.output import Mistake, showing, table_console
from actors.cli.parameters import Positive, PositiveNumber, RunDirectory
from actors.cli.records import decode_stored

if TYPE_CHECKING:
    from agent_rl.analysis.moments import Moment, Sources
    from agent_rl.analysis.results import Result


def analyze(
    directory: RunDirectory,
    /,
    *,
    rollouts: Annotated[Positive, Parameter(help="rollouts of each moment, drawn at random")] = 64,
    share: Annotated[
        float, Parameter(help="of a rollout's tokens that count as high-entropy", validator=Number(gt=0, lt=1))
    ] = 0.2,
    window: Annotated[Positive, Parameter(help="tokens after a tool response in which reflection is looked for")] = 64,
    model: Annotated[
        Path | None,
        Parameter(metavar="DIR", help="compute all entropies with this model; left out: the checkpoints of the run"),
    ] = None,
    temperature: Annotated[PositiveNumber | None, Parameter(help="of the distribution; left out: the run's")] = None,
    device: Annotated[str, Parameter(help="where the model is computed, as in cuda")] = "cpu",
    microbatch_tokens: Annotated[Positive, Parameter(help="tokens of a forward pass")] = 16384,
    seed: Annotated[int, Parameter(help="of the draw of rollouts")] = 0,
    out: Annotated[
        Path | None, Parameter(metavar="DIR", help="where analysis.html and analysis.json go; left out: into RUN")
    ] = None,
) -> None:
    """Compute the entropy of each token at start, middle and end: forking tokens, reflection tokens, words, a page."""
    from agent_rl.analysis.moments import AnalysisError, read_sources
    from agent_rl.analysis.page import analysis_page
    from agent_rl.analysis.results import FILE, PAGE, write_results
    from agent_rl.files.disk import DiskError, whole
    from agent_rl.learning.finite import TrainingStoppedError
    from agent_rl.models.model_files import Unreadable
    from agent_rl.records.checkpoint_files import CheckpointError
    from agent_rl.records.journal import JournalError

    if not directory.is_dir():
        raise Mistake(f"there is no run directory {directory}")
    if model is not None and not (model / "config.json").is_file():
        raise Mistake(f"--model {model}: there is no {model / 'config.json'}; name a Hugging Face directory")
    folder = out or directory
    try:
        sources = read_sources(directory, decode_stored, rollouts=rollouts, seed=seed)
        at = temperature or sources.temperature
        results = [
            _result(moment, sources, model, at, share, window, device, microbatch_tokens) for moment in sources.moments
        ]
        settings = {"share": share, "window": window, "temperature": at, "seed": seed, "rollouts": rollouts}
        name = directory.resolve().name
        html = analysis_page(name, results, sources.notes, share=share, window=window)
        with whole(folder / PAGE) as partial:
            partial.write_text(html, encoding="utf-8")
        write_results(folder / FILE, settings, results, sources.notes)
    except (AnalysisError, JournalError, CheckpointError, TrainingStoppedError, Unreadable, DiskError) as error:
        raise Mistake(str(error)) from error
    with showing(folder / FILE):
        _print(name, results, sources.notes, folder / PAGE)


def _result(
    moment: Moment,
    sources: Sources,
    named: Path | None,
    temperature: float,
    share: float,
    window: int,
    device: str,
    microbatch_tokens: int,
) -> Result:
    from agent_rl.analysis.moments import fitting_model
    from agent_rl.analysis.results import decoder, result, score
    from agent_rl.learning.entropies import entropies
    from agent_rl.models.model_files import ModelFiles
    from agent_rl.records.checkpoint_files import STATE_FILE, verify

    if named is None:
        fitting = fitting_model(moment, sources)
        path, version = fitting.path, fitting.version
    else:
        path, version = named, None
    if (path / STATE_FILE).is_file():
        verify(path, training=False)
    dtype = ModelFiles.read(path).dtype
    decode = decoder(path)
    print(f"{moment.name}: {len(moment.rollouts)} rollouts through {path}", file=sys.stderr, flush=True)
    passed = entropies(
        path,
        [each.trajectory for each in moment.rollouts],
        temperature=temperature,
        dtype=dtype,
        device=device,
        microbatch_tokens=microbatch_tokens,
    )
    scored = [
        score(drawn, each.entropy.astype(float), each.logprob.astype(float), decode, share=share, window=window)
        for drawn, each in zip(moment.rollouts, passed, strict=True)
    ]
    return result(moment, path, version, scored)


def _print(name: str, results: Sequence[Result], notes: Sequence[str], page: Path) -> None:
    from rich.table import Table

    from agent_rl.analysis.tokens import KINDS
    from agent_rl.files.reading_json import json_value

    table = Table("", title=f"entropy of tokens in {name}, in nats", title_justify="left")
    for result in results:
        table.add_column(result.moment.name, justify="right")
    table.add_row("RL step", *(f"{each.moment.step:,}" for each in results))
    table.add_row("rollouts", *(f"{each.study.rollouts:,}" for each in results))
    table.add_row("model", *(each.model.name for each in results))
    table.add_row("gap to the sampling", *(f"{each.study.gap:.4f}" for each in results))
    for kind in ("all", *KINDS[1:]):
        means = [each.study.all if kind == "all" else each.study.kinds[kind] for each in results]
        shown = (f"{mean.entropy:.3f} ({100 * mean.high_share:.0f} % high)" if mean.tokens else "-" for mean in means)
        table.add_row(kind.replace("_", " "), *shown)
    for words in ("forking", "reflection"):
        lists = (", ".join(repr(word.word)[1:-1] for word in getattr(each.study, words)[:8]) for each in results)
        table.add_row(words, *lists)
    table_console().print(table)
    for note in notes:
        print(f"note: {note}")
    print(f"page: {page}")
    figures = {each.moment.name: each.figures() for each in results}
    print(json.dumps(json_value({"page": str(page), "moments": figures}), allow_nan=False), flush=True)

"""``agent-rl data``: files of problems or conversations in, a file out, and the counts of what became of their rows."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, ParamSpec

from cyclopts import App, Parameter
from rich.table import Table

from actors.cli.output import Mistake, complain, say
from actors.cli.parameters import Positive, Share, several
from agent_rl.config.selection import Difficulty, Solved
from agent_rl.data.conversations import (
    UNKNOWN_LAYOUT,
    NoConversation,
    chat_format_of,
    conversation,
    row_fault,
    spells_out,
    tool_turn_without_call,
    written,
)
from agent_rl.data.demonstrations import demonstration
from agent_rl.data.fetch import Request
from agent_rl.data.fetch import fetch as fetch_dataset
from agent_rl.data.filters import ByDifficulty, Decontaminate, Deduplicate, Filter, Integers, Review, Tally, renamed
from agent_rl.data.rows import DataError, Row, rows_of, writer
from agent_rl.environments.base import TaskError
from agent_rl.environments.maths import Maths
from agent_rl.environments.task_files import problem_of
from agent_rl.evaluation.problems import EvaluationError
from agent_rl.evaluation.results import load_results
from agent_rl.files.disk import DiskError, whole
from agent_rl.models.hub import HubError
from agent_rl.observe.live import SteadyConsole
from agent_rl.rollout.prompts import PromptError
from agent_rl.rollout.supervised import sequences

if TYPE_CHECKING:
    from agent_rl.rollout.prompts import ChatFormat

app = App("data")
Parameters = ParamSpec("Parameters")
Files = Annotated[tuple[str, ...], Parameter(name="FILE", help="JSONL (also .gz) or parquet, or globs")]
Out = Annotated[Path, Parameter(metavar="FILE", help="the new file; its ending names the format")]
Ids = Annotated[
    Path | None, Parameter(metavar="FILE", help="also write the kept ids, one a line, for stages.N.filter.ids")
]

Columns = Annotated[
    str,
    Parameter(
        metavar="NEW=OLD,...",
        help="rename columns, as in problem=question,answer=extra_info.gold (a dot leads into a column of columns)",
    ),
]


def subject(make: Callable[Parameters, dict[str, int]]) -> Callable[Parameters, None]:
    """A command of ``agent-rl data``: it makes the file ``out`` and returns the counts that are shown."""

    @wraps(make)
    def command(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            figures = make(*arguments, **options)
        except DiskError as error:
            raise Mistake(error.reason) from error
        except (DataError, TaskError, EvaluationError, HubError) as error:
            raise Mistake(str(error)) from error
        except OSError as error:
            raise Mistake(f"{error.filename}: {error.strerror}") from error
        place = f": {options['out']}" if "out" in options else ""
        table = Table("rows", "number", title=make.__name__ + place, title_justify="left")
        for name, value in figures.items():
            table.add_row(name.replace("_", " "), f"{value:,}")
        SteadyConsole().print(table)
        say(json.dumps(figures), flush=True)

    return app.command(command)


@subject
def fetch(
    dataset: Annotated[str, Parameter(name="DATASET", help="its name on the hub, as in openai/gsm8k")],
    /,
    *,
    config: Annotated[str, Parameter(help="one of its configurations; left out: its default, or main")] = "",
    split: Annotated[str, Parameter(help="one of its splits; left out: each, in a file of its own")] = "",
    revision: Annotated[str, Parameter(help="a branch, tag or commit; left out: the newest")] = "",
    columns: Columns = "",
    out: Annotated[Path | None, Parameter(metavar="DIR", help="the folder of the files; left out: data/NAME")] = None,
) -> dict[str, int]:
    """Write a data set of the Hugging Face hub as task files."""
    if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", dataset):
        raise DataError(f"{dataset!r} is no name of a data set on the hub, ORGANISATION/NAME, as in openai/gsm8k")
    request = Request(dataset, config, split, revision, _columns(columns))
    folder = out or Path("data") / "-".join(filter(None, (dataset.rpartition("/")[2], config)))
    return fetch_dataset(request, folder, complain)


@subject
def convert(
    files: Files,
    /,
    *,
    out: Out,
    columns: Columns = "",
    model: Annotated[
        str | None,
        Parameter(help="also count prompts that this model's sequences have no room for, and texts of control tokens"),
    ] = None,
    max_tokens: Annotated[
        Positive | None, Parameter(help="of a prompt; left out: what --model says a sequence has")
    ] = None,
    prompt: Annotated[Literal["plain", "rstar2"], Parameter(help="how problems are put")] = "rstar2",
    drop: Annotated[bool, Parameter(help="leave out the rows that are counted as faulty")] = False,
) -> dict[str, int]:
    """Write rows in another format (JSONL, also gzipped; parquet)."""
    new_names = _columns(columns)
    tally, review = Tally(), Review(*_prompts(model, max_tokens, prompt))
    with writer(out) as write:
        for where, found in rows_of(files, Path.cwd()):
            row = renamed(found, new_names, where)
            faults = review.faults(row, where)
            if tally.add(faults[0] if faults and drop else ""):
                write(row)
    for line in review.found.lines():
        say(line)
    return tally.figures() | ({} if drop else review.counts())


def _columns(text: str) -> dict[str, str]:
    """Old names of columns by new ones. Raises DataError."""
    pairs = [part.partition("=") for part in text.split(",") if text]
    found = {new.strip(): old.strip() for new, _, old in pairs}
    if not all(found) or not all(found.values()) or len(found) < len(pairs):
        raise DataError(
            f"--columns: {text!r} is not NEW=OLD,..., as in problem=question,answer=final, each new name once"
        )
    return found


def _prompts(
    model: str | None, max_tokens: int | None, prompt: Literal["plain", "rstar2"]
) -> tuple[ChatFormat | None, int]:
    """How prompts are written, and their most tokens; None and 0 when no model was named. Raises DataError."""
    if model is None:
        if max_tokens is not None:
            raise DataError("--max-tokens needs a tokenizer to count with: name the --model that will be trained")
        return None, 0
    chat, length = chat_format_of(model, {"": Maths(seed=0, base=Path(), prompt=prompt)})
    longest = max_tokens or length
    if longest is None:
        raise DataError(f"--model {model}: its config.json does not say how long sequences may be; give --max-tokens")
    return chat, longest


@subject
def integers(files: Files, /, *, out: Out, ids: Ids = None) -> dict[str, int]:
    """Keep problems whose answer is an integer."""
    return _filtered(files, out, ids, Integers())


@subject
def decontaminate(
    files: Files,
    /,
    *,
    against: Annotated[tuple[str, ...], several("FILE", "the evaluation files")],
    out: Out,
    ids: Ids = None,
    n: Annotated[Positive, Parameter(help="words in a row")] = 8,
    share: Annotated[Share, Parameter(help="drop only where so large a share of n-grams is common; 0: any")] = 0.0,
) -> dict[str, int]:
    """Drop problems that share 8 words in a row with an evaluation problem."""
    problems = (problem_of(row, where) for where, row in rows_of(against, Path.cwd()))
    return _filtered(files, out, ids, Decontaminate(problems, n, share))


@subject
def deduplicate(files: Files, /, *, out: Out, ids: Ids = None) -> dict[str, int]:
    """Keep each problem once."""
    return _filtered(files, out, ids, Deduplicate())


@subject
def difficulty(
    files: Files,
    /,
    *,
    results: Annotated[tuple[Path, ...], several("DIR", "of agent-rl eval")],
    out: Out,
    ids: Ids = None,
    below: Annotated[Share, Parameter(help="keep shares of right answers below this")] = 1.0,
    at_least: Annotated[Share, Parameter(help="and of at least this")] = 0.0,
    drop_unsolved: Annotated[bool, Parameter(help="also drop what is never solved")] = False,
) -> dict[str, int]:
    """Drop problems that a model always solves, by results of agent-rl eval."""
    if not at_least < below:
        raise DataError(f"--at-least {at_least:g} is not below --below {below:g}: no problem would be kept")
    solved: dict[str, Solved] = {}
    for path in results:
        for result in load_results(path):
            solved[result.problem] = solved.get(result.problem, Solved()) + result.solved
    rule = Difficulty(below=below, at_least=at_least, drop_unsolved=drop_unsolved)
    return _filtered(files, out, ids, ByDifficulty(solved, rule))


@subject
def sft(
    files: Files,
    /,
    *,
    out: Out,
    model: Annotated[
        str | None, Parameter(metavar="DIR", help="count tokens with this model's tokenizer and chat template")
    ] = None,
    max_tokens: Annotated[Positive | None, Parameter(help="drop longer conversations")] = None,
) -> dict[str, int]:
    """Make conversations with tool calls ready for an sft stage; rows that cannot be trained on are left out."""
    tally = Tally()
    turns = calls = tokens = trained = controls = 0
    chat = chat_format_of(model)[0] if model else None
    if max_tokens and chat is None:
        raise DataError("--max-tokens needs a tokenizer to count with: name the --model that will be trained")
    with writer(out) as write:
        name = ""
        for where, row in rows_of(files, Path.cwd()):
            before, name = name, where.rpartition(":")[0]
            try:
                messages, tools = conversation(row)
            except NoConversation as error:
                if str(error) == UNKNOWN_LAYOUT and name != before:  # the first row of a file
                    raise DataError(row_fault(error, row, where)) from error
                tally.add(str(error), where)
                continue
            if tool_turn_without_call(messages):
                tally.add("tool_turn_without_a_call", where)
                continue
            if chat is not None:
                try:
                    found = sequences(chat, messages, tools)
                except PromptError as error:
                    raise DataError(f"{where}: {error}") from error
                if max_tokens and any(len(each) > max_tokens for each, _ in found):
                    tally.add("too_long", where)
                    continue
                tokens += sum(len(each) for each, _ in found)
                trained += sum(sum(mask) for _, mask in found)
                controls += spells_out(chat, row)
            tally.add("")
            assistants = [message["content"] for message in messages if message["role"] == "assistant"]
            turns += len(assistants)
            calls += sum(content.count("<tool_call>") for content in assistants)
            kept = {key: row[key] for key in ("id", "source") if key in row}
            write({**kept, "messages": list(map(written, messages)), **({"tools": tools} if tools else {})})
    for line in tally.lines():
        say(line)
    counted = {"turns_of_the_assistant": turns, "tool_calls": calls}
    of_model = {"tokens": tokens, "tokens_trained_on": trained, "with_control_tokens": controls}
    return tally.figures() | counted | (of_model if model else {})


@subject
def demonstrate(
    files: Files,
    /,
    *,
    out: Out,
    number: Annotated[Positive, Parameter(help="of demonstrations")],
    rest: Annotated[
        Path | None, Parameter(metavar="FILE", help="also write the rows that are not shown, for training")
    ] = None,
    seed: Annotated[int, Parameter(help="of the choice")] = 0,
) -> dict[str, int]:
    """Make conversations for an sft stage of problems with an `equation`, or with GSM8K's annotations in `solution`."""
    rows = [(row, demonstration(row)) for _, row in rows_of(files, Path.cwd())]
    able = [index for index, (_, shown) in enumerate(rows) if shown is not None]
    if len(able) < number:
        raise DataError(
            f"{len(able):,} of {len(rows):,} rows have an `equation` or an annotated `solution` whose value is their "
            f"answer, fewer than --number {number:,}"
        )
    chosen = random.Random(seed).sample(able, number)
    with writer(out) as write:
        for index in chosen:
            row, shown = rows[index]
            write({**({"id": row["id"]} if "id" in row else {}), "messages": shown})
    if rest:
        with writer(rest) as write:
            for index in sorted(set(range(len(rows))) - set(chosen)):
                write(rows[index][0])
    return {"rows": len(rows), "demonstrable": len(able), "demonstrations": number, "rest": len(rows) - number}


def _filtered(files: Sequence[str], out: Path, ids: Path | None, chosen: Filter) -> dict[str, int]:
    tally = Tally()
    with ExitStack() as stack:
        write = stack.enter_context(writer(out))
        name_id = stack.enter_context(_id_file(ids, out)) if ids else None
        for where, row in rows_of(files, Path.cwd()):
            if tally.add(chosen.reason(problem_of(row, where))):
                write(row)
                if name_id is not None:
                    name_id(row, where)
    return tally.figures()


@contextmanager
def _id_file(path: Path, out: Path) -> Iterator[Callable[[Row, str], None]]:
    if path.exists() or path.absolute() == out.absolute():
        raise DataError(f"--ids {path} {'exists' if path.exists() else 'is --out'}: name another file")
    with whole(path) as partial, partial.open("w", encoding="utf-8") as file:

        def name_id(row: Row, where: str) -> None:
            if row.get("id") is None:
                raise DataError(f"{where}: --ids needs an id in every row; use the --out file instead")
            file.write(f"{row['id']}\n")

        yield name_id

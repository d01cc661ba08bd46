"""``agent-rl data``: data sets or files in, files out, and the counts of what became of their rows."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, ParamSpec

from cyclopts import App, Parameter
from rich.table import Table

from actors.cli.output import Mistake, complain, say
from actors.cli.parameters import Positive
from agent_rl.data.conversations import (
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
from agent_rl.data.layouts import UNKNOWN_LAYOUT, NoConversation
from agent_rl.data.review import Tally
from agent_rl.data.rows import DataError, rows_of, writer
from agent_rl.environments.base import TaskError
from agent_rl.files.disk import DiskError
from agent_rl.models.hub import HubError
from agent_rl.observe.live import SteadyConsole
from agent_rl.rollout.prompts import PromptError
from agent_rl.rollout.supervised import sequences

app = App("data")
Parameters = ParamSpec("Parameters")
Files = Annotated[tuple[str, ...], Parameter(name="FILE", help="JSONL (also .gz) or parquet, or globs")]
Out = Annotated[Path, Parameter(metavar="FILE", help="the new file; its ending names the format")]


def subject(make: Callable[Parameters, dict[str, int]]) -> Callable[Parameters, None]:
    """A command of ``agent-rl data``: it makes the file ``out`` and returns the counts that are shown."""

    @wraps(make)
    def command(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        try:
            figures = make(*arguments, **options)
        except DiskError as error:
            raise Mistake(error.reason) from error
        except (DataError, TaskError, HubError) as error:
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
    columns: Annotated[
        str,
        Parameter(
            metavar="NEW=OLD,...",
            help="rename columns, as in problem=question,answer=extra_info.gold (a dot leads into a column of columns)",
        ),
    ] = "",
    out: Annotated[Path | None, Parameter(metavar="DIR", help="the folder of the files; left out: data/NAME")] = None,
) -> dict[str, int]:
    """Write a data set of the Hugging Face hub as task files."""
    if not re.fullmatch(r"([\w.-]+/)?[\w.-]+", dataset):
        raise DataError(f"{dataset!r} is no name of a data set on the hub, ORGANISATION/NAME, as in openai/gsm8k")
    request = Request(dataset, config, split, revision, _columns(columns))
    folder = out or Path("data") / "-".join(filter(None, (dataset.rpartition("/")[2], config)))
    return fetch_dataset(request, folder, complain)


def _columns(text: str) -> dict[str, str]:
    """Old names of columns by new ones. Raises DataError."""
    pairs = [part.partition("=") for part in text.split(",") if text]
    found = {new.strip(): old.strip() for new, _, old in pairs}
    if not all(found) or not all(found.values()) or len(found) < len(pairs):
        raise DataError(
            f"--columns: {text!r} is not NEW=OLD,..., as in problem=question,answer=final, each new name once"
        )
    return found


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
    chat = chat_format_of(model) if model else None
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

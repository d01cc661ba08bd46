"""``agent-rl data``: files of problems or conversations in, a file out, and the counts of what became of their rows."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from agent_rl.data.conversations import NoConversation, chat_format_of, conversation
from agent_rl.data.filters import Decontaminate, Deduplicate, Difficulty, Filter, Integers, Tally
from agent_rl.data.review import Review, renamed
from agent_rl.data.rows import DataError, Row, rows_of, writer
from agent_rl.environments.base import TaskError
from agent_rl.environments.task_files import problem_of
from agent_rl.evaluation.errors import EvaluationError
from agent_rl.evaluation.results import load_results
from agent_rl.files.disk import DiskError, whole
from agent_rl.observe.live import SteadyConsole

if TYPE_CHECKING:
    from agent_rl.messages import Problem


def prepare(options: argparse.Namespace, mistake: Callable[[str], int]) -> int:
    """The command; returns the exit code."""
    try:
        figures = PREPARE[options.subject](options)
    except (DataError, TaskError, DiskError, EvaluationError) as error:
        return mistake(str(error))
    except OSError as error:
        return mistake(f"{error.filename}: {error.strerror}")
    table = Table("rows", "number", title=f"{options.subject}: {options.out}", title_justify="left")
    for name, value in figures.items():
        table.add_row(name.replace("_", " "), f"{value:,}")
    SteadyConsole().print(table)
    print(json.dumps(figures), flush=True)
    return 0


def convert(options: argparse.Namespace) -> dict[str, int]:
    """Rows in another format, their columns renamed; what training would refuse of them is counted and named."""
    tally, review = Tally(), Review(_prompt_length(options))
    with writer(options.out) as write:
        for where, found in rows_of(options.files, Path.cwd()):
            row = renamed(found, options.columns, where)
            faults = review.faults(row, where)
            if tally.add(faults[0] if faults and options.drop else ""):
                write(row)
    for line in review.lines():
        print(line)
    return tally.figures() | ({} if options.drop else review.counts())


def _prompt_length(options: argparse.Namespace) -> Callable[[Problem], bool] | None:
    """Whether a problem's prompt is too long; None when no model was named to tell. Raises DataError."""
    if options.model is None:
        if options.max_tokens is not None:
            raise DataError("--max-tokens needs a tokenizer to count with: name the --model that will be trained")
        return None
    chat, length = chat_format_of(options.model, options.prompt)
    longest = options.max_tokens or length
    if longest is None:
        raise DataError(
            f"--model {options.model}: its config.json does not say how long sequences may be; give --max-tokens"
        )
    return lambda problem: bool(chat.too_long([problem], longest))


def integers(options: argparse.Namespace) -> dict[str, int]:
    """Problems whose answer is an integer."""
    return _filtered(options, Integers())


def decontaminate(options: argparse.Namespace) -> dict[str, int]:
    """Problems without an n-gram of the evaluation files."""
    against = (problem_of(row, where) for where, row in rows_of(options.against, Path.cwd()))
    return _filtered(options, Decontaminate(against, options.n, options.share))


def deduplicate(options: argparse.Namespace) -> dict[str, int]:
    """Each problem once."""
    return _filtered(options, Deduplicate())


def difficulty(options: argparse.Namespace) -> dict[str, int]:
    """Problems that a model solves now and then, by the results of ``agent-rl eval``."""
    if not options.least < options.most:
        raise DataError(f"--at-least {options.least:g} is not below --below {options.most:g}: no problem would be kept")
    right: dict[str, tuple[int, int]] = {}
    for path in options.results:
        for result in load_results(path):
            correct, samples = right.get(result.problem, (0, 0))
            right[result.problem] = (correct + result.correct, samples + result.samples)
    shares = {problem: Fraction(*counts) for problem, counts in right.items()}
    chosen = Difficulty(shares, least=options.least, most=options.most, unsolved=not options.drop_unsolved)
    return _filtered(options, chosen)


def sft(options: argparse.Namespace) -> dict[str, int]:
    """Conversations in the one form that an sft stage trains on; with ``--model``, those that fit, with their tokens."""
    tally = Tally()
    turns = calls = tokens = trained = 0
    encode = chat_format_of(options.model)[0].conversation_tokens if options.model else None
    if options.max_tokens and encode is None:
        raise DataError("--max-tokens needs a tokenizer to count with: name the --model that will be trained")
    with writer(options.out) as write:
        for _, row in rows_of(options.files, Path.cwd()):
            try:
                messages = conversation(row)
            except NoConversation as error:
                tally.add(str(error))
                continue
            if encode is not None:
                found, mask = encode(messages)
                if options.max_tokens and len(found) > options.max_tokens:
                    tally.add("too_long")
                    continue
                tokens, trained = tokens + len(found), trained + sum(mask)
            tally.add("")
            assistants = [message["content"] for message in messages if message["role"] == "assistant"]
            turns += len(assistants)
            calls += sum(content.count("<tool_call>") for content in assistants)
            kept = {key: row[key] for key in ("id", "source") if key in row}
            write({**kept, "messages": messages})
    counted = {"turns_of_the_assistant": turns, "tool_calls": calls}
    return tally.figures() | counted | ({"tokens": tokens, "tokens_trained_on": trained} if encode else {})


def _filtered(options: argparse.Namespace, chosen: Filter) -> dict[str, int]:
    tally = Tally()
    with ExitStack() as stack:
        write = stack.enter_context(writer(options.out))
        name_id = stack.enter_context(_id_file(options.ids, options.out)) if options.ids else None
        for where, row in rows_of(options.files, Path.cwd()):
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


PREPARE: dict[str, Callable[[argparse.Namespace], dict[str, int]]] = {
    made.__name__: made for made in (convert, integers, decontaminate, deduplicate, difficulty, sft)
}
"""By subject."""

"""What ``agent-rl data`` takes."""

from __future__ import annotations

import argparse
from pathlib import Path

from actors.cli.evaluation.arguments import positive

SUBJECTS = {
    "convert": "write rows in another format (JSONL, also gzipped; parquet)",
    "integers": "keep problems whose answer is an integer",
    "decontaminate": "drop problems that share 8 words in a row with an evaluation problem",
    "deduplicate": "keep each problem once",
    "difficulty": "drop problems that a model always solves, by results of agent-rl eval",
    "sft": "make conversations with tool calls ready for an sft stage",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a parser a subject."""
    subjects = parser.add_subparsers(required=True, metavar="SUBJECT", dest="subject")
    made = {}
    for name, text in SUBJECTS.items():
        subject = made[name] = subjects.add_parser(name, help=text, description=text)
        subject.add_argument("files", nargs="+", metavar="FILE", help="JSONL (also .gz) or parquet, or globs")
        subject.add_argument(
            "--out", type=Path, required=True, metavar="FILE", help="the new file; its ending names the format"
        )
        if name not in {"convert", "sft"}:
            subject.add_argument(
                "--ids", type=Path, metavar="FILE", help="also write the kept ids, one a line, for stages.N.filter.ids"
            )
    rows = made["convert"]
    rows.add_argument(
        "--columns",
        type=columns,
        default={},
        metavar="NEW=OLD,...",
        help="rename columns, as in problem=question,answer=extra_info.gold (a dot leads into a column of columns)",
    )
    rows.add_argument(
        "--model", metavar="MODEL", help="also count prompts that this model's sequences have no room for"
    )
    rows.add_argument("--max-tokens", type=positive, help="of a prompt (default: what --model says a sequence has)")
    rows.add_argument("--prompt", choices=("plain", "rstar2"), default="rstar2", help="how problems are put (rstar2)")
    rows.add_argument("--drop", action="store_true", help="leave out the rows that are counted as faulty")
    contaminated = made["decontaminate"]
    contaminated.add_argument("--against", nargs="+", required=True, metavar="FILE", help="the evaluation files")
    contaminated.add_argument("--n", type=positive, default=8, help="words in a row (default 8)")
    contaminated.add_argument(
        "--share",
        type=share,
        default=0.0,
        help="drop only where so large a share of n-grams is common (default 0: any)",
    )
    results = made["difficulty"]
    results.add_argument("--results", nargs="+", type=Path, required=True, metavar="DIR", help="of agent-rl eval")
    results.add_argument(
        "--below", type=share, default=1.0, dest="most", help="keep shares of right answers below this (1)"
    )
    results.add_argument("--at-least", type=share, default=0.0, dest="least", help="and of at least this (0)")
    results.add_argument("--drop-unsolved", action="store_true", help="also drop what is never solved")
    chats = made["sft"]
    chats.add_argument("--model", metavar="DIR", help="count tokens with this model's tokenizer and chat template")
    chats.add_argument("--max-tokens", type=positive, help="drop longer conversations")


def columns(text: str) -> dict[str, str]:
    """Old names of columns by new ones."""
    pairs = [part.partition("=") for part in text.split(",")]
    found = {new.strip(): old.strip() for new, _, old in pairs}
    if not all(found) or not all(found.values()) or len(found) < len(pairs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NEW=OLD,..., as in problem=question,answer=final, each new name once"
        )
    return found


def share(text: str) -> float:
    """A number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return number

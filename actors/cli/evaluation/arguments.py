"""What ``agent-rl eval`` takes."""

from __future__ import annotations

import argparse
from pathlib import Path

from agent_rl.config.examples import topology_file

DIRECTORY = Path("evaluations")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add them to a parser."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a Hugging Face directory, a checkpoint, a run (its newest), or a name on the hub, as in organisation/name",
    )
    parser.add_argument(
        "--data", nargs="+", default=[], metavar="FILE", help="problems: JSONL (also .gz) or parquet, or globs"
    )
    parser.add_argument("--n", type=positive, default=16, help="answers sampled of each problem (default 16)")
    parser.add_argument("--problems", type=positive, metavar="N", help="ask the first N problems alone")
    parser.add_argument("--temperature", type=positive_number, default=0.6, help="default 0.6")
    parser.add_argument(
        "--max-tokens", type=positive, default=30720, help="of a response, tools included (default 30720)"
    )
    parser.add_argument("--max-turns", type=positive, default=30, help="default 30")
    parser.add_argument("--prompt", choices=("plain", "rstar2"), help="default: as the run was, else rstar2")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"where journal and results go (default {DIRECTORY}/ and the model's name)",
    )
    parser.add_argument(
        "--topology", type=topology_file, metavar="FILE", help="take actors, hosts and model settings from this file"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help="as of agent-rl run: --set actors.rollout_generator.settings.device=cuda",
    )
    parser.add_argument("--show-problems", action="store_true", help="print a line a problem, too")
    parser.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("A", "B"),
        help="instead: B's results against A's, on the same problems",
    )


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return number


def positive_number(text: str) -> float:
    """A number above 0, and not infinite."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number

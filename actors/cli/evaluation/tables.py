"""Results as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from actors.cli.output import table_console
from agent_rl.evaluation.results import GROUPINGS, ProblemResult
from agent_rl.groups.measures import PairedComparison
from agent_rl.observe.replicas import DASH


def print_results(name: str, found: Mapping[str, Any], problems: Sequence[ProblemResult]) -> None:
    """The figures of everything, by file, subject and level, and of each problem given."""
    console = table_console()
    overall = found["overall"]
    table = Table("figure", "value", title=name, title_justify="left")
    missing = _missing(overall)
    table.add_row("problems x samples", f"{overall['problems']:,.0f} x {overall['samples']:.0f}")
    for key in overall:
        if "@" in key and not key.endswith(("_low", "_high")):
            table.add_row(key, _share(overall, key) + missing)
        if key == "pass@1":  # the length that the accuracy costs stands beside it
            table.add_row("response tokens", _number(overall["response_tokens"]))
    for key in ("turns", "tool_calls"):
        table.add_row(key.replace("_", " "), _number(overall[key]))
    for key in ("tool_error_share", "truncated_share"):
        table.add_row(key.replace("_", " "), _percent(overall[key]))
    console.print(table)
    last = f"pass@{overall['samples']:.0f}"
    for grouping, part in GROUPINGS.items():
        if part in found:
            grouped = Table(title=f"by {grouping}", title_justify="left")
            more = [last] if overall["samples"] > 1 else []
            for label in (grouping, "problems", "pass@1", "response tokens", *more, "truncated"):
                grouped.add_column(label, justify="left" if label == grouping else "right")
            for group, of in found[part].items():
                figures = [_share(of, "pass@1"), _number(of["response_tokens"]), *(_percent(of[key]) for key in more)]
                grouped.add_row(group, f"{of['problems']:,.0f}", *figures, _percent(of["truncated_share"]))
            console.print(grouped)
    if problems:
        each = Table("file", "id", "right", "answer", "answers given", title="problems", title_justify="left")
        for result in problems:
            given = ", ".join(dict.fromkeys(answer or DASH for answer in result.answers))
            each.add_row(result.file, result.id, f"{result.correct} of {result.samples}", result.answer, given)
        console.print(each)


def print_comparison(a: str, b: str, found: PairedComparison, alone: int) -> None:
    """What the comparison came to, with the tests named; its last line is JSON."""
    import json
    from dataclasses import asdict

    table = Table("figure", "value", title=f"B = {b} against A = {a}", title_justify="left")
    table.add_row("problems in both", f"{found.problems:,}")
    if alone:
        table.add_row("problems in one alone, left out", f"{alone:,}")
    table.add_row("pass@1 of A", _percent(found.a))
    table.add_row("pass@1 of B", _percent(found.b))
    points = tuple(100 * value for value in (found.difference, found.low, found.high))
    table.add_row("B - A, 95 % over problems", "{:+.1f} points ({:+.1f} to {:+.1f})".format(*points))
    table.add_row(
        "B better, worse, equal", f"{found.better:,}, {found.worse:,}, {found.problems - found.better - found.worse:,}"
    )
    table.add_row("p, exact paired permutation test, two-sided", f"{found.p:.3g}")
    table_console().print(table)
    print(json.dumps(asdict(found)), flush=True)


def _missing(figures: Mapping[str, Any]) -> str:
    """The rollouts without an answer, which count as wrong, by reason; empty when there are none."""
    no_room = figures["no_room"]
    reasons = {"without room": no_room, "lost": figures["lost"] - no_room}
    text = " and ".join(f"{count:,.0f} {reason}" for reason, count in reasons.items() if count)
    total = figures["problems"] * figures["samples"]
    return f"; of {total:,.0f} rollouts, {text} count as wrong" if text else ""


def _share(figures: Mapping[str, Any], key: str) -> str:
    low, high = figures[f"{key}_low"], figures[f"{key}_high"]
    return f"{_percent(figures[key])}  (95 %: {100 * low:.1f} to {100 * high:.1f})"


def _percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:,.1f}"

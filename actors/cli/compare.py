"""``agent-rl compare``: how runs differ, and whether the difference is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from actors.cli.output import Mistake, say, table_console

LONGEST = 48
"""Characters of a setting's value in the table."""


def compare(
    first: Annotated[Path, Parameter(name="RUN", help="run directory that the others are compared with")],
    *others: Annotated[Path, Parameter(name="RUNS", help="run directories")],
    as_json: Annotated[
        bool, Parameter(name="--json", help="print a JSON array instead of tables", negative="")
    ] = False,
) -> None:
    """Compare runs with the first one: settings that differ, figures with 95 % intervals, whether they differ.

    Runs may be under way. Answers to the same problems are compared problem by problem.
    """
    from agent_rl import load_run
    from agent_rl.evaluation.runs import compare_runs
    from agent_rl.records.journal import JournalError

    if not others:
        raise Mistake("name two run directories or more, as in agent-rl compare RUN RUN")
    try:
        base = load_run(first)
        found = [compare_runs(base, load_run(other)) for other in others]
    except JournalError as error:
        raise Mistake(str(error)) from error
    if as_json:
        say(json.dumps([each.json() for each in found], indent=1))
        return
    for each in found:
        show(each)


def show(found: Any) -> None:
    """A comparison (`agent_rl.evaluation.runs.RunComparison`) for people."""
    from rich.table import Table

    console = table_console()
    console.print(f"A = {found.a}\nB = {found.b}")
    if found.settings:
        settings = Table("setting", "A", "B", title="settings that differ", title_justify="left")
        for key, values in found.settings.items():
            settings.add_row(key, *map(_short, values))
        console.print(settings)
    else:
        console.print("no setting differs")
    shares = Table("figure", "A", "B", "B - A", "test", "verdict", title="95 % intervals", title_justify="left")
    for each in found.shares:
        points = "{:+.1f} points ({:+.1f} to {:+.1f})".format(
            *(100 * x for x in (each.difference, each.low, each.high))
        )
        test = "unpaired"
        if each.problems is not None:
            test = f"{each.problems:,} problems in both: {each.better} better, {each.worse} worse; p = {each.p:.2g}"
        shares.add_row(each.figure, *map(_share, (each.a, each.b)), points, test, each.verdict)
    console.print(shares)
    numbers = Table("figure", "A", "B", title="figures of one run, without an interval", title_justify="left")
    for name, values in found.numbers.items():
        numbers.add_row(
            name, *("-" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in values)
        )
    console.print(numbers)


def _share(share: Any) -> str:
    return f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%}) of {share.trials:,}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def _short(value: Any) -> str:
    text = "-" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."

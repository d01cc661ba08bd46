"""``agent-rl audit-reward``: what a reward function accepts that is wrong, and refuses that is right."""

from __future__ import annotations

import json as json_format
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from actors.cli.output import Mistake, say
from actors.cli.parameters import PositiveNumber

if TYPE_CHECKING:
    from agent_rl.evaluation.reward_audit import Case

FAULTS = ("false accept", "false reject", "crash", "time-out")
SHOWN = 5
BATCH = 32
"""Cases of one child, which imports what the function needs."""


def audit_reward(
    function: Annotated[
        str, Parameter(name="MODULE:FUNCTION", help="the reward, in the working directory or installed")
    ],
    /,
    *,
    cases: Annotated[
        Path | None, Parameter(help="rows with problem, answer, said, right, in place of the stored")
    ] = None,
    form: Annotated[str, Parameter(help="how a response gives an answer, with %s")] = "",
    seconds: Annotated[PositiveNumber, Parameter(help="for each case")] = 4.0,
    out: Annotated[Path | None, Parameter(help="a JSONL file for the cases with a fault")] = None,
) -> int:
    """Ask a reward function a thousand stored cases in the sandbox, and print what it gets wrong.

    The function may be one of this project, `reward(problem, transcript)`; of TRL, with `completions`; or of verl,
    with `solution_str`. A reward above 0.5 accepts. The exit code is 1 if something wrong was accepted, or a case
    crashed it or took too long.
    """
    from agent_rl.config.plugins import PluginError, resolve
    from agent_rl.environments.base import TaskError
    from agent_rl.evaluation import reward_audit

    try:
        resolve("reward", function)
        asked = reward_audit.cases_in(cases) if cases else reward_audit.stored_cases(form or reward_audit.SAID)
    except (PluginError, TaskError, ValueError) as error:
        raise Mistake(str(error)) from error
    verdicts = _ask(function, asked, seconds)
    kinds: dict[str, Counter[str]] = {}
    faults: list[dict[str, Any]] = []
    for case, (fault, detail) in zip(asked, verdicts, strict=True):
        kinds.setdefault(case.kind, Counter())[fault or "right"] += 1
        if fault:
            faults.append({"fault": fault, "detail": detail, **asdict(case)})
    say(f"{'':60} cases  {'  '.join(FAULTS)}")
    for kind, found in kinds.items():
        if found.keys() - {"right"}:
            say(_line(kind, found))
    say(_line("all", sum(kinds.values(), Counter())))
    for fault in FAULTS:
        some = [each for each in faults if each["fault"] == fault]
        for each in some[:SHOWN]:
            say(f"{fault}: {each['said']!r:.100} for {each['answer']!r:.40} ({each['kind']}) {each['detail']}")
        if len(some) > SHOWN:
            say(f"and {len(some) - SHOWN} more of this fault; --out FILE has all")
    if [each["fault"] for each in faults] == ["crash"] * len(asked):
        say("every case crashed; a reward that reads further columns needs cases that have them: --cases FILE")
    if out:
        out.write_text("".join(f"{json_format.dumps(each)}\n" for each in faults), encoding="utf-8")
    return int(any(each["fault"] != "false reject" for each in faults))


def _line(name: str, found: Counter[str]) -> str:
    cells = (f"{found[fault]:>{len(fault)}}" for fault in FAULTS)
    return f"{name:60.60} {found.total():5}  {'  '.join(cells)}"


def _ask(function: str, cases: Sequence[Case], seconds: float) -> list[tuple[str, str]]:
    """The fault of each case, if any, and what is known of it."""
    import trio

    from actors.sandbox.owner.functions import FunctionSandbox
    from actors.sandbox.owner.interpreter import ExecutionLimits
    from agent_rl.evaluation.reward_audit import ACCEPTED

    asking = "agent_rl.evaluation.reward_audit:verdicts"
    longest = BATCH * seconds  # of what cannot be interrupted
    limits = replace(ExecutionLimits(), wall_seconds=longest, cpu_seconds=longest)
    found: list[tuple[str, str]] = [("", "")] * len(cases)

    async def ask(numbers: range) -> None:
        texts = json_format.dumps([asdict(cases[number]) for number in numbers])
        output = await sandbox.call(asking, function, texts, str(seconds))
        if output.outcome != "success" and len(numbers) > 1:
            for number in numbers:
                await ask(range(number, number + 1))
            return
        ended = "time-out" if output.outcome == "timeout" else f"crash: {output.outcome} {output.stderr[-200:]}"
        said = json_format.loads(output.value) if output.outcome == "success" else [ended]
        for number, given in zip(numbers, said, strict=True):
            if isinstance(given, str):
                fault, _, detail = given.partition(": ")
                found[number] = (fault, detail)
            elif (given > ACCEPTED) != cases[number].right:
                found[number] = ("false reject" if cases[number].right else "false accept", f"reward {given:g}")

    async def ask_all() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(sandbox.run)
            async with trio.open_nursery() as asked:
                for first in range(0, len(cases), BATCH):
                    asked.start_soon(ask, range(first, min(first + BATCH, len(cases))))
            nursery.cancel_scope.cancel()

    sandbox = FunctionSandbox([asking, function], limits=limits, children=os.cpu_count() or 1)
    trio.run(ask_all)
    return found

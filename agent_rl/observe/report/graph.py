"""The actors of a run and what flows between them, as the newest row of the timeline has it, and the advice on time."""

from __future__ import annotations

import contextlib
import math
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agent_rl.observe.replicas import role_of
from agent_rl.observe.report.activity import TimeUse
from agent_rl.observe.words import compact, duration, percent
from agent_rl.records.document import Document
from agent_rl.records.timeline import Moment, Moments

ROLES = ("kv_scheduler", "rollout_generator", "tool_executor", "roc_filter", "learner")
"""The roles in the order in which a rollout passes them."""
LATE_SECONDS = 10.0
"""A run under way whose newest row is older than this is shown as late."""
ENDED = "The run does not run now: this is the last that was heard of it."
Figures = Callable[[str, str], float]
"""The sum of a figure over the actors of a role; NaN where no actor reports it."""


def links(of: Figures) -> list[tuple[str, str, str]]:
    """(from, to, what flows) between roles."""
    version, step = of("rollout_generator", "policy_version"), of("learner", "seconds_per_step")
    flight = of("kv_scheduler", "rollouts_in_flight")
    return [
        ("kv_scheduler", "rollout_generator", f"{compact(flight)} rollouts in flight"),
        ("rollout_generator", "tool_executor", f"{compact(of('tool_executor', 'calls_per_s'))} calls/s"),
        ("rollout_generator", "roc_filter", f"{compact(of('rollout_generator', 'rollouts_per_s'))} rollouts/s"),
        ("tool_executor", "roc_filter", f"{compact(of('tool_executor', 'checks_per_s'))} checks/s"),
        ("roc_filter", "learner", f"a step each {duration(step)}" if step > 0 else "steps"),
        ("learner", "rollout_generator", f"weights, version {compact(version)} served"),
        ("roc_filter", "kv_scheduler", f"{compact(of('roc_filter', 'groups_open'))} groups open"),
    ]


def graph(row: Moments | None, wanted: Mapping[str, Wanted], *, under_way: bool) -> dict[str, Any]:
    """The topology as an object of the page's JSON, by the newest row of the timeline."""
    if row is None:
        return {}
    present = {role_of(name) for name in row.actors}
    roles = [*ROLES, *sorted(present | wanted.keys() - set(ROLES))]

    def of(role: str, name: str) -> float:
        values = [moment.figure(name) for each, moment in row.actors.items() if role_of(each) == role]
        known = [value for value in values if math.isfinite(value)]
        # Engines may serve several versions: the oldest counts.
        return (min(known) if name == "policy_version" else sum(known)) if known else math.nan

    age = time.time() - row.wall
    state, note = ("live", "") if under_way else ("ended", ENDED)
    if under_way and age > LATE_SECONDS:
        state, note = "late", f"The newest row of the timeline is {duration(age)} old."
    return {
        "state": state,
        "note": note,
        "roles": [
            {
                "role": role,
                "wanted": wanted[role].processes if role in wanted else 0,
                "host": wanted[role].host if role in wanted else "",
                "actors": [_actor(moment) for name, moment in sorted(row.actors.items()) if role_of(name) == role],
            }
            for role in dict.fromkeys(roles)
            if role in wanted.keys() | present
        ],
        "links": [{"from": a, "to": b, "words": words} for a, b, words in links(of)],
    }


def _actor(moment: Moment) -> dict[str, Any]:
    waits = moment.waited > 0 and moment.waiting_for
    return {
        "name": moment.actor,
        "state": moment.state,
        "busy": moment.busy,
        "waits": f"{percent(moment.waited)} for {moment.waiting_for}" if waits else "",
        "words": list(_words(moment.figure)),
    }


def _words(figure: Callable[[str], float]) -> Iterator[str]:
    """The most telling figures of an actor."""
    step, steps = figure("step"), figure("steps")
    if math.isfinite(step):
        yield f"step {step:.0f}" + (f" of {steps:.0f}" if math.isfinite(steps) else "")
    if (total := figure("kv_total")) > 0 and math.isfinite(used := figure("kv_used")):
        yield f"KV cache {percent(used / total)}"
    for name, words in (
        ("tokens_per_s", "tokens/s"), ("policy_version", "version served"), ("running", "running"),
        ("waiting", "queued"), ("queue", "queued"), ("groups_waiting", "groups wait"), ("calls_waiting", "calls wait"),
        ("rollouts_pending", "rollouts pending"), ("preempted", "preempted"),
    ):  # fmt: skip
        value = figure(name)
        if math.isfinite(value) and (value or name in {"tokens_per_s", "policy_version"}):
            yield f"{compact(value)} {words}"


class Wanted(NamedTuple):
    """The number of processes of a role, and its hosts."""

    processes: int
    host: str


def read_wanted(directory: Path) -> dict[str, Wanted]:
    """What is wanted of each role: by the document of a run under way, else by the topology that the actors read."""
    found, document = {}, Document.read(directory)
    roles, processes = ({}, {}) if document is None or document.ended else (document.roles, document.processes)
    numbers = Counter(process.role for process in processes.values() if process.wanted)
    for path in sorted(directory.glob("topology.*.toml")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            topology = tomllib.loads(path.read_text(encoding="utf-8"))
            for role, actor in topology["actors"].items():
                of_file = actor.get("start") or actor.get("replicas", 1)
                replicas = numbers[role] if role in roles else int(of_file)
                named = actor.get("hosts") or [actor.get("host", "")]
                found[role] = Wanted(
                    replicas,
                    ", ".join(dict.fromkeys(map(str, named if isinstance(named, list) else [named]))),
                )
    return found


def advice(shares: Mapping[str, TimeUse], step_seconds: float) -> str:
    """What to change first, in one sentence with its arithmetic; empty while too little is known."""
    learners = [share for name, share in shares.items() if role_of(name) == "learner"]
    if not learners or not math.isfinite(step_seconds) or step_seconds <= 0:
        return ""
    learner = max(learners, key=lambda share: share.busy)
    idle, a_step = learner.waiting_in_all, f"A step takes {duration(step_seconds)}"
    if learner.busy >= idle:
        saved = step_seconds * learner.busy / 2
        return (
            f"Training is the limit. {a_step}, of which the learner works {percent(learner.busy)} and waits "
            f"{percent(idle)}. A learner twice as fast saves at most {percent(learner.busy)} ÷ 2 of it, "
            f"{duration(saved)} a step; more engines save at most {duration(step_seconds * idle)}."
        )
    others = {name: share.busy for name, share in shares.items() if role_of(name) not in {"learner", "kv_scheduler"}}
    if not others:
        return ""
    busiest, busy = max(others.items(), key=lambda item: item[1])
    limit = f"{busiest} is the busiest of the others, at {percent(busy)}"
    remedy = {
        "rollout_generator": "more or faster engines (replicas of rollout_generator), or a higher max_staleness,",
        "tool_executor": "more places for tool calls (replicas or children of tool_executor), or faster tools,",
        "roc_filter": "cheaper checks of answers",
    }.get(role_of(busiest), "more of it")
    if busy < 0.5:
        limit += ", so that rollouts wait for each other: the longest rollouts of a step set its time"
        remedy = "a higher max_staleness, shorter responses, or more groups in flight"
    return (
        f"Rollouts are the limit. {a_step}, of which the learner waits {percent(idle)}; {limit}. First try {remedy} "
        f"which saves at most {percent(idle)} of {duration(step_seconds)}, {duration(step_seconds * idle)} a step."
    )

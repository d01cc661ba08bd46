"""``agent-rl swap``, ``scale``, ``drain`` and ``stop``: a run under way changes, or ends in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors.cli.output import Mistake, complain, say
from actors.cli.parameters import RunDirectory

if TYPE_CHECKING:
    from pathlib import Path


def swap(
    directory: RunDirectory,
    actor: Annotated[str, Parameter(name="ACTOR", help="the actor, by its name in the topology: kv_scheduler")],
    /,
    *,
    class_path: Annotated[
        str, Parameter(name="--class", metavar="MODULE:CLASS", help="its new class; left out: the class stays")
    ] = "",
    settings: Annotated[
        tuple[str, ...],
        Parameter(name="--set", metavar="KEY=VALUE", help="a setting of the actor, in TOML; may be repeated"),
    ] = (),
    fresh: Annotated[bool, Parameter(help="begin without the settings that the actor has")] = False,
) -> None:
    """Give an actor of a run under way another class or other settings, on all hosts."""
    from agent_rl.messages import SwapWanted

    _change(directory, SwapWanted(actor, class_path, settings, fresh))


def scale(
    directory: RunDirectory,
    role: Annotated[str, Parameter(name="ROLE", help="the role, by its name in the topology: tool_executor")],
    number: Annotated[int, Parameter(name="N", help="how many of its replicas run from now on, on all hosts")],
    /,
) -> None:
    """Give a role of a run under way another number of processes."""
    from agent_rl.messages import ScaleWanted

    _change(directory, ScaleWanted(role, number))


def drain(
    directory: RunDirectory,
    host: Annotated[str, Parameter(name="HOST", help="a host of the topology, not the learner's")],
    /,
) -> None:
    """Stop the actors of a host in order; the run goes on without them."""
    from agent_rl.messages import DrainWanted

    _change(directory, DrainWanted(host))


def stop(directory: RunDirectory, /) -> None:
    """Stop a run under way in order, on all hosts, as Ctrl-C in its terminal does."""
    from agent_rl.messages import StopWanted

    _change(directory, StopWanted())


def _change(directory: Path, wanted: object) -> None:
    import trio

    from actors.runtime.control import ask_run
    from agent_rl.records.run_directory import RunRefused

    try:
        answer = trio.run(ask_run, directory, wanted, lambda what: complain(f"agent-rl: waiting for {what}"))
    except RunRefused as refusal:
        raise Mistake(str(refusal)) from refusal
    if answer.refused:
        raise Mistake(lines=[f"agent-rl: {line}" for line in answer.refused])
    say("\n".join(answer.done))

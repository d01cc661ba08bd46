"""The process of one actor. The supervisor starts ``python -m actors.runtime.process --topology FILE --actor NAME``.

The process makes node and links from the topology, starts the actor, hands messages to it, reports its status, and
stops the actor on SIGTERM. The process exits when the supervisor's lifeline closes. Exit status 3 means that a restart
would not help; the last line on stderr is then the message for the user.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio

from actors.base import Actor, ActorContext
from actors.engines.base import EngineRefusedError
from actors.runtime.children import leave_message, message_file
from actors.runtime.links import NobodyLeftError, UnreachableLinks, make_links
from actors.runtime.networks import run_network
from actors.sandbox.isolation.control_groups import ControlGroupsError
from actors.sandbox.isolation.levels import IsolationError
from actors.user_threads import Watchdog
from agent_rl import messages
from agent_rl.config.addresses import supervisor_node
from agent_rl.config.load import load_topology
from agent_rl.config.plugins import ContractError, resolve
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import Topology
from agent_rl.config.user_modules import look_beside
from agent_rl.environments.base import TaskError
from agent_rl.figures import ActorFigures
from agent_rl.files.disk import DiskError, disk_error
from agent_rl.groups.outages import OutageError
from agent_rl.learning.finite import TrainingStoppedError
from agent_rl.learning.heap import share_one_heap
from agent_rl.messages import ActorStatus, pipes
from agent_rl.observe.logs import open_log
from agent_rl.records.journal import JournalError, open_journal
from agent_rl.records.run_directory import RunRefused, run_clock
from agent_rl.rollout.prompts import PromptError
from agent_rl.topology_checks.hosts import raise_descriptor_limit
from transport import (
    BindError,
    DecodeError,
    Delivery,
    DeliveryKind,
    InsecureLink,
    Limits,
    LinkEvent,
    Node,
    PeerGone,
    PeerLeft,
    Registry,
    keep_freed_memory,
)
from transport.stream import PipeReader, packed

USER_MISTAKE = 3


class OtherReleaseError(Exception):
    """The supervisor says what this process cannot read."""


class SupervisorGoneError(Exception):
    """The lifeline closed: the supervisor has ended."""


MISTAKES = (
    IsolationError,
    ControlGroupsError,
    ContractError,
    EngineRefusedError,
    TopologyError,
    TaskError,
    JournalError,
    PromptError,
    DiskError,
    TrainingStoppedError,
    OutageError,
    BindError,
    InsecureLink,
    RunRefused,
    NobodyLeftError,
    OtherReleaseError,
)
MODEL_ROLES = ("learner", "learner_ranks", "rollout_generator")
"""Roles whose processes hold a model."""
LAST_STATUS_SECONDS = 2.0
"""How long an actor that ends waits until the supervisors have taken in its last status."""
STARTED_SECONDS = 0.5
"""How long an actor that has started waits until the supervisors know it, before it handles the first message."""
STATUS_LINK = "status"


def received(cls: type[Actor]) -> dict[DeliveryKind, set[type]]:
    """The message types that the class receives, by kind of delivery. `handle` gets no other types."""
    types: dict[DeliveryKind, set[type]] = {"push": set(), "call": set(), "announce": set()}
    for each in cls.receives:
        types[each.kind].update(each.messages)
    return types


async def serve(
    actor: Actor,
    *,
    node: Node,
    status_link: Any,
    stopping: trio.Event,
    nursery: trio.Nursery,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Run an actor whose node is not yet running, until ``stopping`` is set or something fails.

    Messages that arrive while the actor starts are held back; heartbeats are sent in the meantime.
    """
    ready = trio.Event()
    started = stopped = False
    context = actor.context
    needed = {
        name: context.links[name]
        for name, kind in type(actor).links.items()
        if kind.kind != "announce" and name in context.links
    }
    unreachable = UnreachableLinks(node, needed, context.topology.run.give_up_minutes, context.log)

    async def handler(delivery: Delivery) -> object:
        if not ready.is_set():  # a wait on a set event would still cost each message a turn of the event loop
            await ready.wait()
        if stopped:  # what is not acknowledged is sent again, to the actor's next process
            await trio.sleep_forever()
        return await actor.handle(delivery.message)

    failed, seconds = False, context.topology.run.status_seconds

    def missing() -> str:
        return unreachable.text or actor.alarm()

    async def report() -> None:
        while not failed:
            status = actor.status() if started else ("starting", ActorFigures())
            _announce(status_link, actor, *status, missing=missing() if started else actor.lacking())
            await trio.sleep(seconds)  # the rate at which the display gets figures; nothing waits for this loop

    async with trio.open_nursery() as node_nursery:
        await node_nursery.start(
            partial(node.run, handler, concurrency=actor.concurrency, receives=received(type(actor)))
        )
        node_nursery.start_soon(report)
        try:
            await actor.start()
        except Exception as error:
            failed = True
            _announce(status_link, actor, "failed", ActorFigures(), f"{type(error).__name__}: {error}")
            await _heard(status_link, LAST_STATUS_SECONDS)  # so that the display shows why before the process ends
            raise
        on_start()
        node.watch(unreachable.look)
        node.watch(actor.peer_changed)
        for peer in node.gone:  # while the actor started
            gone = PeerGone(peer, 0.0)
            unreachable.look(gone)
            actor.peer_changed(gone)
        node_nursery.start_soon(unreachable.run)
        started = True
        _announce(status_link, actor, *actor.status(), missing=missing())
        await _heard(status_link, STARTED_SECONDS)  # a first message that blocks the loop is no start that hangs
        ready.set()
        context.log.info("started", actor_class=context.topology.actors[context.role].class_path)
        await stopping.wait()
        await actor.stop()
        stopped = True
        _announce(status_link, actor, *actor.status())
        await _heard(status_link, LAST_STATUS_SECONDS)
        context.log.info("stopped")
        nursery.cancel_scope.cancel()
        node_nursery.cancel_scope.cancel()


async def _heard(status_link: Any, seconds: float) -> None:
    """Wait until the supervisors have taken in the last status, for so long at most."""
    with trio.move_on_after(seconds):
        await status_link.acknowledged()


def _announce(
    status_link: Any, actor: Actor, state: str, figures: ActorFigures, detail: str = "", *, missing: str = ""
) -> None:
    context = actor.context
    if not isinstance(figures, ActorFigures):  # returned by a user's class
        raise ContractError(
            f"{type(actor).__name__}.status returned {figures!r:.80} as figures; return (state, ActorFigures(...)), "
            "with figures of your own in `extra`"
        )
    if rejected := context.node.figures["decode_errors"]:
        figures = replace(figures, rejected_frames=int(rejected))
    started = state not in {"starting", "failed"}  # `waiting_for` and `detail` may need the state that `start` makes
    waiting_for = actor.waiting_for() if started else ""
    busy = actor.busy_seconds() if started else 0.0
    cpu = actor.cpu_seconds() if started else 0.0
    asked_for = context.topology.run.metrics_port is not None  # several times the size of all else in a status
    metrics = actor.metrics() if started and asked_for else ()
    detail = detail or (actor.detail() if started else "")
    status_link.set(
        ActorStatus(context.name, context.role, state, detail, figures, waiting_for, busy, cpu, metrics, missing)
    )


async def run_actor(arguments: argparse.Namespace) -> None:
    """Read the topology and run the actor to its end. Raises only DiskError when a full disk is one of the causes."""
    path = Path(arguments.topology)
    base = Path(arguments.base)
    look_beside(base / "topology.toml")
    topology = load_topology(path)
    directory = topology.run.directory.absolute()
    try:
        await _run_actor(arguments, base, topology, directory)
    except Exception as error:
        full = disk_error(error, directory)
        if full is None:
            raise
        raise full from error


async def _run_actor(arguments: argparse.Namespace, base: Path, topology: Topology, directory: Path) -> None:
    role, replica = arguments.actor.rsplit(".", 1)
    entry = topology.actors[role]
    cls: type[Actor] = resolve("actor", entry.class_path)
    settings = cls.Settings.model_validate(entry.settings)
    network = run_network(topology, base)
    node = Node(
        arguments.actor,
        network,
        Registry.of(messages),
        incarnation=arguments.incarnation,
        limits=Limits(lost_after=topology.run.lost_after_seconds),
        on_event=lambda event: _log_event(log, event),
        only_expected=arguments.lifeline is not None,
    )
    limit = topology.run.log_mib * 2**20
    bound = {"actor": arguments.actor, "incarnation": arguments.incarnation}
    with open_log(directory, arguments.actor, limit=limit, **bound) as log:
        status_link = node.announce(STATUS_LINK, [supervisor_node(topology.homes(role)[int(replica)])])
        stopping, go = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            await nursery.start(_obey_signals, stopping)
            nursery.start_soon(Watchdog(entry.silent_seconds, message_file()).run)
            if arguments.lifeline is not None:
                nursery.start_soon(_watch_lifeline, arguments.lifeline, node, go, log)
            context = ActorContext(
                name=arguments.actor,
                role=role,
                replica=int(replica),
                incarnation=arguments.incarnation,
                topology=topology,
                settings=settings,
                directory=directory,
                base=base,
                node=node,
                nursery=nursery,
                rng=random.Random(f"{topology.run.seed}/{arguments.actor}"),
                log=log,
                links=make_links(node, topology, role, cls, settings),
                open_journal=lambda: open_journal(directory),
                started_at=arguments.started_at,
                restarted=arguments.restarted,
                wall=run_clock(arguments.epoch),
            )
            try:
                actor = cls(context)
                if arguments.beside is not None:
                    await actor.prepared()
                    with os.fdopen(arguments.beside, "wb") as pipe:
                        pipe.write(packed(pipes.Prepared()))
                    await go.wait()
                await serve(
                    actor, node=node, status_link=status_link, stopping=stopping, nursery=nursery, on_start=freeze_heap
                )
            except Exception:  # logged here, where the log is open, and raised: `main` decides the exit status
                log.exception("failed")
                raise


def _log_event(log: structlog.typing.FilteringBoundLogger, event: LinkEvent) -> None:
    ordinary = isinstance(event, PeerLeft)
    (log.info if ordinary else log.warning)("link", link_event=type(event).__name__, detail=str(event))


async def _obey_signals(stopping: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """SIGTERM asks the actor to finish and stop. The supervisor handles SIGINT."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for number in received:
            if number == signal.SIGTERM:
                stopping.set()


async def _watch_lifeline(
    descriptor: int, node: Node, go: trio.Event, log: structlog.typing.FilteringBoundLogger
) -> None:
    """Read from the lifeline which hosts are lost, and incarnations of nodes. It closes when the supervisor ends."""
    reader = PipeReader(descriptor, Registry.of(pipes))
    while True:
        try:
            message = await reader.receive()
        except DecodeError as error:
            raise OtherReleaseError(
                f"what the supervisor says cannot be read ({error}): agent_rl was changed during the run; stop the run "
                "and start it again, it goes on"
            ) from error
        match message:
            case pipes.Expect():
                for name, incarnation in message.incarnations.items():
                    node.expect(name, incarnation)
            case pipes.PresumedLost():
                node.doubt(message.actors)
            case pipes.Go():
                go.set()
            case None:
                log.error("the supervisor is gone")
                raise SupervisorGoneError


def user_mistake(error: BaseException) -> str | None:
    """The message for the user when a mistake of the user caused all errors; else None."""
    if isinstance(error, BaseExceptionGroup):
        found = [user_mistake(part) for part in error.exceptions]
        return found[0] if found and all(text is not None for text in found) else None
    return " ".join(str(error).split()) if isinstance(error, MISTAKES) else None


def _first_leaf(error: BaseException) -> str:
    """The first error inside exception groups, in one line: the last line on stderr may be about another error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())


def prepare_heap(actor: str) -> None:
    """Set the C library's allocator for what this actor does: compute with a model, or receive large messages."""
    if actor.rpartition(".")[0] in MODEL_ROLES:
        share_one_heap()
    else:
        keep_freed_memory()


def freeze_heap() -> None:
    """What was loaded until now is never collected: a pass over torch's objects would stop the loop for a second."""
    gc.collect()
    gc.freeze()


def main() -> None:
    """Entry point."""
    # Not cyclopts, which reads the user's command line: it needs 50 ms of processor time where argparse needs 5, at
    # each start of each actor, for arguments that only the supervisor writes.
    parser = argparse.ArgumentParser(prog="actors.runtime.process", description="Run one actor of a topology.")
    parser.add_argument("--topology", required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--actor", required=True)
    parser.add_argument("--incarnation", type=int, required=True)
    parser.add_argument("--started-at", type=float, required=True)
    parser.add_argument("--epoch", type=float, required=True)
    parser.add_argument("--lifeline", type=int)
    parser.add_argument("--beside", type=int)
    parser.add_argument("--restarted", action="store_true")
    arguments = parser.parse_args()
    prepare_heap(arguments.actor)
    raise_descriptor_limit()
    try:
        trio.run(run_actor, arguments)
    except Exception as error:  # noqa: BLE001 - the traceback is printed before stderr is closed
        message = user_mistake(error)
        if message is None:
            with contextlib.suppress(OSError):  # the disk may be full
                traceback.print_exception(error)
        leave_message(message or _first_leaf(error))
        raise SystemExit(1 if message is None else USER_MISTAKE) from None


if __name__ == "__main__":
    main()

"""An actor's process that announces its status, writes its events to a file, and leaves when it is asked to."""

import os
import signal
import sys
from pathlib import Path
from typing import ClassVar

import trio
from pydantic import BaseModel, ConfigDict

from actors.runtime.networks import run_network
from agent_rl import messages
from agent_rl.config.addresses import supervisor_node
from agent_rl.config.load import load_topology
from agent_rl.figures import ActorFigures
from agent_rl.messages import pipes
from tests.actors.runtime.fake_entry import parsed
from transport import Node, Registry
from transport.stream import PipeReader, packed


class Plain:
    class Settings(BaseModel):
        model_config = ConfigDict(extra="forbid")
        number: int = 0
        dies: bool = False

    receives = ()
    links: ClassVar = {}
    drain_seconds = 30.0


class Other(Plain):
    pass


async def ignore(delivery):
    pass


async def report(link, actor, state):
    figures = ActorFigures(extra={"step": 7.0})
    while True:
        link.set(messages.ActorStatus(actor, "x", state, "for a reason", figures, "", 0, 0))
        await trio.sleep(0.2)


async def run(options, tell, state="running"):
    """Announce the status until SIGTERM."""
    topology = load_topology(Path(options.topology))
    network = run_network(topology, Path(options.base))
    node = Node(options.actor, network, Registry.of(messages), incarnation=options.incarnation)
    role, replica = options.actor.rsplit(".", 1)
    hosts = dict.fromkeys([topology.main_host, topology.homes(role)[int(replica)]])
    link = node.announce("status", [supervisor_node(host) for host in hosts])
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM) as received:
            await nursery.start(node.run, ignore)
            nursery.start_soon(report, link, options.actor, state)
            tell("up")
            async for _ in received:
                nursery.cancel_scope.cancel()


async def wait_for_go(lifeline):
    while (message := await lifeline.receive()) != pipes.Go():
        assert message is not None, "the supervisor is gone"


def main():
    options = parsed()
    entry = load_topology(Path(options.topology)).actors[options.actor.rsplit(".", 1)[0]]

    def tell(event):
        with (Path(options.base) / "events").open("a") as file:
            file.write(f"{event} {options.actor} {entry.class_path} {entry.settings.get('number', 0)}\n")

    if entry.settings.get("dies"):
        sys.stderr.write("no such device\n")
        sys.exit(7)
    if options.beside is not None:
        tell("ready")
        os.write(options.beside, packed(pipes.Prepared()))
        trio.run(wait_for_go, PipeReader(options.lifeline, Registry.of(pipes)))
    trio.run(run, options, tell)
    tell("left")


if __name__ == "__main__":
    main()

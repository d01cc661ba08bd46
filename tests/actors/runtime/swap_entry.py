"""What an actor's process does that announces its status, or waits beside another one."""

import signal

import trio

from actors.runtime.networks import run_network
from agent_rl import messages
from agent_rl.config.addresses import supervisor_node
from agent_rl.config.load import load_topology
from agent_rl.figures import ActorFigures
from agent_rl.messages import pipes
from transport import Node, Registry
from transport.stream import PipeReader


async def ignore(delivery):
    pass


async def report(options, tell):
    """Announce the status until SIGTERM."""
    topology, (role, replica) = load_topology(options.topology), options.actor.rsplit(".", 1)
    network = run_network(topology, options.base)
    node = Node(options.actor, network, Registry.of(messages), incarnation=options.incarnation)
    hosts = dict.fromkeys([topology.main_host, topology.homes(role)[int(replica)]])
    link = node.announce("status", [supervisor_node(host) for host in hosts])
    figures = ActorFigures(extra={"step": 7.0})

    async def say():
        while True:
            link.set(messages.ActorStatus(options.actor, "x", "running", "for a reason", figures, "", 0, 0))
            await trio.sleep(0.2)

    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM) as received:
            await nursery.start(node.run, ignore)
            nursery.start_soon(say)
            tell("up")
            async for _ in received:
                nursery.cancel_scope.cancel()
    tell("left")


async def wait_for_go(lifeline):
    reader = PipeReader(lifeline, Registry.of(pipes))
    while (message := await reader.receive()) != pipes.Go():
        assert message is not None, "the supervisor is gone"

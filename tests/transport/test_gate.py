"""Strangers who connect by the thousand: the process goes on opening files, and the run's nodes go on talking."""

from __future__ import annotations

import contextlib
import errno
import resource
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import trio
import zmq

from tests.transport.contract.base import Item, Question
from tests.transport.test_zeromq import ROOT, Zmq, free_port
from transport import CurveKeys, ZmqNetwork
from transport.gate import STRANGERS, Gate, filter_connections

ATTACKERS = 1500
# A node with no more than 1024 descriptors, which opens 100 files again and again. It answers with the most that it
# ever had open.
VICTIM = """
import os, resource, sys
from contextlib import ExitStack
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
import trio
from transport import CurveKeys, Limits, Node, ZmqNetwork
from tests.transport.contract.base import REGISTRY, Item, Recorder
from pathlib import Path

most = 0

async def answer(delivery):
    await trio.lowlevel.checkpoint()
    return Item(most)

async def open_files():
    global most
    while True:
        with ExitStack() as held:
            for _ in range(100):
                most = max(most, held.enter_context(open(os.devnull)).fileno())
        await trio.sleep(0.02)

async def main(here, there, keys):
    network = ZmqNetwork({"here": here, "there": there}, curve=CurveKeys.load(Path(keys)))
    node = Node("there", network, REGISTRY, incarnation=0, limits=Limits(heartbeat_interval=0.05, handshake=1.0))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run, Recorder(answers=answer))
        nursery.start_soon(open_files)
        print("ready", flush=True)

trio.run(main, *sys.argv[1:])
"""


def connect(address, port):
    """A connection that says nothing, under way."""
    made = socket.socket()
    made.setblocking(False)
    made.bind((address, 0))
    with contextlib.suppress(BlockingIOError):
        made.connect(("127.0.0.1", port))
    return made


@pytest.mark.parametrize(
    "attacker",
    [
        pytest.param("127.0.0.9", id="another host", marks=pytest.mark.slow),
        pytest.param("127.0.0.1", id="a host of the run"),
    ],
)
def test_half_open_connections_beyond_all_descriptors_stop_nobody(attacker):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    here, there = free_port(), free_port()
    addresses = {"here": f"tcp://127.0.0.1:{here}", "there": f"tcp://127.0.0.1:{there}"}

    async def talk(keys):
        network = ZmqNetwork(addresses, curve=keys)
        async with Zmq(network).world() as world:
            node = (await world.start("here")).node
            link = node.push("items", ["there"], window=32)
            call = node.call("questions", ["there"], outstanding=2, timeout=10.0)
            with contextlib.ExitStack() as attack, trio.fail_after(20):
                await call(Question(0))
                for _ in range(ATTACKERS):
                    attack.enter_context(connect(attacker, there))
                for number in range(300):
                    await link.send(Item(number))
                    await trio.sleep(0.005)
                await link.drained()
                most = (await call(Question(0))).number
        async with Zmq(network).world() as world:  # one that comes when it is over gets in
            node = (await world.start("here")).node
            with trio.fail_after(10):
                await node.call("questions", ["there"], outstanding=2, timeout=10.0)(Question(0))
        return most

    with tempfile.TemporaryDirectory(prefix="link") as folder:
        keys, path = CurveKeys.generate(), Path(folder) / "keys"
        keys.save(path)
        command = [sys.executable, "-c", VICTIM, addresses["here"], addresses["there"], str(path)]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        try:
            assert victim.stdout.readline() == b"ready\n"
            most = trio.run(talk, keys)
            assert victim.poll() is None
        finally:
            victim.kill()
            victim.wait()
            victim.stdout.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert most < 900, most


def reached(family, source, listener):
    """Whether a connection from this address is taken within moments."""
    with socket.socket(family) as client:
        client.bind((source, 0))
        client.settimeout(0.3)
        try:
            client.connect(listener.getsockname()[:2])
        except TimeoutError:
            return False
        listener.accept()[0].close()
        return True


def test_the_kernel_takes_connections_of_the_given_hosts_alone():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        filter_connections(listener, ["10.0.0.1", "127.0.0.7", "fe80::1", "127.0.0.8"])
        assert [reached(socket.AF_INET, f"127.0.0.{n}", listener) for n in (6, 7, 8)] == [False, True, True]
        filter_connections(listener, [])
        assert not reached(socket.AF_INET, "127.0.0.7", listener)
        filter_connections(listener, None)
        assert reached(socket.AF_INET, "127.0.0.6", listener)


def test_the_kernel_takes_connections_of_the_given_hosts_alone_over_ipv6():
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        assert error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}  # noqa: PT017 - what else is a fault
        pytest.skip("this machine has no IPv6")
    with listener:
        filter_connections(listener, ["127.0.0.1", "fe80::1", "::1"])
        assert reached(socket.AF_INET6, "::1", listener)
        filter_connections(listener, ["127.0.0.1", "fe80::1", "::2"])
        assert not reached(socket.AF_INET6, "::1", listener)


def test_a_gate_counts_what_is_open_and_forgets_what_is_gone():
    with zmq.Context() as context, context.socket(zmq.ROUTER) as inbox:
        gate = Gate(inbox, nodes=2, hosts=[], on_refused=pytest.fail)
        port = inbox.bind_to_random_port("tcp://127.0.0.1")

        def listen():
            while gate.monitor.poll(200):
                gate.watch(gate.monitor.recv_multipart())

        with contextlib.ExitStack() as held:
            for _ in range(2 + STRANGERS):
                held.enter_context(socket.create_connection(("127.0.0.1", port)))
            listen()
            late = held.enter_context(connect("127.0.0.1", port))
            assert not select.select([], [late], [], 0.3)[1]
        listen()
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        gate.close()

"""What should not come: floods, and messages of a known peer that the receiver does not take."""

import contextlib
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import zmq

from tests.transport.contract.base import ContractBase, Item, Question, Recorder
from tests.transport.strangers import SOURCE, WORST_MIB, connect_strangers, strangers_mib
from tests.transport.test_zeromq import free_port
from transport import CurveKeys, Limits, MalformedFrames, Unauthenticated, ZmqNetwork
from transport.curve import STRANGERS
from transport.limits import PART
from transport.node import STRANGER

SIZE, COUNT = 64 << 10, 6000
BOUND = 64 << 20
# Sends until the other side takes no more for two seconds, or all is sent. Prints how many, and goes on as fast as it
# can.
FLOODER = f"""
import sys, zmq
identity, address = sys.argv[1:]
context = zmq.Context()
socket = context.socket(zmq.DEALER)
socket.setsockopt(zmq.ROUTING_ID, identity.encode())
socket.setsockopt(zmq.LINGER, 0)
socket.setsockopt(zmq.SNDHWM, 1)
socket.setsockopt(zmq.SNDTIMEO, 2000)
socket.connect(address)
sent = 0
try:
    while sent < {COUNT}:
        socket.send(bytes({SIZE}))
        sent += 1
except zmq.Again:
    pass
print(sent, flush=True)
socket.setsockopt(zmq.SNDTIMEO, -1)
while True:
    socket.send(bytes({SIZE}))
"""


class Zmq(ContractBase):
    limits = Limits(heartbeat_interval=0.05, silent_after=60.0, linger=0.2)

    def __init__(self, directory=None):
        """Over TCP without a directory."""
        self.keys = None if directory else CurveKeys.generate()
        self.addresses = {
            name: f"ipc://{directory}/{name}" if directory else f"tcp://127.0.0.1:{free_port()}" for name in "abc"
        }

    def network(self, _names):
        return ZmqNetwork(self.addresses, curve=self.keys)


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("identity", ["nobody#1", "c#7"], ids=["stranger", "impersonator"])
def test_a_flood_while_the_actor_is_busy_takes_no_memory_and_loses_no_push(identity):
    """The event loop stands still until the flooder gets no further; then pushes pass while it goes on."""
    with tempfile.TemporaryDirectory(prefix="link") as directory:
        case = Zmq(directory)
        flooder = grown = None

        async def busy(delivery):
            nonlocal flooder, grown
            if delivery.message.number == 0:
                before = resident()
                command = [sys.executable, "-c", FLOODER, identity, case.addresses["b"]]
                flooder = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220
                sent = int(flooder.stdout.readline())
                grown = resident() - before
                assert sent < COUNT

        async def main():
            async with case.world() as world:
                recorder = Recorder(answers=busy)
                a, b = await world.start("a"), await world.start("b", recorder)
                link = a.node.push("items", ["b"], window=8)
                for number in range(200):
                    await link.send(Item(number))
                with trio.fail_after(20):
                    await link.drained()
                assert flooder.poll() is None
                assert recorder.numbers == list(range(200))
                whom = STRANGER if identity == "nobody#1" else "c"
                assert [event.peer for event in b.reported(MalformedFrames)] == [whom]
                assert b.node.figures["decode_errors"] > 0

        try:
            trio.run(main)
        finally:
            if flooder is not None:
                flooder.kill()
                flooder.wait()
                flooder.stdout.close()
        assert grown < BOUND, f"{grown >> 20} MiB more"


@pytest.mark.real_time
def test_strangers_without_a_key_take_no_memory_from_an_inbox():
    assert strangers_mib() < WORST_MIB


@pytest.mark.real_time
async def test_strangers_who_say_nothing_have_few_places_and_keep_no_node_out():
    case, more = Zmq(), 40
    port = int(case.addresses["b"].rpartition(":")[2])
    places = len(case.addresses) + STRANGERS
    async with case.world() as world:
        a, b = await world.start("a"), await world.start("b")
        call = a.node.call("questions", ["b"], outstanding=1, timeout=5.0)
        with contextlib.ExitStack() as connections, trio.fail_after(8):  # less than the time for a handshake
            strangers = connect_strangers(port, b"", connections, places)
            assert await call(Question(1)) == Item(1)
            strangers += connect_strangers(port, b"", connections, more)
            for client in strangers[:more]:  # the oldest made room
                assert await trio.to_thread.run_sync(partial(ended, client, 5.0))
            assert await call(Question(2)) == Item(2)
            assert not any(ended(client, 0.0) for client in strangers[more + len(case.addresses) :])
        assert b.reported(Unauthenticated) == [Unauthenticated("127.0.0.9")]
        assert a.reported(Unauthenticated) == []


@pytest.mark.real_time
@pytest.mark.parametrize("silent", [0, STRANGERS + 3], ids=["alone", "beside silent ones"])
async def test_many_clients_with_the_key_behind_one_address_are_admitted_in_the_end(silent):
    case, many = Zmq(), STRANGERS + 72
    _, _, port = case.addresses["b"].rpartition(":")
    async with case.world() as world:
        b, seen = await world.start("b"), set()
        b.node.on_inbox = lambda identity, frames: seen.add(identity)
        with contextlib.ExitStack() as opened, trio.fail_after(30):
            connect_strangers(int(port), b"", opened, silent)
            context = opened.enter_context(zmq.Context())
            clients = {
                name: opened.enter_context(client_with_key(case, context, name))
                for name in (b"host-%d#1" % number for number in range(many))
            }
            for client in clients.values():
                client.connect(f"tcp://{SOURCE[0]}:0;127.0.0.1:{port}")
            time.sleep(1.0)  # noqa: ASYNC251 - the node sees all of them at once
            while unseen := clients.keys() - seen:
                for name in unseen:  # as nodes repeat their heartbeats: who makes room may have lost one
                    clients[name].send(b"")
                await trio.sleep(0.5)
        assert b.node.figures["unauthenticated"] >= silent  # where they come at once, some make room and come again


@pytest.mark.real_time
async def test_a_message_without_end_of_a_client_with_the_key_is_cut_off_and_messages_of_nodes_are_not():
    case, part, before = Zmq(), bytes(PART - 1), resident()
    case.limits = replace(case.limits, message_bytes=1 << 20)
    async with case.world() as world:
        recorder = Recorder()
        a, b = await world.start("a"), await world.start("b", recorder)
        link = a.node.push("items", ["b"], window=64)
        for number in range(300):  # together far more than one connection may leave unfinished
            await link.send(Item(number, "x" * (900 << 10)))
        await link.drained()
        assert not b.reported(MalformedFrames)
        with zmq.Context() as context, client_with_key(case, context, b"c#7") as client, trio.fail_after(20):
            client.connect(case.addresses["b"])
            for _ in range(2 << 30 >> 17):
                client.send(part, zmq.SNDMORE, copy=False)
            client.send(b"")
            while not b.reported(MalformedFrames):
                await case.heartbeats(1)
            grown = resident() - before
        (event,) = b.reported(MalformedFrames)
        assert event.peer == "127.0.0.1"
        assert "bytes of one message" in event.reason
        assert grown < 512 << 20, f"{grown >> 20} MiB more"
        await link.send(Item(300))
        await link.drained()
        assert recorder.numbers == list(range(301))


def client_with_key(case, context, identity):
    """A socket that is not connected yet."""
    client = context.socket(zmq.DEALER)
    client.linger, client.sndhwm, client.routing_id = 0, 0, identity
    client.curve_publickey, client.curve_secretkey = case.keys.public.encode(), case.keys.secret.encode()
    client.curve_serverkey = case.keys.public.encode()
    return client


def ended(client, seconds):
    """Whether the node closes the connection within so many seconds."""
    client.settimeout(seconds)
    try:
        while client.recv(1024):
            pass
    except (TimeoutError, BlockingIOError):
        return False
    return True

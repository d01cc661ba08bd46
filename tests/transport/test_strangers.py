"""What should not come: floods, and messages of a known peer that the receiver does not take."""

import contextlib
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import zmq

from tests.transport.contract import Item, Question, Recorder, Zmq, client, free_port
from transport import CurveKeys, MalformedFrames, Unauthenticated
from transport.curve import STRANGERS
from transport.limits import PART
from transport.node import STRANGER

pytestmark = pytest.mark.real_time
ROOT = Path(__file__).parents[2]
SOURCE = ("127.0.0.9", 0)
"""Where strangers come from."""
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


def resident():
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("identity", ["nobody#1", "c#7"], ids=["stranger", "impersonator"])
async def test_a_flood_while_the_actor_is_busy_takes_no_memory_and_loses_no_push(sockets, identity):
    """The event loop stands still until the flooder gets no further; then pushes pass while it goes on."""
    case, grown, flooders = Zmq(sockets), [], []
    with contextlib.ExitStack() as started:

        async def busy(delivery):
            if delivery.message.number == 0:
                before = resident()
                command = [sys.executable, "-c", FLOODER, identity, case.addresses["b"]]
                flooder = started.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))  # noqa: ASYNC220
                started.callback(flooder.kill)
                flooders.append(flooder)
                sent = int(flooder.stdout.readline())
                grown.append(resident() - before)
                assert sent < COUNT

        async with case.pair(answers=busy) as (a, b, recorder, _):
            link = a.node.push("items", ["b"], window=8)
            for number in range(200):
                await link.send(Item(number))
            await link.drained()
            assert flooders[0].poll() is None
            assert recorder.numbers == list(range(200))
            whom = STRANGER if identity == "nobody#1" else "c"
            assert [event.peer for event in await b.told(MalformedFrames)] == [whom]
            assert b.node.figures["decode_errors"] > 0
    assert grown[0] < BOUND, f"{grown[0] >> 20} MiB more"


NODE = """
import sys, trio
from pathlib import Path
from transport import CurveKeys, Node, Registry, ZmqNetwork

async def main(address, keys):
    network = ZmqNetwork({"node": address}, curve=CurveKeys.load(Path(keys)))
    async with trio.open_nursery() as nursery:
        await nursery.start(Node("node", network, Registry(), incarnation=0).run, None)
        print("ready", flush=True)

trio.run(main, *sys.argv[1:])
"""
SENT = 4 << 20
"""The most that each stranger sends, in bytes."""
SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
GREETING = SIGNATURE + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)
MORE, LONG, COMMAND, DEALER = 1, 2, 4, 5


def frame(flags, size, content=None):
    """A frame of ZMTP (RFC 23) that announces ``size`` bytes and has ``content`` of them, or all."""
    return bytes([flags | LONG]) + size.to_bytes(8, "big") + bytes(size if content is None else content)


MULTIPART = frame(MORE, PART // 2) * (SENT // (PART // 2))
SAID = {
    "a handshake command of 250 MiB": GREETING + frame(COMMAND, 250 << 20, SENT),
    "the largest command that is read, without its last byte": GREETING + frame(COMMAND, PART, PART - 1),
    "an endless multipart message": GREETING + MULTIPART,
    "an endless multipart message of ZMTP 2": SIGNATURE + bytes([1, DEALER]) + b"\0\0" + MULTIPART,
}


def memory(process, name):
    """A figure of a process's memory in bytes: VmRSS, or VmHWM, the most that VmRSS ever was."""
    return int(re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())[1]) << 10


def connect_strangers(port, said, connections, count=128):
    """So many clients that have said this, or as much of it as was read; ``connections`` closes them."""
    made = []
    for _ in range(count):
        stranger = connections.enter_context(socket.create_connection(("127.0.0.1", port), None, SOURCE))
        stranger.settimeout(1.0)
        with contextlib.suppress(OSError):  # the node has closed the connection, or reads no more
            stranger.sendall(said)
        made.append(stranger)
    return made


def test_strangers_without_a_key_take_no_memory_from_an_inbox(sockets):
    """128 at once, of one kind after the other."""
    port = free_port()
    CurveKeys.generate().save(sockets / "keys")
    command = [sys.executable, "-c", NODE, f"tcp://127.0.0.1:{port}", str(sockets / "keys")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as node:
        try:
            assert node.stdout.readline() == "ready\n"
            before = memory(node.pid, "VmRSS")
            for said in SAID.values():
                with contextlib.ExitStack() as connections:
                    connect_strangers(port, said, connections)
                    time.sleep(0.5)  # until the node has read what was sent
            assert node.poll() is None
            assert memory(node.pid, "VmHWM") - before < BOUND
        finally:
            node.kill()


async def test_strangers_who_say_nothing_have_few_places_and_keep_no_node_out():
    case, more = Zmq(), 40
    case.limits = replace(case.limits, handshake=90.0)
    port = int(case.addresses["b"].rpartition(":")[2])
    places = len(case.addresses) + STRANGERS
    async with case.world() as world:
        a, b = await world.start("a"), await world.start("b")
        call = a.node.call("questions", ["b"], outstanding=1, timeout=30.0)
        with contextlib.ExitStack() as connections, trio.fail_after(50):  # less than the time for a handshake
            strangers = connect_strangers(port, b"", connections, places)
            assert await call(Question(1)) == Item(1)
            strangers += connect_strangers(port, b"", connections, more)
            for stranger in strangers[:more]:  # the oldest made room
                assert await trio.to_thread.run_sync(partial(ended, stranger, 20.0))
            assert await call(Question(2)) == Item(2)
            assert not any(ended(each, 0.0) for each in strangers[more + len(case.addresses) :])
        assert b.reported(Unauthenticated) == [Unauthenticated("127.0.0.9")]
        assert a.reported(Unauthenticated) == []


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
                name: opened.enter_context(client(context, case.keys, case.keys, name))
                for name in (b"host-%d#1" % number for number in range(many))
            }
            for each in clients.values():
                each.connect(f"tcp://{SOURCE[0]}:0;127.0.0.1:{port}")
            time.sleep(1.0)  # noqa: ASYNC251 - the node sees all of them at once
            while unseen := clients.keys() - seen:
                for name in unseen:  # as nodes repeat their heartbeats: who makes room may have lost one
                    clients[name].send(b"")
                await trio.sleep(0.5)
        assert b.node.figures["unauthenticated"] >= silent  # where they come at once, some make room and come again


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
        with zmq.Context() as context, client(context, case.keys, case.keys, b"c#7") as endless:
            endless.connect(case.addresses["b"])
            for _ in range(2 << 30 >> 17):
                endless.send(part, zmq.SNDMORE, copy=False)
            endless.send(b"")
            (event,) = await b.told(MalformedFrames)
            grown = resident() - before
        assert event.peer == "127.0.0.1"
        assert "bytes of one message" in event.reason
        assert grown < 512 << 20, f"{grown >> 20} MiB more"
        await link.send(Item(300))
        await link.drained()
        assert recorder.numbers == list(range(301))


def ended(stranger, seconds):
    """Whether the node closes the connection within so many seconds."""
    stranger.settimeout(seconds)
    try:
        while stranger.recv(1024):
            pass
    except (TimeoutError, BlockingIOError):
        return False
    return True

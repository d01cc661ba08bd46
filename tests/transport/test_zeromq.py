"""Nodes over real sockets: frames of every size, addresses, and who is told that a key is refused."""

import contextlib
import dataclasses
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import trio
import zmq

from tests.transport.contract import REGISTRY, Block, Item, Question, Recorder, Zmq, client, free_port
from transport import (
    BindError,
    CurveKeys,
    EncodeError,
    InsecureLink,
    KeyRefused,
    Limits,
    Node,
    Unauthenticated,
    UnknownPeer,
    ZmqNetwork,
    encode,
    turn_away,
)
from transport.codec import size_of
from transport.frames import PushFrame, pack
from transport.limits import PART

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[2]
SERVER = """
import sys
import trio
from transport import CurveKeys, Limits, Node, ZmqNetwork
from tests.transport.contract import REGISTRY, Item, Recorder
from pathlib import Path

async def answer(delivery):
    await trio.lowlevel.checkpoint()
    return Item(delivery.message.number + 1)

async def main(a, b, keys):
    network = ZmqNetwork({"a": a, "b": b}, curve=CurveKeys.load(Path(keys)))
    node = Node("b", network, REGISTRY, incarnation=0, limits=Limits(heartbeat_interval=0.05))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run, Recorder(answers=answer))
        print("ready", flush=True)

trio.run(main, *sys.argv[1:])
"""


async def test_two_processes_over_tcp_with_keys(sockets):
    case = Zmq()
    case.addresses["b"] = f"tcp://localhost:{free_port()}"
    case.keys.save(sockets / "keys")
    command = [sys.executable, "-c", SERVER, case.addresses["a"], case.addresses["b"], str(sockets / "keys")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:  # noqa: ASYNC220
        assert process.stdout.readline() == b"ready\n"
        async with case.world() as world:
            node = (await world.start("a")).node
            link = node.push("items", ["b"], window=32)
            call = node.call("questions", ["b"], outstanding=2, timeout=10.0)
            for number in range(500):
                await link.send(Item(number))
            assert await call(Question(1)) == Item(2)
            with trio.fail_after(10):
                await link.drained()
        process.kill()


async def test_large_arrays_stay_in_the_memory_of_zeromq(sockets):
    async with Zmq(sockets).pair() as (a, _, recorder, _):
        link = a.node.push("blocks", ["b"], window=2)
        for size in (100, 1024):
            await link.send(Block(np.full((size, size), size, np.float32)))
        await recorder.count(2)
        small, large = (delivery.message.values for delivery in recorder.deliveries)

        def root(array):
            while isinstance(array, np.ndarray):
                array = array.base
            return array

        assert isinstance(root(small), bytes)
        assert not isinstance(root(large), bytes)
        assert (large == 1024).all()


@pytest.mark.parametrize("size", [PART - 1, PART, PART + 1, 3 * PART])
async def test_frames_that_go_over_tcp_in_parts_arrive_whole(size):
    async def answer(delivery):
        await trio.lowlevel.checkpoint()
        return Item(1, delivery.message.text[::-1])

    async with Zmq().pair(answers=answer) as (a, _, recorder, _):
        call = a.node.call("items", ["b"], outstanding=1, timeout=10.0)
        for exact in range(size - 64, size + 2):  # the body is longer than its text
            text = f"{exact}:".ljust(exact, "x")
            assert await call(Item(exact, text)) == Item(1, text[::-1])
        assert recorder.numbers == list(range(size - 64, size + 2))


async def test_a_message_of_exactly_the_largest_size_passes(sockets):
    case = Zmq(sockets)
    case.limits = dataclasses.replace(case.limits, message_bytes=1 << 20)
    async with case.pair() as (a, _, recorder, _):
        link = a.node.push("items", ["b"], window=2)
        room = (1 << 20) - size_of(encode(Item(0, "x" * (1 << 19)))) + (1 << 19)
        await link.send(Item(0, "x" * room))
        await recorder.count(1)
        with pytest.raises(EncodeError, match="Item: 1048577 bytes, the limit is 1048576"):
            await link.send(Item(1, "x" * (room + 1)))


async def test_strangers_are_not_admitted():
    """Who knows the server's public key, as a client must, but has a key pair of its own."""
    case = Zmq()
    async with case.pair() as (_, b, recorder, _):
        with zmq.Context() as context, client(context, case.keys, CurveKeys.generate(), b"a#0") as stranger:
            stranger.connect(case.addresses["b"])
            stranger.send_multipart(pack(PushFrame("items", b.node.incarnation, 1), encode(Item(0))))
            assert await b.told(Unauthenticated) == [Unauthenticated("127.0.0.1")]
        assert recorder.deliveries == []


def test_addresses_that_others_reach_need_keys():
    for address in ("tcp://10.0.0.1:5700", "tcp://127.0.0.5:5700", "tcp://localhost:5700", "tcp://[::1]:5700"):
        with pytest.raises(InsecureLink, match=rf"{re.escape(address)} of a can be reached by others, .* pass curve="):
            ZmqNetwork({"a": address})
    ZmqNetwork({"a": "ipc:///tmp/x"})
    ZmqNetwork({"a": "tcp://10.0.0.1:5700"}, curve=CurveKeys.generate())
    with pytest.raises(ValueError, match="expected ipc:///path or tcp://host:port"):
        ZmqNetwork({"a": "inproc://a"})
    with pytest.raises(UnknownPeer, match="no address is known for b"):
        ZmqNetwork({"a": "ipc:///tmp/x"}).attach("b", 0, Limits())


def bind_error(addresses):
    async def main():
        network = ZmqNetwork(addresses, curve=CurveKeys.generate())
        with pytest.raises(BindError) as caught:
            await Node("a", network, REGISTRY, incarnation=0).run(Recorder())
        return str(caught.value)

    return trio.run(main)


def test_bind_errors_name_address_and_remedy(sockets):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert f"{address}: another process listens there" in bind_error({"a": address})
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(sockets / "a"))
        taken.listen()
        assert "another process listens there" in bind_error({"a": f"ipc://{sockets}/a"})


async def test_a_stale_socket_file_is_replaced_and_removed_at_the_end(sockets):
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(sockets / "a"))
    assert (sockets / "a").exists()
    async with Zmq(sockets).world() as world:
        await world.start("a")
    assert not (sockets / "a").exists()


async def test_a_connection_made_anew_is_the_only_one(sockets):
    """The former one lingers, would take its place at the peer's inbox, and then end: nothing would arrive any more."""
    address = f"ipc://{sockets}/there"
    network = ZmqNetwork({"here": f"ipc://{sockets}/here", "there": address})
    port = network.attach("here", 0, Limits(linger=30.0))
    port.connect("there")
    await port.bind(SimpleNamespace(on_back=None))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.serve)
        port.send("there", [b"before"])
        await trio.sleep(0.15)  # the next attempt to connect is due within the linger
        port.renew("there")
        await trio.sleep(0.3)  # ZeroMQ's own thread ends the former one
        with zmq.Context() as context, context.socket(zmq.ROUTER) as inbox:
            monitor = inbox.get_monitor_socket(zmq.EVENT_ACCEPTED)
            inbox.bind(address)
            with trio.fail_after(30):
                while not monitor.poll(0):  # noqa: ASYNC110
                    await trio.sleep(0.05)
            await trio.sleep(0.7)  # a second one would come by then
            accepted = 0
            while monitor.poll(0):
                monitor.recv_multipart()
                accepted += 1
            inbox.disable_monitor()
            monitor.close()
        nursery.cancel_scope.cancel()
    await port.close()
    assert accepted == 1


@pytest.mark.parametrize("absent", [True, False])
async def test_closing_does_not_wait_for_peers_that_are_not_there(sockets, absent):
    network = ZmqNetwork({"here": f"ipc://{sockets}/here", "there": f"ipc://{sockets}/there"})
    linger = 60.0 if absent else 0.3
    port = network.attach("here", 0, Limits(linger=linger))
    port.connect("there")
    await port.bind(SimpleNamespace(on_back=None))
    port.send("there", [b"goodbye"])
    before = trio.current_time()
    await port.close({"there"} if absent else ())
    assert (trio.current_time() - before < linger) == absent


BUSY = """
import sys
import time
import trio
from transport import CurveKeys, Limits, ZmqNetwork
from pathlib import Path

class Receiver:
    class faults:
        unauthenticated = malformed = None

    def on_inbox(identity, frames):
        sys.stdin.readline()
        time.sleep(6)
        sys.exit()

async def main(here, keys):
    port = ZmqNetwork({"here": here}, curve=CurveKeys.load(Path(keys))).attach("here", 0, Limits())
    await port.bind(Receiver)
    print("ready", flush=True)
    await port.serve()

trio.run(main, *sys.argv[1:], strict_exception_groups=False)
"""


@pytest.mark.slow
def test_a_connection_that_is_reset_while_the_inbox_is_full_does_not_end_the_process(sockets):
    """Its event loop stands meanwhile. ZeroMQ's heartbeats would abort it within four seconds."""
    keys, address = CurveKeys.generate(), f"tcp://127.0.0.1:{free_port()}"
    keys.save(sockets / "key")
    command = [sys.executable, "-c", BUSY, address, str(sockets / "key")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout.readline() == "ready\n"
        with zmq.Context() as context, client(context, keys, keys, b"sender") as sender:
            sender.sndhwm = 100
            sender.connect(address)
            while sender.poll(500, zmq.POLLOUT):  # until the inbox, the kernel and the sender are full
                sender.send(bytes(100_000))
        process.communicate("the connection is closed\n", timeout=60)
    assert process.returncode == 0


# Keys that are refused.


@pytest.mark.parametrize("same", [False, True])
async def test_both_sides_learn_of_keys_that_differ(same):
    cases = {"a": Zmq(watched=["b"]), "b": Zmq(watched=["a"])}
    cases["b"].addresses = cases["a"].addresses
    if same:
        cases["b"].keys = cases["a"].keys
    async with cases["a"].world() as of_a, cases["b"].world() as of_b:
        sides = {"b": await of_a.start("a"), "a": await of_b.start("b")}
        for peer, side in sides.items():
            side.node.announce("items", [peer])
        if same:
            await trio.sleep(1.0)
            assert [side.events for side in sides.values()] == [[], []]
        else:
            for peer, side in sides.items():
                assert (await side.told(KeyRefused))[-1].peer == peer
                assert await side.told(Unauthenticated)
                assert side.node.figures["unauthenticated"] > 0


async def test_a_process_without_a_key_refuses_a_peer_at_its_address():
    case = Zmq(watched=["b"])
    async with case.world() as world:
        a = await world.start("a")
        a.node.announce("items", ["b"])
        assert await turn_away(case.addresses["b"], 20.0)
        assert (await a.told(KeyRefused))[-1].peer == "b"
        assert not await turn_away(case.addresses["a"], 20.0)  # another process listens there
    assert not await turn_away(case.addresses["b"], 0.1)  # nobody came


async def test_a_peer_is_reached_although_another_program_had_its_port():
    """ZeroMQ gives a connection up when it is answered in another protocol."""
    case = Zmq()
    async with case.world() as world:
        port = int(case.addresses["b"].rpartition(":")[2])
        (listener,) = await trio.open_tcp_listeners(port, host="127.0.0.1")
        link = (await world.start("a")).node.push("items", ["b"], window=1)
        stream = await listener.accept()
        await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some(1024):
                pass
        await stream.aclose()
        await listener.aclose()
        await world.start("b")
        await link.send(Item(1))
        await link.drained()

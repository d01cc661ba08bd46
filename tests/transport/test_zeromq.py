import dataclasses
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import trio
import zmq

from tests.transport.contract.base import REGISTRY, Block, ContractBase, Item, Question, Recorder
from transport import (
    BindError,
    CurveKeys,
    EncodeError,
    InsecureLink,
    Limits,
    Node,
    Unauthenticated,
    UnknownPeer,
    ZmqNetwork,
    encode,
)
from transport.codec import size_of
from transport.frames import PushFrame, pack
from transport.limits import PART

pytestmark = pytest.mark.real_time

ROOT = Path(__file__).parents[2]
LIMITS = Limits(heartbeat_interval=0.05, silent_after=2.0, linger=0.2)
SERVER = """
import sys
import trio
from transport import CurveKeys, Limits, Node, ZmqNetwork
from tests.transport.contract.base import REGISTRY, Item, Recorder
from pathlib import Path

async def answer(delivery):
    await trio.lowlevel.checkpoint()
    return Item(delivery.message.number + 1)

async def main(here, there, keys):
    network = ZmqNetwork({"here": here, "there": there}, curve=CurveKeys.load(Path(keys)))
    node = Node("there", network, REGISTRY, incarnation=0, limits=Limits(heartbeat_interval=0.05))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run, Recorder(answers=answer))
        print("ready", flush=True)

trio.run(main, *sys.argv[1:])
"""


@pytest.fixture
def directory():
    with tempfile.TemporaryDirectory(prefix="link") as path:
        yield Path(path)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Zmq(ContractBase):
    limits = LIMITS

    def __init__(self, network):
        self._network = network

    def network(self, _names):
        return self._network


async def test_two_processes_over_tcp_with_keys(directory):
    keys, addresses = CurveKeys.generate(), [f"tcp://{host}:{free_port()}" for host in ("127.0.0.1", "localhost")]
    keys.save(directory / "keys")
    command = [sys.executable, "-c", SERVER, *addresses, str(directory / "keys")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:  # noqa: ASYNC220
        assert process.stdout.readline() == b"ready\n"
        network = ZmqNetwork(dict(zip(("here", "there"), addresses, strict=True)), curve=keys)
        async with Zmq(network).world() as world:
            node = (await world.start("here")).node
            link = node.push("items", ["there"], window=32)
            call = node.call("questions", ["there"], outstanding=2, timeout=10.0)
            for number in range(500):
                await link.send(Item(number))
            assert await call(Question(1)) == Item(2)
            with trio.fail_after(10):
                await link.drained()
        process.kill()


async def test_large_arrays_stay_in_the_memory_of_zeromq(directory):
    case = Zmq(ZmqNetwork({name: f"ipc://{directory}/{name}" for name in "ab"}))
    async with case.world() as world:
        recorder = Recorder()
        a, _ = await world.start("a"), await world.start("b", recorder)
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
    addresses = {name: f"tcp://127.0.0.1:{free_port()}" for name in "ab"}
    async with Zmq(ZmqNetwork(addresses, curve=CurveKeys.generate())).world() as world:
        received = []

        async def answer(delivery):
            received.append(delivery.message)
            return Item(1, delivery.message.text[::-1])

        a, _ = await world.start("a"), await world.start("b", Recorder(answers=answer))
        call = a.node.call("items", ["b"], outstanding=1, timeout=10.0)
        for exact in range(size - 64, size + 2):  # the body is longer than its text
            text = f"{exact}:".ljust(exact, "x")
            assert await call(Item(exact, text)) == Item(1, text[::-1])
        assert [message.number for message in received] == list(range(size - 64, size + 2))


async def test_a_message_of_exactly_the_largest_size_passes(directory):
    case = Zmq(ZmqNetwork({name: f"ipc://{directory}/{name}" for name in "ab"}))
    case.limits = dataclasses.replace(LIMITS, message_bytes=1 << 20)
    async with case.world() as world:
        recorder = Recorder()
        a, _ = await world.start("a"), await world.start("b", recorder)
        link = a.node.push("items", ["b"], window=2)
        room = (1 << 20) - size_of(encode(Item(0, "x" * (1 << 19)))) + (1 << 19)
        await link.send(Item(0, "x" * room))
        await recorder.count(1)
        with pytest.raises(EncodeError, match="Item: 1048577 bytes, the limit is 1048576"):
            await link.send(Item(1, "x" * (room + 1)))


async def test_strangers_are_not_admitted():
    """Who knows the server's public key, as a client must, but has a key pair of its own."""
    addresses = {name: f"tcp://127.0.0.1:{free_port()}" for name in "ab"}
    cluster, stranger = CurveKeys.generate(), CurveKeys.generate()
    case = Zmq(ZmqNetwork(addresses, curve=cluster))
    async with case.world() as world:
        recorder = Recorder()
        b = await world.start("b", recorder)
        with zmq.Context() as context, context.socket(zmq.DEALER) as client, trio.fail_after(5):
            client.linger, client.routing_id = 0, b"a#0"
            client.curve_publickey, client.curve_secretkey = stranger.public.encode(), stranger.secret.encode()
            client.curve_serverkey = cluster.public.encode()
            client.connect(addresses["b"])
            client.send_multipart(pack(PushFrame("items", b.node.incarnation, 1), encode(Item(0))))
            while not b.reported(Unauthenticated):
                await case.heartbeats(1)
        assert b.reported(Unauthenticated) == [Unauthenticated("127.0.0.1")]
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
        ZmqNetwork({"a": "ipc:///tmp/x"}).attach("b", 0, LIMITS)


def bind_error(addresses):
    async def main():
        network = ZmqNetwork(addresses, curve=CurveKeys.generate())
        with pytest.raises(BindError) as caught:
            await Node("a", network, REGISTRY, incarnation=0, limits=LIMITS).run(Recorder())
        return str(caught.value)

    return trio.run(main)


def test_bind_errors_name_address_and_remedy(directory):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert f"{address}: another process listens there" in bind_error({"a": address})
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(directory / "a"))
        taken.listen()
        assert "another process listens there" in bind_error({"a": f"ipc://{directory}/a"})


async def test_a_stale_socket_file_is_replaced_and_removed_at_the_end(directory):
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(directory / "a"))
    assert (directory / "a").exists()
    async with Zmq(ZmqNetwork({"a": f"ipc://{directory}/a"})).world() as world:
        await world.start("a")
    assert not (directory / "a").exists()


async def test_a_connection_made_anew_is_the_only_one(directory):
    """The former one lingers, would take its place at the peer's inbox, and then end: nothing would arrive any more."""
    address = f"ipc://{directory}/there"
    network = ZmqNetwork({"here": f"ipc://{directory}/here", "there": address})
    port = network.attach("here", 0, Limits())
    port.connect("there")
    await port.bind(SimpleNamespace(on_back=None))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.serve)
        port.send("there", [b"before"])
        await trio.sleep(0.15)  # the next attempt to connect is due within the linger
        port.renew("there")
        with zmq.Context() as context, context.socket(zmq.ROUTER) as inbox:
            monitor = inbox.get_monitor_socket(zmq.EVENT_ACCEPTED)
            inbox.bind(address)
            await trio.sleep(0.7)
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
async def test_closing_does_not_wait_for_peers_that_are_not_there(directory, absent):
    network = ZmqNetwork({"here": f"ipc://{directory}/here", "there": f"ipc://{directory}/there"})
    port = network.attach("here", 0, Limits(linger=0.3))
    port.connect("there")
    await port.bind(SimpleNamespace(on_back=None))
    port.send("there", [b"goodbye"])
    before = trio.current_time()
    await port.close({"there"} if absent else ())
    assert (trio.current_time() - before < 0.3) == absent


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
def test_a_connection_that_is_reset_while_the_inbox_is_full_does_not_end_the_process(directory):
    """Its event loop stands meanwhile. ZeroMQ's heartbeats would abort it within four seconds."""
    keys = CurveKeys.generate()
    keys.save(directory / "key")
    address = f"tcp://127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", BUSY, address, str(directory / "key")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout.readline() == "ready\n"
        with zmq.Context() as context, context.socket(zmq.DEALER) as sender:
            for option, key in (("PUBLIC", keys.public), ("SECRET", keys.secret), ("SERVER", keys.public)):
                sender.setsockopt(getattr(zmq, f"CURVE_{option}KEY"), key.encode())
            sender.setsockopt(zmq.SNDHWM, 100)
            sender.setsockopt(zmq.LINGER, 0)
            sender.connect(address)
            while sender.poll(500, zmq.POLLOUT):  # until the inbox, the kernel and the sender are full
                sender.send(bytes(100_000))
        process.communicate("the connection is closed\n", timeout=60)
    assert process.returncode == 0

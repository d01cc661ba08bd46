"""The pure parts of the networks: identities, parts of frames, keys, handshakes, addresses, and others' faults."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
import zmq
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from transport import BindError, CurveKeys, IncarnationRefused, MalformedFrames, Unauthenticated, zeromq
from transport.addresses import make_way, numeric, remove
from transport.curve import Admission, Handshakes
from transport.errors import MOST_REPORTED, Faults
from transport.network import make_identity, read_identity
from transport.zeromq import _joined, _parts


@given(st.text("a#é\n", min_size=1, max_size=50), st.integers(0, 10**19 - 1))
def test_an_identity_holds_a_name_and_an_incarnation(name, incarnation):
    assert read_identity(make_identity(name, incarnation)) == (name, incarnation)
    assert len(make_identity("é" * 126 + "x", 7)) == 255
    with pytest.raises(ValueError, match="node name of 127 characters"):
        make_identity("é" * 127, 7)


@pytest.mark.parametrize("stranger", ["", "a", "#1", "a#", "a#-1", "a#1x", "a#1_0", "a# 1", "a#²", "a#" + "9" * 20])
def test_what_is_no_identity_is_nobodys(stranger):
    assert read_identity(stranger.encode()) is None
    assert read_identity(stranger.encode() + b"\xff#1") is None


@given(st.lists(st.binary(max_size=13), max_size=4))
def test_frames_come_back_from_their_parts(frames):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zeromq, "PART", 4)
        parts = _parts(frames)
        assert all(len(part) <= 4 for part in parts)
        assert len(parts) == sum(1 + len(frame) // 4 for frame in frames)
        assert _joined(parts) == frames
        assert _joined([b"abcd"]) == [b"abcd"], "it promises another part, and none came"
        assert _joined([b"abcd", b"efgh"]) == [b"abcdefgh"]


def test_keys_are_saved_for_their_owner_only(tmp_path):
    keys, path = CurveKeys.generate(), tmp_path / "keys"
    keys.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert CurveKeys.load(path) == keys
    assert keys.secret not in repr(keys)
    with pytest.raises(FileExistsError):
        keys.save(path)
    for mode in (0o640, 0o604, 0o620, 0o602, 0o610, 0o601):
        path.chmod(mode)
        with pytest.raises(PermissionError, match=f"mode {mode:04o}.: run chmod 600"):
            CurveKeys.load(path)
    path.chmod(0o600)
    for text, said in (("nothing", "no key pair"), (f"{keys.text()}\nx", "no key pair"), ("a b", "public key is not")):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            CurveKeys.load(path)
    for wrong in (keys.secret[:-1], f"{keys.secret}x", f"{keys.secret[:-1]}é"):
        with pytest.raises(ValueError, match="the secret key is not a Z85 key of 40 characters"):
            CurveKeys(keys.public, wrong)


def test_admission_answers_as_zap_asks():
    keys = CurveKeys.generate()
    admitted: list[str] = []
    refused: list[str] = []
    admission = Admission(keys, admitted.append, refused.append)
    request = [b"1.0", b"7", b"cluster", b"::ffff:10.0.0.1", b"identity", b"CURVE", z85.decode(keys.public)]
    assert admission.answer(request) == [b"1.0", b"7", b"200", b"OK", b"member", b""]
    assert (admitted, refused) == (["10.0.0.1"], [])
    wrong = [[b"x" * 32], [], [request[6], request[6]]]
    others = (
        [*request[:5], b"NULL"],
        [*request[:5], b"PLAIN", b"user", b"password"],
        [*request[:5], b"NULL", request[6]],
    )
    for each in (*([*request[:6], *credentials] for credentials in wrong), *others):
        answer = admission.answer(each)
        assert answer is not None
        assert answer[:3] == [b"1.0", b"7", b"400"]
    assert (admitted, refused) == (["10.0.0.1"], ["10.0.0.1"] * 6)
    assert admission.answer([b"2.0", *request[1:]]) is None
    assert admission.answer(request[:5]) is None


EVENTS = {  # what ZeroMQ's monitor tells, and its value
    "success": (zmq.EVENT_HANDSHAKE_SUCCEEDED, 0),
    "protocol": (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0),
    "closed": (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, errno.EPIPE),
    "reset": (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, errno.ECONNRESET),
    "slow": (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, errno.ETIMEDOUT),
}


@pytest.mark.parametrize(
    ("story", "told"),
    [
        ("closed", []),
        ("closed reset", [1]),
        ("closed protocol closed", [1, 2]),
        ("closed success closed", []),
        ("closed closed success closed reset", [1, 1]),
        ("slow slow slow", []),
        ("reset slow reset", [2]),
    ],
)
async def test_a_peer_that_ends_handshakes_in_a_row_refuses_the_key_since_the_first(story, told):
    refused: list[float] = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        handshakes = Handshakes(dealer, refused.append)
        for word in story.split():
            handshakes.watch([struct.pack("=hi", *EVENTS[word]), b"tcp://peer"])
            await trio.sleep(1)
        handshakes.close()
    assert refused == told


class Names(trio.abc.HostnameResolver):
    """Knows one name, and never answers for a second one."""

    async def getaddrinfo(self, host: Any, *_: Any, **__: Any) -> Any:
        if host == b"slow.example":
            await trio.sleep_forever()
        if host != b"six.example":
            raise OSError("not known")
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::1", 0, 0, 0))]

    async def getnameinfo(self, sockaddr: Any, flags: int) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("host", "number", "seconds"),
    [
        *[(host, host, 0) for host in ("10.0.0.1", "[::1]", "0.0.0.0")],
        ("six.example", "[fd00::1]", 0),
        ("nobody.example", "the name nobody.example is unknown (not known): use an IP address", 0),
        ("slow.example", "the name slow.example is unknown (no answer within 10 s): use an IP address", 10),
    ],
)
async def test_a_host_has_its_number_within_ten_seconds(host, number, seconds):
    trio.socket.set_custom_hostname_resolver(Names())
    began = trio.current_time()
    if "unknown" in number:
        with pytest.raises(BindError, match=re.escape(f"tcp://{host}:5700: {number}")):
            await numeric(f"tcp://{host}:5700")
    else:
        assert await numeric(f"tcp://{host}:5700") == f"tcp://{number}:5700"
    assert trio.current_time() - began == seconds


def test_a_socket_file_makes_way_only_where_its_process_is_gone():
    with tempfile.TemporaryDirectory(prefix="link") as directory, socket.socket(socket.AF_UNIX) as listener:
        folder = Path(directory)
        longest = folder / ("é" * 99)[: (107 - len(os.fsencode(folder)) - 1) // 2]
        longest = longest.with_name(longest.name + "x" * (107 - len(os.fsencode(longest))))
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(longest))
        listener.bind(str(folder / "alive"))
        listener.listen()
        (folder / "file").touch()
        (folder / "link").symlink_to(longest)
        refused = {
            "alive": "another process listens there: stop it, or choose another run directory",
            "file": f"{folder}/file is not a socket: remove it",
            "link": f"{folder}/link is not a socket: remove it",
            "none/a": f"{folder}/none is not a directory: create it first",
            f"{longest.name}x": "a socket's path may have 107 bytes: choose a shorter run directory",
        }
        for name, reason in refused.items():
            with pytest.raises(BindError) as caught:
                make_way(folder / name, "address")
            assert str(caught.value) == f"address: {reason}"
        assert {each.name for each in folder.iterdir()} == {"alive", "file", "link", longest.name}
        make_way(longest, "address")
        make_way(longest, "address")
        remove(longest)
        assert not longest.exists()


def test_all_faults_are_counted_and_each_is_told_once_of_so_many_that_they_fill_no_memory():
    told: list[object] = []
    faults = Faults(told.append)
    for _ in range(2):
        faults.malformed("a", "why")
        faults.refused("a", 8, None)  # the announcement may still come
        faults.refused("a", 8, 7)
        faults.unauthenticated("b")
    assert told == [MalformedFrames("a", "why"), IncarnationRefused("a", 8, 7), Unauthenticated("b")]
    for number in range(MOST_REPORTED + 100):
        faults.unauthenticated(f"::{number:x}")
    assert len(told) == MOST_REPORTED
    counts = {"decode_errors": 2, "incarnations_refused": 4, "unauthenticated": MOST_REPORTED + 102}
    assert {name: count for name, count in faults.counts.items() if count} == counts

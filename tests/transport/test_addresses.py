"""Where nodes may listen, and what is told of others' faults."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio

from transport import BindError, IncarnationRefused, MalformedFrames, Unauthenticated
from transport.addresses import make_way, numeric, remove
from transport.errors import MOST_REPORTED, Faults


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

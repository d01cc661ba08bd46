"""The main program of a warm interpreter: isolate, warm up, report, serve."""

# pathlib takes memory, and every fork would pay for it:
# ruff: noqa: PTH123

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import socket
import sys
import traceback
from functools import partial
from typing import Any

from actors.sandbox.inside.child import CONTROL, MAIN, call_function, run_code
from actors.sandbox.inside.directories import Directories, open_files_limit, remove_tree
from actors.sandbox.inside.forks import OF_INTERPRETERS, WARM, Forker, ForkerGone, Forks
from actors.sandbox.inside.server import Farewell, OwnerGone, Server
from actors.sandbox.inside.shares import Shares
from actors.sandbox.inside.slots import Maker, NamespaceSlots
from actors.sandbox.inside.warm_up import collapse_into_huge_pages, warm_up
from actors.sandbox.isolation import kernel
from actors.sandbox.isolation.namespaces import enter_namespaces, import_from_where_shown
from actors.sandbox.wire import FAILED, READY


def prepare(config: dict[str, Any], farewell: Farewell) -> socket.socket:
    """Make this process a server and return the link to its owner. Raises OwnerGone when the owner has died."""
    signal.signal(signal.SIGTERM, farewell.say)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, int(signal.SIGTERM))  # not SIGKILL: the interpreter must clean up
    if os.getppid() != config["owner"]:
        farewell.say()
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    open_files_limit()
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write(OF_INTERPRETERS.decode())
    link = socket.socket(fileno=os.dup(0))
    link.setblocking(False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # output of imported modules must not mix with the messages
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace")):
        stream.reconfigure(encoding="utf-8", errors=errors, line_buffering=True)  # type: ignore[union-attr]
    sys.path.remove(config["root"])
    sys.path += config["paths"]
    sys.modules["__main__"] = MAIN
    return link


def isolate(server: Server, config: dict[str, Any]) -> None:
    """Enter the namespaces of this level, if any, and provide the slots. Raises OSError."""
    if config["namespaces"]:
        most = min(server.most, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - kernel.FIRST_SLOT_FD) // 8)
        proc, users = enter_namespaces(config["plan"], *config["outer_users"])
        import_from_where_shown()
        os.close(server.proc)
        server.proc = proc
        server.slots = NamespaceSlots(Maker(proc, config["scratch"], users), most, server.epoll, server.shares)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, int(signal.SIGTERM))  # the change of credentials has undone it
        server.slots.want(1)
        server.slots.arrive()  # the first slot, to see that slots can be made
        slot = server.slots.get()
        assert slot is not None
        server.slots.put_back(slot)
    else:
        filtered = bool(config["filter"])
        readable, listed = config["readable"], config["listed"]
        server.slots = Directories(config["directory"], server.most, readable, listed, server.shares, filtered=filtered)


def seal(program: str) -> None:
    """Close this process to other processes, and restrict its system calls with ``program``. Raises OSError."""
    kernel.control(kernel.PR_SET_DUMPABLE, 0)
    if program:
        kernel.install_filter(bytes.fromhex(program))


def said(stage: str, text: str) -> bytes:
    """The message to the owner that says why the interpreter could not start."""
    return json.dumps({"stage": stage, "text": text}).encode()[:60000]


def be_forker(server: Server, config: dict[str, Any], link: socket.socket) -> None:
    """Warm up, report it, and fork children on the server's orders. Raises what this process did not expect."""
    while (standard_error := os.dup(2)) <= CONTROL:
        pass  # reserve these numbers, which children need
    try:
        fork_children(server, config, link)
    except Exception:
        os.dup2(standard_error, 2)  # for the traceback: standard error is closed by now
        raise


def fork_children(server: Server, config: dict[str, Any], link: socket.socket) -> None:
    """Be the forker, whose descriptors up to CONTROL are reserved."""
    # Made before memory is fragmented, so that it lies on few pages:
    work = call_function if config["calls_functions"] else run_code
    forker = Forker(link, server.slots, server.null, work, bytes.fromhex(config.pop("child_filter")), server.proc)
    try:
        forker.rehearse(server.null, warm_up(config["modules"], work))
    except Exception:  # noqa: BLE001  the owner raises it
        link.send(said("warm_up", traceback.format_exc()))
        return
    os.environ.clear()
    if not config["namespaces"]:
        # A call's home and temporary directory is its own directory: "./" becomes absolute when it is used.
        os.environ["HOME"] = os.environ["TMPDIR"] = "./"
    collapse_into_huge_pages(server.proc)
    try:
        seal(config.pop("filter"))
    except OSError as error:
        link.send(said("isolation", str(error)))
        return
    gc.collect()
    gc.freeze()
    link.send(WARM)
    forker.serve()


def main() -> None:
    """Isolate, warm up, say so, and serve. ``argv[1]`` is a file of one JSON object (see ``Interpreter``)."""
    with open(int(sys.argv.pop())) as settings:
        config = json.load(settings)
    server, farewell = None, Farewell()
    try:
        link = prepare(config, farewell)
        server = Server(link, farewell, config["children"])
        try:
            stage, failure = "warm_up", b""
            for procs in config["groups"]:  # first, so that every child is in the groups
                with open(procs, "w") as members:
                    members.write("0")
            server.shares = Shares(config["shares"], config["alone"])
            stage = "isolation"
            isolate(server, config)
            server.forks = Forks(server.proc, [server.null, *server.slots.keep], partial(be_forker, server, config))
            stage = "warm_up"
            failure = server.forks.wait_until_warm()
            stage = "isolation"
            seal(config.pop("server_filter"))
        except Exception as error:  # noqa: BLE001  the owner raises it
            failure = said(stage, str(error) if stage == "isolation" else traceback.format_exc())
        if failure:
            server.reply(FAILED, 0, 0, 0, 0.0, failure)
        else:
            server.reply(READY, 0, 0, 0, 0.0)
            server.serve()
    except (OwnerGone, ForkerGone):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if server is not None:
            server.kill_all()
        if config["directory"]:
            remove_tree(config["directory"])

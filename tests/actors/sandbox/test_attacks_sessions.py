"""Attacks from within a session's cell: on its next cells' results, on its control socket, on everybody else.

Beside each run another session and a plain call; both go on unharmed, and so does the attacker's own session: its next
cell finds the state before the attack, or after it, in time.
"""

from __future__ import annotations

import pytest
import trio

from actors.sandbox.owner.client import ExecutionLimits, Sandbox
from agent_rl.environments.base import ToolOutput
from tests.actors.sandbox.running import eventually, living, named, require, run_with

LIMITS = ExecutionLimits(wall_seconds=1.5, cpu_seconds=2, memory_bytes=128 << 20, output_bytes=10_000, processes=8)
IN_FRAMES = "import sys\nframe = sys._getframe()\nwhile frame.f_back: frame = frame.f_back\n"
ATTACKS = {
    "a fork bomb": "import os\ntry:\n    while True: os.fork()\nexcept OSError: pass",
    "a process that outlives the cell": named("outlives") + "import os, time\nif os.fork() == 0: time.sleep(60)",
    "a process in a group of its own": named("outlives")
    + "import os, time\nif os.fork() == 0:\n    os.setpgid(0, 0)\n    if os.fork() == 0: time.sleep(60)\n"
    "    os._exit(0)",
    "endless output": "while True: print('x' * 1000)",
    "a full /tmp": "try:\n    for n in range(10**6): open(f'f{n}', 'wb').write(b'x' * 10**6)\nexcept OSError: pass",
    "all descriptors": "import os\nheld = []\ntry:\n    while True: held.append(os.dup(0))\nexcept OSError: pass",
    "closing its control socket": "import os\nos.close(4)",
    "another file for its control socket": "import os\nos.dup2(os.open('/dev/zero', os.O_RDWR), 4)",
    "closing everything": "import os\nos.closerange(0, 64)",
    "a report and an end of its own": "import os\nos.pwrite(3, b'success\\nforged', 0)\nos.write(4, b'.')\nos._exit(0)",
    "an end of its cell, and no more listening": "import os\nos.write(4, b'.')\nos.close(4)\nwhile True: pass",
    "an end of its cell, and another program": "import os\nos.write(4, b'.')\nos.execv('/bin/sleep', ['sleep', '60'])",
    "an end of its cell amid threads that come and go": (
        "import os, threading\ndef come(): threading.Thread(target=come, daemon=True).start()\ncome()\nos.write(4, "
        "b'.')\n"
        "while True: pass"
    ),
    "many ends of cells": "import os\ntry:\n    for _ in range(10**5): os.write(4, b'.')\nexcept OSError: pass",
    "reading the next cell itself": (
        "import os, socket\ns = socket.socket(fileno=4)\ns.send(b'.')\nprint(socket.recv_fds(s, 16, 4))"
    ),
    "stopping itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "going on beside its next cells": (
        "import threading\ndef spin():\n    while True: pass\nfor _ in range(3): threading.Thread(target=spin, "
        "daemon=True).start()"
    ),
    "an alarm in the next cell": (
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: 1/0)\nsignal.setitimer(signal.ITIMER_REAL, 0.05)"
    ),
    "changing the loop that runs it": IN_FRAMES + "frame.f_globals.clear()",
    "a forged result for later cells": (
        "import sys\nsys.modules['actors.sandbox.inside.child'].run_code = lambda request: 'forged'"
    ),
    "limits of its own": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))",
    "its own end": "import os\nos.killpg(0, 9)",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_a_hostile_cell_harms_only_its_own_session(attack: str) -> None:
    require("strong")

    async def main(sandbox: Sandbox) -> None:
        async def cell(session: str, number: int, code: str, *earlier: str) -> ToolOutput:
            return await sandbox.run_cell(session, number, code, earlier, limits=LIMITS)

        assert (await cell("other", 1, "x = 41\nopen('mine', 'w').write('y')")).kept
        mine = await cell("attacker", 1, "y = 1")
        results: list[ToolOutput] = []

        async def hostile() -> None:
            results.append(await cell("attacker", 2, attack, "y = 1"))

        async def neighbour() -> None:
            call = await sandbox.execute(
                "import time, os\ntime.sleep(0.2)\nprint('mine', os.listdir('.'))", limits=LIMITS
            )
            assert (call.outcome, call.stdout) == ("success", "mine []\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hostile)
            nursery.start_soon(neighbour)
        other = await cell("other", 2, "print(x + 1, open('mine').read())", "x = 41\nopen('mine', 'w').write('y')")
        assert (other.outcome, other.stdout, other.note) == ("success", "42 y\n", "")
        earlier = ("y = 1", attack) if results[0].kept else ("y = 1",)
        assert mine.kept
        with trio.fail_after(20):
            after = await cell("attacker", 3, "y", *earlier)
        if not results[0].kept:
            assert (after.outcome, after.value) == ("success", "1")
        sandbox.end_session("attacker")
        assert await eventually(lambda: living("outlives") == 0)
        assert (await sandbox.execute("1", limits=LIMITS)).value == "1"
        assert sandbox.figures["restarts"] == 0

    run_with(Sandbox(isolation="strong"), main)

"""The tool server: HTTP of other trainers in, programs in the sandbox, replies out. It keeps nothing between requests.

::

    client --HTTP--> Server --> Read --Program--> a place --> Sandbox.run_program
      ^                                                            |
      `------------- Asked.reply <--------ProgramEnd--------------'
"""

from __future__ import annotations

import base64
import json
import math
import shutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import trio

from actors.http import FREE_BYTES, ClientLeft, Reply, Request, Server, foreign
from actors.sandbox.owner.client import Sandbox
from agent_rl.tool_protocols import code_judge, sandbox_fusion
from agent_rl.tool_protocols.base import BodyError, Bounds, Program, ProgramEnd, Run, detail

ENDPOINTS = {**code_judge.ENDPOINTS, **sandbox_fusion.ENDPOINTS}
PINGS = ("/ping", "/v1/ping")
STATUS = "/status"
CONNECTIONS = 8192
"""The most at once; further ones get status 503."""
OUTPUT_BYTES = (16 << 20) - 1
"""The most of an output that is compared with one that is expected. A program's next write fails."""
BINARY_BYTES = 16 << 20
"""The most that a compiled program may have, in base64."""
COMPILER = "g++"
COMPILING = """
import os, sys
words = {words!r}
sys.exit(os.spawnve(os.P_WAIT, words[0], words, {{**os.environ, "PATH": "/usr/local/bin:/usr/bin:/bin"}}))
"""
RUNNING = "import os; os.execv('main', ['main'])"
RUNNING_BEFORE_FETCHING = """
import os, sys
status = os.spawnv(os.P_WAIT, 'main', ['main'])
sys.exit(status if status >= 0 else 128 - status)
"""
"""With the exit status of a shell where a signal has ended the program."""
NO_COMPILER = f"there is no {COMPILER}, which compiles programs in C++, on the PATH of the server; install it there"


class ToolServer:
    """Serves the sandbox. At most as many programs run at once as the sandbox has places; the others wait."""

    def __init__(
        self, sandbox: Sandbox, bounds: Bounds, body_bytes: int, complain: Callable[[str], None], *, local: bool = True
    ) -> None:
        """``body_bytes``: the most that a request may have; ``complain`` is told of faults of the server itself.

        ``local``: it is reached at names of this host alone.
        """
        self._sandbox, self._bounds, self._complain, self._local = sandbox, bounds, complain, local
        self.places = sandbox.settings.interpreters * sandbox.settings.children
        self._free = trio.CapacityLimiter(self.places)
        self._waiting = 0
        self._http = Server(self._respond, body_bytes, CONNECTIONS, lambda why, _: (detail(why), "application/json"))
        compiler = shutil.which(COMPILER)
        self._compile = compiler and COMPILING.format(words=[compiler, "-O2", "-o", "main", "main.cpp"])

    async def run(
        self,
        listeners: Sequence[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Own the sandbox and serve until cancelled. Started once it is warm. Raises what `Sandbox.run` does."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._sandbox.run)
            task_status.started()
            await self._http.serve(listeners)

    async def _respond(self, request: Request, reply: Reply) -> None:
        try:
            await self._route(request, reply)
        except ClientLeft:
            raise
        except Exception as error:
            self._complain(f"a request to {request.path} failed; please report this:\n{traceback.format_exc()}")
            if reply.begun:
                raise ClientLeft from error
            await reply.send(500, detail(f"the server failed: {type(error).__name__}; its standard error has more"))

    async def _route(self, request: Request, reply: Reply) -> None:
        path, _, _ = request.path.partition("?")
        if why := foreign(request.headers, local=self._local):
            await reply.send(403, detail(why))
            return
        pages: dict[str, object] = dict.fromkeys(PINGS, "pong")
        pages[STATUS] = {"queue": self._waiting, "num_workers": self.places}
        wanted = "GET" if path in pages else "POST"
        if path not in pages and path not in ENDPOINTS:
            known = ", ".join([*(f"GET {page}" for page in pages), *(f"POST {each}" for each in ENDPOINTS)])
            await reply.send(404, detail(f"there is no {path}; there are {known}"))
        elif request.method != wanted and (request.method, wanted) != ("HEAD", "GET"):
            await reply.send(405, detail(f"there is no {request.method} {path}; there is {wanted} {path}"))
        elif path in pages:
            await reply.send(200, json.dumps(pages[path]).encode())
        else:
            await self._ask(path, request.body, reply)

    async def _ask(self, path: str, body: bytes, reply: Reply) -> None:
        read = partial(ENDPOINTS[path], body, self._bounds)
        try:
            asked = read() if len(body) <= FREE_BYTES else await trio.to_thread.run_sync(read)
        except BodyError as error:
            await reply.send(422, error.body)
            return
        await reply.send(200, asked.reply(await self._ends(asked.programs, asked.queue_seconds)))

    async def _ends(self, programs: Sequence[Program], queue_seconds: float) -> list[ProgramEnd]:
        """Run the programs of a request. No more of them wait for a place at once than there are places.

        So a large batch does not stand in front of all other requests.
        """
        ends: dict[int, ProgramEnd] = {}
        left = iter(enumerate(programs))
        until, waiting = trio.current_time() + queue_seconds, len(programs)
        self._waiting += waiting

        async def work() -> None:
            nonlocal waiting
            for at, program in left:
                ends[at] = ProgramEnd(None, waited=queue_seconds)
                with trio.move_on_at(until) as scope:
                    async with self._free:
                        scope.deadline = math.inf
                        self._waiting, waiting = self._waiting - 1, waiting - 1
                        ends[at] = await self._run(program)
                if scope.cancelled_caught:
                    self._waiting, waiting = self._waiting - 1, waiting - 1

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(min(self.places, len(programs))):
                    nursery.start_soon(work)
        finally:
            self._waiting -= waiting
        return [ends[at] for at in range(len(programs))]

    async def _run(self, program: Program) -> ProgramEnd:
        """Run a program in a place."""
        limits = replace(
            self._sandbox.settings.limits,
            wall_seconds=program.seconds,
            cpu_seconds=program.seconds + 1,
            memory_bytes=program.memory_bytes,
            output_bytes=max(self._sandbox.settings.limits.output_bytes, min(program.output_bytes, OUTPUT_BYTES)),
        )
        if program.language == "python":
            return ProgramEnd(await self._sandbox.run_program(program, limits))
        if self._compile is None:
            return ProgramEnd(None, Run(None, fault=NO_COMPILER))
        source = {"main.cpp": base64.b64encode(program.code.encode("utf-8", "replace")).decode()}
        seconds = program.compile_seconds
        allowed = replace(limits, wall_seconds=seconds, cpu_seconds=seconds + 1, output_bytes=BINARY_BYTES)
        made = replace(program, code=self._compile, stdin="", files={**program.files, **source}, fetch=["main"])
        compiled = await self._sandbox.run_program(made, allowed)
        if compiled.fault or compiled.status != 0:
            return ProgramEnd(None, compiled)
        code = RUNNING_BEFORE_FETCHING if program.fetch else RUNNING
        ready = replace(program, code=code, files={**program.files, **compiled.files})
        return ProgramEnd(await self._sandbox.run_program(ready, limits), compiled)

"""An environment of OpenEnv (0.10) behind an MCP server without tools: it plays episodes for rollouts.

``python openenv_server.py APP FILE [TASKS] [RESET]``, in an interpreter that has openenv and the environment.

- APP is ``module:app``, which is then served by a process of its own, or the address of a server.
- FILE gets the environment's actions, and a line of JSON for each of TASKS seeds (1000) with what the environment
  shows at the beginning, if there is no such file. RESET, as JSON, are further arguments of each reset.
- The call ``play`` takes ``rollout``, ``seed``, and all ``actions`` of a rollout so far or its next ``action``. It
  returns ``text``, ``reward`` and ``done`` of the reset and of each action. The rollout's session goes on with the
  actions that are new; without a session all are played. ``last`` ends it.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

stdio_server: Any = importlib.import_module("stdio_server")  # beside this script, which runs alone

TASKS = 1000
START_SECONDS = 50.0
"""How long a server may take until it answers."""
CONNECT_SECONDS = 8.0
"""How long it may take for a new session; one of our own that takes longer hangs, and is ended."""
PLACE_SECONDS, AGAIN_SECONDS = 25.0, 0.05
"""How long a rollout waits for a place at the server, and for how long until it asks again."""
ENDING_SECONDS = 1.0
"""A server of our own that ends closes its connections first, and is gone within this time."""
SESSIONS = 1024
"""Open sessions; the one that was asked the longest ago is ended for another."""
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def ended(why: str) -> None:
    """End this process at once, whatever its threads wait for."""
    os.write(2, f"{why}\n".encode())
    os._exit(1)


def started(app: str) -> str:
    """Serve an app in a child, which ends with this process. Returns its address. Ends this process with the child."""
    listener = socket.create_server(("127.0.0.1", 0))
    sys.path.insert(0, str(Path.cwd()))
    parent = os.getpid()
    if (child := os.fork()) == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)
        try:
            importlib.import_module(app.partition(":")[0])
            uvicorn = importlib.import_module("uvicorn")
            config = uvicorn.Config(app, log_level="warning", ws_ping_interval=None, timeout_graceful_shutdown=1)
            uvicorn.Server(config).run(sockets=[listener])
        except ImportError as error:
            os.write(2, f"{error}; install the environment of {app} for {sys.executable}\n".encode())
        finally:
            os._exit(1)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()

    def reap(*_: Any) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        ended(f"the server of {app} ended with exit status {status}")

    signal.signal(signal.SIGCHLD, reap)
    return address


def text_of(observation: dict[str, Any]) -> str:
    """What the model reads of an observation: its one text, the result of a tool, or its fields as JSON."""
    if error := observation.get("error"):
        return f"Error: {error['message'] if isinstance(error, dict) and 'message' in error else error}"
    result = observation.get("result")
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in result["content"])
    shown = {name: each for name, each in observation.items() if name not in {"metadata", "tool_name"}}
    shown = {name: each for name, each in shown.items() if each not in (None, "", [], {})}
    only = list(shown.values())
    if len(only) == 1 and isinstance(only[0], str):
        return only[0]
    return json.dumps(shown, ensure_ascii=False) if shown else ""


class Session:
    """An episode. ``results`` are those of ``actions``; the first one is that of the reset."""

    def __init__(self, client: Any) -> None:
        self.client, self.lock = client, asyncio.Lock()
        self.actions: list[Any] = []
        self.results: list[dict[str, Any]] = []

    def took(self, result: Any) -> None:
        """Keep the result of the reset or of an action."""
        said = {"text": text_of(result.observation), "reward": result.reward, "done": bool(result.done)}
        self.results.append(said)

    async def play(self, actions: list[Any]) -> None:
        """Take the steps of the actions that are new. The environment's refusal of an action is its result.

        Raises RuntimeError for an action after the end.
        """
        for action in actions[len(self.actions) :]:
            if self.results[-1]["done"]:
                raise RuntimeError("the episode has ended")
            try:
                self.took(await self.client.step(action))
            except RuntimeError as error:
                if "Server error: " not in str(error):
                    raise
                self.results.append({"text": f"Error: {error}", "reward": None, "done": False})
            self.actions.append(action)


class Sessions:
    """The episodes of rollouts at one server."""

    def __init__(self, address: str, reset: dict[str, Any], *, own: bool) -> None:
        self.address, self.reset, self.own = address, reset, own
        self._client = stdio_server.required("openenv.core.generic_client", "openenv").GenericEnvClient
        self._open: dict[str, Session] = {}

    async def begun(self, seed: int, rollout: str) -> Session:
        """A new session after its reset. Raises RuntimeError where the server has no place for long."""
        full = ""
        try:
            async with asyncio.timeout(PLACE_SECONDS):
                while (session := await self._begun(seed, rollout)) is None:
                    full = (
                        f"the server has had no place for a session in {PLACE_SECONDS:g} s; raise max_concurrent_envs"
                    )
                    if idle := next((name for name, each in self._open.items() if not each.lock.locked()), ""):
                        await self.end(idle)
                    await asyncio.sleep(AGAIN_SECONDS)  # the server does not say when a place is free
        except TimeoutError as error:
            raise RuntimeError(full or "the environment's reset took too long") from error
        return session

    async def _begun(self, seed: int, rollout: str) -> Session | None:
        """The same, or nothing if there is no place now."""
        client = self._client(self.address, connect_timeout_s=CONNECT_SECONDS, message_timeout_s=None)
        session = Session(client)
        try:
            await self._connect(client)
            session.took(await client.reset(seed=seed, episode_id=rollout, **self.reset))
        except BaseException as error:
            await client.close()
            if "CAPACITY_REACHED" not in str(error):
                raise
            return None
        return session

    async def _connect(self, client: Any) -> None:
        try:
            await client.connect()
        except Exception as error:
            if self.own and isinstance(error.__cause__ or error, TimeoutError):
                ended(f"the environment's server hangs: it gives no session within {CONNECT_SECONDS:g} s")
            raise

    async def end(self, rollout: str) -> None:
        """The session ends."""
        if (session := self._open.pop(rollout, None)) is not None:
            await session.client.close()

    async def play(self, given: dict[str, Any]) -> list[dict[str, Any]]:
        """The results of the reset and of a rollout's actions."""
        rollout, session = given["rollout"], self._open.get(given["rollout"])
        actions = given["actions"] if "actions" in given else [*(session.actions if session else ()), given["action"]]
        if session is not None and session.actions != actions[: len(session.actions)]:
            await self.end(rollout)
            session = None
        try:
            session = session or await self.begun(given["seed"], rollout)
            async with session.lock:
                self._open.pop(rollout, None)  # the one asked last stands last
                self._open[rollout] = session
                if len(self._open) > SESSIONS:
                    await self.end(next(iter(self._open)))
                await session.play(actions)
        except BaseException as error:  # nobody knows the state of the episode
            await self.end(rollout)
            if self.own and isinstance(error, Exception) and not isinstance(error, RuntimeError):
                await asyncio.sleep(ENDING_SECONDS)  # then the caller hears of its end, and asks the next one
            raise
        if given["last"]:
            await self.end(rollout)
        return session.results


def schema_at(address: str) -> dict[str, Any]:
    """The schema of an environment's actions, once its server is ready. Ends the process for what is no server."""
    try:
        with urllib.request.urlopen(f"{address}/schema", timeout=START_SECONDS) as response:  # noqa: S310  http or https
            action: dict[str, Any] = json.load(response)["action"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        sys.exit(f"{address} is no server of OpenEnv: {error}")
    return action


async def rows(sessions: Sessions, action: dict[str, Any], tasks: int) -> list[dict[str, Any]]:
    """The lines of the file: the schema of actions with the tools, then each seed with what its reset shows."""
    found: list[dict[str, Any]] = [{"action": action, "tools": []}]
    for seed in range(tasks):
        session = await sessions.begun(seed, f"listing {seed}")
        if "tool_name" in action.get("properties", {}) and not seed:
            listed = (await session.client.step({"type": "list_tools"})).observation["tools"]
            found[0]["tools"] = [
                {key: tool.get(key) for key in ("name", "description", "input_schema")} for tool in listed
            ]
        await session.client.close()
        found.append({"seed": seed, "text": session.results[0]["text"]})
    return found


async def main(named: str, file: Path, tasks: int, reset: dict[str, Any], out: Any) -> None:
    """Serve until standard input ends."""
    own = not named.startswith(("http://", "https://"))
    address = started(named) if own else named.rstrip("/")
    action = await asyncio.to_thread(schema_at, address)
    sessions = Sessions(address, reset, own=own)
    if not file.exists():  # noqa: ASYNC240  before it serves
        stdio_server.written(await rows(sessions, action, tasks), file)
    await stdio_server.serve(lambda _, given: sessions.play(given), out)


if __name__ == "__main__":
    out = stdio_server.prepared()
    named, path, *more = sys.argv[1:]
    asyncio.run(main(named, Path(path), int(more[0]) if more else TASKS, json.loads(more[1]) if more[1:] else {}, out))

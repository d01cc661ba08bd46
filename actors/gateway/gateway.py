"""The gateway actor: HTTP of agents in, turns of the generators out. It keeps nothing: any replica answers any request.

::

    agent --HTTP--> Server --> Dialect.read --TurnAsked--> the generator that the key names
      ^                                                          |
      `------------ Dialect.reply, Stream.part <--TurnGiven------'

Sessions of live traffic begin, are rewarded and end at the paths of `SESSIONS`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from socket import socket
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from uuid import uuid4

import trio
from pydantic import Field, PositiveFloat, PositiveInt

from actors.base import Actor, Call, Settings
from actors.http import FREE_BYTES, ClientLeft, Reply, Request, Server, claim, foreign, listen
from agent_rl.config.gateway import ADDRESS, PORT, listens_beyond, unreachable
from agent_rl.config.hidden import with_environment
from agent_rl.environments.judging import LARGEST_REWARD
from agent_rl.figures import ActorFigures
from agent_rl.gateway.base import NO_TOKENS, RequestError
from agent_rl.gateway.bodies import checked, read_body
from agent_rl.gateway.dialects import DIALECTS, models_body
from agent_rl.gateway.evidence import evidence_of
from agent_rl.messages import Int32Vector, Refusal, SessionAsked, SessionGiven, TurnAsked, TurnGiven
from agent_rl.rollout.keys import MODEL, generator_of
from transport import CallFailed, CallTimeout, EncodeError, PeerLost

if TYPE_CHECKING:
    from agent_rl.config.topology import Topology
    from agent_rl.gateway.base import Dialect, Stream, Wanted
    from agent_rl.messages import BranchCause

CHAT = "/v1/chat/completions"
BY_URL = "/r/"
"""A path may begin with this and a key."""
SESSIONS = {"/rl/start_session": "start", "/rl/set_reward": "reward", "/rl/end_session": "end"}
"""As AReaL names them."""


_QUOTED = re.compile(r"'.*'|sk-[\w-]+", re.DOTALL)
"""What a client wrote, which may be a secret."""
SESSION_SECONDS = 30.0
"""How long a generator may take to answer about a session."""


class GatewaySettings(Settings):
    """Where agents reach the gateway."""

    address: str = ADDRESS
    """Where it listens. Beyond this host, ``0.0.0.0`` or an address of it: whoever has a rollout's key may then ask."""
    port: PositiveInt = Field(default=PORT, le=65535)
    """Where it listens; all replicas on a host share it."""
    body_bytes: PositiveInt = 16 * 1024 * 1024
    """The most that a request may have: 128 bytes for each of 131,072 tokens."""
    connections: PositiveInt = 8192
    """The most at once; further ones get status 503."""
    turn_seconds: PositiveFloat = 1800.0
    """How long a turn may take, pauses of the engine included; then status 503."""
    keepalive_seconds: PositiveFloat = 3.0
    """How often a stream without news gets an event that clients skip."""
    session_key: str = ""
    """What ``/rl/start_session`` wants as API key, or ``env:NAME``. Empty: whoever reaches the gateway may begin
    sessions."""
    rewards_by: Literal["reward_key", "api_key"] = "reward_key"
    """The key of a session with which its reward is set. ``api_key``: the agent's own, as AReaL has it; then whoever
    writes the session can choose its reward."""
    opens: bool = False
    """A request without a rollout's key is a session of its own, whose reward is 0, as `agent-rl serve` has it."""


class Gateway(Actor):
    """Serves any number of rollouts."""

    concurrency = 64
    drain_order = 25
    drain_seconds = 5.0
    Settings = GatewaySettings
    links: ClassVar = {
        "asked": Call(TurnAsked, TurnGiven, awaited_in_handler=False),
        "sessions": Call(SessionAsked, SessionGiven, awaited_in_handler=False),
    }

    @classmethod
    def link_options(cls, link: str, settings: GatewaySettings) -> dict[str, Any]:
        """Requests wait here for their turn."""
        seconds = settings.turn_seconds if link == "asked" else SESSION_SECONDS
        return {"outstanding": settings.connections, "timeout": seconds}

    @classmethod
    def check(cls, topology: Topology, settings: GatewaySettings) -> list[str]:
        """Agents on other hosts need an address that they reach."""
        if away := list(unreachable(topology)):
            where = f"harnesses of {', '.join(away)} are on other hosts than the gateway, which listens at"
            return [f'address: {where} {settings.address}; write address = "0.0.0.0", or put a gateway on each host']
        live = any(each.harness and each.harness.source == "live" for each in topology.environments)
        programs = any(each.harness and each.harness.source == "command" for each in topology.environments)
        beyond = listens_beyond(settings.address)
        if live and (beyond or programs) and not settings.session_key:
            who = f"listens at {settings.address}, where anyone" if beyond else "is reached by programs, which"
            why = f"the gateway {who} could begin sessions"
            return [f'session_key: {why}; write a key, as "env:SESSION_KEY"']
        try:
            with_environment(settings.session_key)
        except LookupError as error:
            return [f"session_key: {error}"]
        return []

    async def start(self) -> None:
        """Listen."""
        settings: GatewaySettings = self.context.settings
        self._requests = self._refused = 0
        self._told: set[str] = set()
        self._own_seconds = 0.0
        self._server = Server(self._respond, settings.body_bytes, settings.connections, _told, self._admit)
        run = self.context.topology.run
        claimed = claim(settings.port, hashlib.sha256(f"{run.name}\n{run.directory}".encode()).hexdigest()[:16])
        listeners = await listen(settings.address, settings.port, shared=True)
        self._session_key = with_environment(settings.session_key)
        self._order = deque(self.context.link("sessions").targets)
        self._generators = {int(peer.rpartition(".")[2]): peer for peer in self.context.link("asked").targets}
        self.context.nursery.start_soon(self._serve, listeners, claimed)

    async def _serve(self, listeners: Sequence[trio.SocketListener], claimed: socket) -> None:
        with claimed:
            await self._server.serve(listeners)

    def status(self) -> tuple[str, ActorFigures]:
        """Requests and connections so far."""
        figures = {
            "gateway_connections": float(self._server.open),
            "gateway_requests": float(self._requests),
            "gateway_refused": float(self._refused),
            "gateway_own_seconds": self._own_seconds,
        }
        return "running", ActorFigures(extra=figures)

    async def _respond(self, request: Request, reply: Reply) -> None:
        self._requests += 1
        try:
            await self._route(request, reply)
        except Exception as error:
            if isinstance(error, ClientLeft):
                raise
            self.log.exception("a request failed")
            if reply.begun:
                raise ClientLeft from error
            await self._refuse(DIALECTS[CHAT], reply, "failed", f"the gateway failed: {type(error).__name__}")

    async def _admit(self, request: Request) -> str:
        """A large body is read from those alone who have a rollout's key, or the server's."""
        path, key = _place_of(request.path, request.headers)
        if path in SESSIONS:
            return f"requests about sessions have at most {FREE_BYTES} bytes"
        if (generator := self._generator_of(key)) is None:
            allowed = self.context.settings.opens and self._begins(key)
            return "" if allowed else "no rollout has this key"
        given = await self._ask(TurnAsked(key, "", follows=True), generator)  # of no request: it only knows the key
        return given.why if given.refusal == "key" else ""

    async def _route(self, request: Request, reply: Reply) -> None:
        path, key = _place_of(request.path, request.headers)
        dialect = DIALECTS.get(path)
        if why := foreign(request.headers, local=not listens_beyond(self.context.settings.address)):
            _, body = (dialect or DIALECTS[CHAT]).error("key", why)
            await self._send(reply, 403, body)
            return
        if path in SESSIONS and request.method == "POST":
            await self._session(path, key, request, reply)
            return
        if path == "/v1/models" and request.method in {"GET", "HEAD"}:
            started = int(self.context.started_at)
            await self._send(reply, 200, models_body(MODEL, request.headers, started))
        elif dialect is None or request.method != "POST":
            known = ", ".join(["GET /v1/models", *(f"POST {each}" for each in [*DIALECTS, *SESSIONS])])
            why = f"there is no {request.method} {path}; there are {known}"
            _, body = (dialect or DIALECTS[CHAT]).error("request", why)
            await self._send(reply, 404 if dialect is None else 405, body)
        else:
            await self._turn(dialect, key, request, reply)

    async def _session(self, path: str, key: str, request: Request, reply: Reply) -> None:
        """Begin a session, take its reward, or end it."""
        chat = DIALECTS[CHAT]
        try:
            asked = session_asked(path, key, checked(read_body(request.body or b"{}")).content)
        except RequestError as error:
            await self._refuse(chat, reply, "request", str(error), error.field)
            return
        asked = replace(asked, by_agent=self.context.settings.rewards_by == "api_key")
        if asked.what == "start":
            await self._begin_session(key, asked, reply)
            return
        given = await self._tell(asked)
        if given.refusal:
            await self._refuse(chat, reply, given.refusal, given.why)
        else:
            await self._send(reply, 200, {"session_id": given.rollout})

    async def _begin_session(self, key: str, asked: SessionAsked, reply: Reply) -> None:
        """A session of a client that does not hear of it ends at once."""
        with trio.CancelScope(shield=True):
            given = await self._start(key, asked)
        if given.refusal:
            status = 429 if given.refusal == "busy" else 0  # as AReaL has it
            await self._refuse(DIALECTS[CHAT], reply, given.refusal, given.why, status=status)
            return
        told = {"session_id": given.rollout, "api_key": given.key, "reward_key": given.reward_key}
        told |= {"task_id": given.task, "prompt": given.prompt}
        heard = False
        try:
            await self._send(reply, 200, told)
            heard = True
        finally:
            if not heard:
                await self._leave(given)

    async def _leave(self, session: SessionGiven) -> None:
        """End a session that has no reward of its own: the rollout of one without a turn waits for another."""
        with trio.move_on_after(SESSION_SECONDS, shield=True):
            await self._tell(SessionAsked("reward", session.reward_key))
            await self._tell(SessionAsked("end", session.key))

    async def _start(self, key: str, asked: SessionAsked) -> SessionGiven:
        """Begin a session at the next generator that has a rollout for it."""
        if not self._begins(key):
            return SessionGiven("key", "sessions begin with the key that session_key of the gateway names")
        given = SessionGiven("busy", "there is no generator")
        for _ in range(len(self._order)):
            self._order.rotate(-1)
            given = await self._told_by(self._order[-1], asked)
            if not given.refusal:
                break
        return given

    def _begins(self, key: str) -> bool:
        """Whether sessions begin with this key."""
        return not self._session_key or hmac.compare_digest(key.encode(), self._session_key.encode())

    async def _tell(self, asked: SessionAsked) -> SessionGiven:
        """Tell the generator of a session something about it."""
        generator = self._generator_of(asked.key)
        if generator is None:
            return SessionGiven("key", "no session has this key")
        return await self._told_by(generator, asked)

    def _generator_of(self, key: str) -> str | None:
        number = generator_of(key)
        return None if number is None else self._generators.get(number)

    async def _told_by(self, generator: str, asked: SessionAsked) -> SessionGiven:
        try:
            given: SessionGiven = await self.context.link("sessions")(asked, to=generator)
        except (CallFailed, CallTimeout, PeerLost) as error:
            return SessionGiven("failed", f"the generator does not answer: {error}")
        return given

    async def _turn(self, dialect: Dialect, key: str, request: Request, reply: Reply) -> None:
        began = time.perf_counter()
        generator = self._generator_of(key)
        if generator is None and not self.context.settings.opens:
            await self._refuse(dialect, reply, "key", "no rollout has this key")
            return
        read = partial(_read, dialect, request)
        try:
            wanted, evidence = read() if len(request.body) <= FREE_BYTES else await trio.to_thread.run_sync(read)
        except RequestError as error:
            await self._refuse(dialect, reply, "request", str(error), error.field)
            return
        for name in wanted.ignored:
            if name not in self._told:
                self._told.add(name)
                self.log.info("agents ask for what the run decides", parameter=name)
        again = request.headers.get("x-stainless-retry-count", "0").strip() not in {"", "0"}
        asked = replace(wanted.asked, key=key, ask=uuid4().hex, again=again, evidence=evidence)
        self._own_seconds += time.perf_counter() - began
        if generator is None:
            await self._turn_of_its_own(dialect, wanted, asked, reply)
        else:
            await self._answer(dialect, wanted, asked, generator, reply)

    async def _turn_of_its_own(self, dialect: Dialect, wanted: Wanted, asked: TurnAsked, reply: Reply) -> None:
        """A request that is a session. While none can begin it waits, as at any server that is busy."""
        with trio.CancelScope(shield=True):  # a client that leaves must not leave a session behind
            session = await self._start(asked.key, SessionAsked("start", opens=True))
            if session.refusal == "busy":
                session = await self._start(asked.key, SessionAsked("start", seconds=SESSION_SECONDS / 2, opens=True))
        generator = self._generator_of(session.key)
        if session.refusal or generator is None:
            status = 503 if session.refusal == "busy" else 0
            await self._refuse(dialect, reply, session.refusal or "failed", session.why, status=status)
            return
        try:
            await self._answer(dialect, wanted, replace(asked, key=session.key, again=False), generator, reply)
        finally:
            await self._leave(session)

    async def _answer(self, dialect: Dialect, wanted: Wanted, asked: TurnAsked, generator: str, reply: Reply) -> None:
        if asked.streams:
            await self._stream(dialect, wanted, asked, generator, reply)
            return
        given = await self._ask(asked, generator)
        began = time.perf_counter()
        if given.refusal:
            await self._refuse(dialect, reply, given.refusal, given.why)
        else:
            body = dialect.reply(wanted, given, asked.ask, int(self.context.wall()))
            await self._send(reply, 200, body)
        self._own_seconds += time.perf_counter() - began

    async def _stream(self, dialect: Dialect, wanted: Wanted, asked: TurnAsked, generator: str, reply: Reply) -> None:
        stream = dialect.stream(wanted, asked.ask, int(self.context.wall()))
        count = 0
        given = await self._ask(
            asked, generator
        )  # which comes at once; a refusal needs a status, so nothing is sent yet
        while True:
            if given.refusal and not reply.begun:
                await self._refuse(dialect, reply, given.refusal, given.why)
                return
            await self._begin(stream, reply, given.prompt)
            if given.refusal:
                await reply.piece(stream.failed(given.refusal, given.why))
                break
            count += len(given.parts)
            written = b"".join(map(stream.part, given.parts))  # before the end, which knows what was written
            await reply.piece(written + (stream.ended(given) if given.done else b""))
            if given.done:
                break
            asked = TurnAsked(asked.key, asked.ask, follows=True, after=count)
            given = await self._next(asked, generator, stream, reply)
        await reply.end()

    async def _next(self, asked: TurnAsked, generator: str, stream: Stream, reply: Reply) -> TurnGiven:
        """The next parts. While there are none, the client is told that its request lives."""
        left = False

        async def keep_alive() -> None:
            nonlocal left
            try:
                while True:
                    await trio.sleep(self.context.settings.keepalive_seconds)
                    with trio.CancelScope(shield=True):  # half an event would break the stream
                        await self._begin(stream, reply)
                        await reply.piece(stream.keepalive)
            except ClientLeft:
                left = True
                nursery.cancel_scope.cancel()

        given: TurnGiven | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_alive)
            given = await self._ask(asked, generator)
            nursery.cancel_scope.cancel()
        if left or given is None:
            raise ClientLeft
        return given

    @staticmethod
    async def _begin(stream: Stream, reply: Reply, prompt: Int32Vector = NO_TOKENS) -> None:
        if not reply.begun:
            await reply.begin("text/event-stream")
            await reply.piece(stream.opened(prompt))

    async def _ask(self, asked: TurnAsked, generator: str) -> TurnGiven:
        try:
            given: TurnGiven = await self.context.link("asked")(asked, to=generator)
        except (CallFailed, CallTimeout, PeerLost) as error:
            return TurnGiven(refusal="failed", why=f"the generator of this rollout does not answer: {error}")
        except EncodeError as error:
            return TurnGiven(refusal="request", why=str(error))
        return given

    async def _refuse(
        self, dialect: Dialect, reply: Reply, refusal: Refusal, why: str, field: str = "", status: int = 0
    ) -> None:
        self._refused += 1
        told = f"{refusal}: {why}"
        if refusal in {"request", "overflow"} and told not in self._told and len(self._told) < 1000:
            self._told.add(told)
            self.log.warning("a request is refused", why=_QUOTED.sub("...", why), field=_QUOTED.sub("...", field[:80]))
        if refusal in {"busy", "failed"}:
            reply.headers["Retry-After"] = "1"
        elif refusal == "ended":
            reply.headers["X-Should-Retry"] = "false"  # the clients of OpenAI and Anthropic repeat after 409
        usual, body = dialect.error(refusal, why, field)
        await self._send(reply, status or usual, body)

    @staticmethod
    async def _send(reply: Reply, status: int, body: Mapping[str, Any]) -> None:
        await reply.send(status, json.dumps(body).encode())


def _told(why: str, path: str) -> tuple[bytes, str]:
    """The body of an error of a request that was not read."""
    _, body = DIALECTS.get(_place_of(path, {})[0], DIALECTS[CHAT]).error("request", why)
    return json.dumps(body).encode(), "application/json"


def session_asked(path: str, key: str, body: Mapping[str, Any]) -> SessionAsked:
    """What a request to one of `SESSIONS` asks for. Raises RequestError."""
    what = SESSIONS[path]
    if what == "start":
        task = body.get("task_id", "")
        task = "" if task is None else task
        if not isinstance(task, str):
            raise RequestError("task_id must be a text", "task_id")
        return SessionAsked("start", task=task)
    if what == "end":
        return SessionAsked("end", key)
    reward = body.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) <= LARGEST_REWARD:
        limits = f"from -{LARGEST_REWARD:,.0f} to {LARGEST_REWARD:,.0f}"
        raise RequestError(f"reward must be a finite number {limits}, and it is {reward!r:.100}", "reward")
    if body.get("interaction_id") is not None:
        raise RequestError("a session has one reward; leave interaction_id out", "interaction_id")
    return SessionAsked("reward", key, reward=float(reward))


def _read(dialect: Dialect, request: Request) -> tuple[Wanted, BranchCause | None]:
    """What a request for a turn says. Raises RequestError."""
    body = read_body(request.body)
    evidence = evidence_of(request.headers, body)
    return dialect.read(body), evidence


def _place_of(path: str, headers: Mapping[str, str]) -> tuple[str, str]:
    """Path and key of a request; the path as a dialect or `SESSIONS` has it."""
    path, _, _ = path.partition("?")
    key = ""
    if path.startswith(BY_URL):
        key, slash, rest = path.removeprefix(BY_URL).partition("/")
        path = slash + rest
    whole = path in SESSIONS or path.startswith(("/v1/", "/inference/"))
    return path if whole else f"/v1{path}", key or _key_of(headers)


def _key_of(headers: Mapping[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")

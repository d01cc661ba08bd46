"""``agent-rl chat``: a model with its tools in the terminal.

::

    person <--lines--> chat --HTTP, streamed--> the gateway of `agent-rl serve`, a process of this one

The whole conversation goes with each question, calls and results included, so each answer is a session of its own.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from actors.cli.evaluation import TOPOLOGY
from actors.cli.output import complain, say
from actors.cli.parameters import ModelNamed
from actors.cli.serving import ENVIRONMENT, SERVING, Served
from actors.runtime.children import LIFELINE
from agent_rl.files.leftovers import temporary_directory

KEY = "AGENT_RL_CHAT_KEY"
"""The environment variable with which the server gets its key."""
SAVED = Path("chat.jsonl")
ENDING_SECONDS = 60.0
"""The server stops its actors in order, which takes some seconds; then it is killed, and they with it."""
SILENT_SECONDS = 120.0
"""A stream without news has an event every 3 s, so a server that is silent for so long is stuck."""
HELP = f"""\
/save [FILE]  add the conversation to a file, as a row for an sft stage; left out: {SAVED}
/reset        begin another conversation
/help         show this list
/quit         end the chat, as does Ctrl-D; Ctrl-C ends an answer"""

Json = dict[str, Any]


class NoAnswer(Exception):  # noqa: N818 - what happened, not an error of the program
    """Why an answer did not come, or did not end."""


class Server(NamedTuple):
    """`agent-rl serve` in a process that ends with this one."""

    process: subprocess.Popen[str]
    port: int
    key: str
    directory: Path
    """Of its run."""


def chat(
    model: ModelNamed,
    /,
    *,
    served: Served | None = None,
    system: Annotated[str, Parameter(help="the system message; left out: none")] = "",
    out: Annotated[
        Path | None, Parameter(metavar="DIR", help="keep the journal there; left out: it is removed at the end")
    ] = None,
) -> int:
    """Talk to a model. In a pipe each line is a question, and the first one without an answer ends the chat."""
    options, terminal = served or Served(), sys.stdin.isatty()
    sys.stdin.reconfigure(errors="replace")  # type: ignore[union-attr]
    if terminal:
        say(f"starting {model} ...", flush=True)
    with temporary_directory("chat") as folder, _server(model, options, out or folder / "served") as server:
        if not _serves(server.process):
            return server.process.wait() or 1
        talk = Talk(server, options, system)
        for line in _typed() if terminal else sys.stdin:
            try:
                if not talk.take(line.strip()):
                    break
            except NoAnswer as error:
                complain(f"agent-rl: {error}")
                if server.process.poll() is not None or not terminal:
                    return 1
            except KeyboardInterrupt:
                if not terminal:
                    raise
                say("(ended; the conversation goes on without this question)")
    return 0


def _typed() -> Iterator[str]:
    """The lines that a person types. Ctrl-C drops a line."""
    import readline  # noqa: F401 - lets input() edit lines

    say("/help shows the commands; Ctrl-D ends the chat")
    while True:
        try:
            yield input("\n> ")
        except EOFError:
            say()
            return
        except KeyboardInterrupt:
            say("\n(Ctrl-D or /quit ends the chat)", end="")


@contextmanager
def _server(model: str, options: Served, directory: Path) -> Iterator[Server]:
    """The server, which has just been started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    given = {**asdict(options), "port": port, "key": f"env:{KEY}", "out": directory}
    given["set"] = given.pop("overrides")
    command = [sys.executable, "-P", LIFELINE, str(os.getpid()), "actors.cli", "serve", model]
    for name, value in given.items():
        for each in value if isinstance(value, tuple) else (value,):
            command += [f"--{name.replace('_', '-')}", str(each)]
    key = secrets.token_urlsafe(24)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C ends an answer, and not the server
        env={**os.environ, KEY: key},
        text=True,
    )
    try:
        yield Server(process, port, key, directory)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _serves(process: subprocess.Popen[str]) -> bool:
    """Wait until the server answers; False if it ends before, having said why. What it says but its state is shown."""
    assert process.stdout is not None
    with process.stdout as lines:  # and then the server falls silent
        for line in lines:
            if SERVING in line:
                return True
            if not line.startswith("["):
                complain(line.rstrip())
    return False


class Talk:
    """A conversation, as OpenAI's messages."""

    def __init__(self, server: Server, options: Served, system: str) -> None:
        self._server, self._options = server, options
        self._begins: list[Json] = [{"role": "system", "content": system}] if system else []
        self._messages = [*self._begins]

    def take(self, line: str) -> bool:
        """Do what a line asks for; False to end the chat. Raises NoAnswer."""
        command, _, rest = line.partition(" ")
        if command == "/save":
            say(self._save(Path(rest.strip() or SAVED).expanduser()))
        elif command == "/reset":
            self._messages = [*self._begins]
            say("(another conversation)")
        elif command.startswith("/") and command != "/quit":
            say(HELP if command == "/help" else f"there is no command {command}\n{HELP}")
        elif line and command != "/quit":
            asked = [*self._messages, {"role": "user", "content": line}]
            self._messages = asked + self._answer(asked)
        return command != "/quit"

    def _save(self, file: Path) -> str:
        """Add the conversation to a file. Returns what to tell the person."""
        from agent_rl.config.load import load_topology
        from agent_rl.environments.load import Environments

        if self._messages == self._begins:
            return "there is nothing to save: nothing was answered yet"
        topology = load_topology(self._server.directory / TOPOLOGY, self._options.overrides)
        tools = Environments(topology, self._server.directory).schemas[ENVIRONMENT]
        try:
            with file.open("a", encoding="utf-8") as rows:
                rows.write(json.dumps({"messages": self._messages, "tools": tools}, ensure_ascii=False) + "\n")
        except OSError as error:
            return f"{file} cannot be written ({error.strerror}): name another file"
        return f"added a row to {file}: {len(self._messages)} messages"

    def _answer(self, asked: list[Json]) -> list[Json]:
        """Show the answer as it comes. Returns its messages. Raises NoAnswer."""
        answer = Answer()
        try:
            for choice in self._choices(asked):
                answer.add(choice["delta"])
                if choice["finish_reason"] == "length":
                    answer.show("(cut: the model's sequence or --max-tokens has no more room)\n", "note")
        finally:
            answer.show("", "end")
        return answer.messages()

    def _choices(self, asked: list[Json]) -> Iterator[Json]:
        """The parts of the answer, as they come. Raises NoAnswer."""
        body = {"model": "agent-rl", "messages": asked, "stream": True, "return_messages": True}
        headers = {"Authorization": f"Bearer {self._server.key}"}
        with closing(http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=SILENT_SECONDS)) as connection:
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
                reply = connection.getresponse()
                if reply.status != 200:
                    raise NoAnswer(json.loads(reply.read())["error"]["message"])
                for data in (line.decode().removeprefix("data: ").strip() for line in reply):
                    if data == "[DONE]":
                        return
                    if data.startswith("{"):
                        part = json.loads(data)
                        if "error" in part:
                            raise NoAnswer(f"the answer broke off: {part['error']['message']}")
                        yield from part["choices"]
            except (OSError, http.client.HTTPException) as error:
                raise NoAnswer(f"the server does not answer ({type(error).__name__}: {error})") from error
        raise NoAnswer("the answer broke off: the server has ended it")


class Answer:
    """An answer as it comes, shown and kept."""

    def __init__(self) -> None:
        self._whole: list[Json] = []
        self._last: Json = {}
        self._at_start, self._kind = True, ""

    def add(self, delta: Mapping[str, Any]) -> None:
        """Show and keep a part."""
        for key in ("reasoning_content", "content"):
            if text := delta.get(key):
                self.show(text, key)
                self._last[key] = self._last.get(key, "") + text
        for message in delta.get("messages", ()):  # calls that run, and what came of them
            self._whole.append(message)
            self._last = {}
            if message["role"] == "tool":
                self.show(indent(message["content"].rstrip(), "  | ") + "\n", "result")
            self._show_calls(message)
        if calls := delta.get("tool_calls"):  # which nothing runs
            self._last.setdefault("tool_calls", []).extend({k: each[k] for k in each if k != "index"} for each in calls)
            self._show_calls(delta)

    def messages(self) -> list[Json]:
        """All of it."""
        return [*self._whole, {"role": "assistant", "content": "", **self._last}]

    def show(self, text: str, kind: str) -> None:
        """Show text, on a line of its own where what came before is of another kind."""
        begun = kind != self._kind and not self._at_start
        say("\n" + text if begun else text, end="", flush=True)
        self._at_start, self._kind = text.endswith("\n") or (begun and not text), kind

    def _show_calls(self, message: Mapping[str, Any]) -> None:
        for function in (call["function"] for call in message.get("tool_calls", ())):
            given: Any = function["arguments"]
            with suppress(ValueError):
                given = json.loads(given)
            named = given.items() if isinstance(given, dict) else [("", given)]
            values = [f"{name}: {each if isinstance(each, str) else json.dumps(each)}" for name, each in named]
            self.show("\n".join([f"  {function['name']}", *(indent(each, "  > ") for each in values)]) + "\n", "call")

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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
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
from agent_rl.observe.words import visible

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


class NotServed(Exception):  # noqa: N818 - what happened, not an error of the program
    """The server has ended before it answered. It has said why, but for these lines."""

    def __init__(self, exit_code: int, lines: Sequence[str]) -> None:
        super().__init__()
        self.exit_code, self.lines = exit_code, lines


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
    with temporary_directory("chat") as folder:
        try:
            with _server(model, options, out or folder / "served") as server:
                return _talk(server, Talk(server, options, system), terminal=terminal)
        except NotServed as error:
            for line in error.lines:
                complain(line)
            return error.exit_code or 1


def _talk(server: Server, talk: Talk, *, terminal: bool) -> int:
    """Talk until a person or a pipe has no more to say; returns the exit code."""
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


class Server(NamedTuple):
    """`agent-rl serve` in a process that ends with this one."""

    process: subprocess.Popen[str]
    port: int
    key: str
    directory: Path
    """Of its run."""


@contextmanager
def _server(model: str, options: Served, directory: Path) -> Iterator[Server]:
    """The server, once it answers. Raises NotServed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    key = secrets.token_urlsafe(24)
    listening = ["--port", str(port), "--key", f"env:{KEY}", "--out", str(directory)]
    command = [sys.executable, "-P", LIFELINE, str(os.getpid()), "actors.cli", "serve", model, *listening]
    process = subprocess.Popen(
        [*command, *_arguments(options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C ends an answer, and not the server
        env={**os.environ, KEY: key},
        text=True,
    )
    try:
        assert process.stdout is not None
        with process.stdout as lines:  # and then the server falls silent
            if sys.stdin.isatty():
                say(f"starting {model} ...", flush=True)
            said: list[str] = []
            while not said or SERVING not in said[-1]:
                if not (line := lines.readline()):
                    raise NotServed(process.wait(), [each for each in said if not each.startswith("[")])
                said.append(line.rstrip())
        yield Server(process, port, key, directory)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _arguments(options: Served) -> Iterator[str]:
    """The options as arguments of `agent-rl serve`."""
    for each in fields(options):
        name, value = (
            "--set" if each.name == "overrides" else f"--{each.name.replace('_', '-')}",
            getattr(options, each.name),
        )
        if not isinstance(value, tuple):
            yield from (name, str(value))
        for item in value if isinstance(value, tuple) else ():
            yield from (name, str(item))


class Talk:
    """A conversation, as OpenAI's messages."""

    def __init__(self, server: Server, options: Served, system: str) -> None:
        self._server, self._options = server, options
        self._begins: list[Json] = [{"role": "system", "content": system}] if system else []
        self._messages = [*self._begins]

    def take(self, line: str) -> bool:
        """Do what a line asks for; False to end the chat. Raises NoAnswer."""
        command, _, rest = line.partition(" ")
        if command == "/quit":
            return False
        if command == "/save":
            say(self._save(Path(rest.strip() or SAVED).expanduser()))
        elif command == "/reset":
            self._messages = [*self._begins]
            say("(another conversation)")
        elif command == "/help":
            say(HELP)
        elif command.startswith("/"):
            say(f"there is no command {command}\n{HELP}")
        elif line:
            asked = [*self._messages, {"role": "user", "content": line}]
            self._messages = asked + list(self._answer(asked))
        return True

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
            for part in self._parts(asked):
                for choice in part["choices"]:
                    answer.add(choice["delta"])
                    if choice["finish_reason"] == "length":
                        answer.note("(cut: the model's sequence or --max-tokens has no more room)")
        finally:
            answer.end_line()
        return answer.messages()

    def _parts(self, asked: list[Json]) -> Iterator[Json]:
        body = {"model": "agent-rl", "messages": asked, "stream": True, "return_messages": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=SILENT_SECONDS)
        with closing(connection):
            try:
                headers = {"Authorization": f"Bearer {self._server.key}"}
                connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
                reply = connection.getresponse()
                if reply.status != 200:
                    raise NoAnswer(json.loads(reply.read())["error"]["message"])
                for line in reply:
                    data = line.decode().removeprefix("data: ").strip()
                    if data == "[DONE]":
                        return
                    if data.startswith("{"):
                        part = json.loads(data)
                        if "error" in part:
                            raise NoAnswer(f"the answer broke off: {part['error']['message']}")
                        yield part
            except (OSError, http.client.HTTPException) as error:
                raise NoAnswer(f"the server does not answer ({type(error).__name__}: {error})") from error
        raise NoAnswer("the answer broke off: the server has ended it")


class Answer:
    """An answer as it comes, shown and kept."""

    def __init__(self) -> None:
        self._whole: list[Json] = []
        self._last: Json = {}
        self._at_start, self._mode = True, ""
        self._colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def add(self, delta: Mapping[str, Any]) -> None:
        """Show and keep a part."""
        for key, name in (("reasoning_content", "thought"), ("content", "")):
            if text := delta.get(key):
                self._show(text, name)
                self._last[key] = self._last.get(key, "") + text
        for message in delta.get("messages", ()):  # calls that run, and what came of them
            self._whole.append(message)
            self._last = {}
            if message["role"] == "tool":
                self.note(indent(message["content"].rstrip(), "  | "))
            self._calls(message)
        if calls := delta.get("tool_calls"):  # which nothing runs
            self._last.setdefault("tool_calls", []).extend({k: each[k] for k in each if k != "index"} for each in calls)
            self._calls(delta)

    def messages(self) -> list[Json]:
        """All of it."""
        return [*self._whole, {"role": "assistant", "content": "", **self._last}]

    def note(self, text: str) -> None:
        """Show what is not the model's text, on lines of its own."""
        self.end_line()
        self._show(text, "note")
        self.end_line()

    def end_line(self) -> None:
        """End a line that has begun."""
        if not self._at_start:
            self._show("\n", self._mode)

    def _calls(self, message: Mapping[str, Any]) -> None:
        for call in message.get("tool_calls", ()):
            function = call["function"]
            given: Any = function["arguments"]
            with suppress(ValueError):
                given = json.loads(given)
            named = given.items() if isinstance(given, dict) else [("", given)]
            values = [f"{name}: {each if isinstance(each, str) else json.dumps(each)}" for name, each in named]
            self.note("\n".join([f"  {function['name']}", *(indent(each, "  > ") for each in values)]))

    def _show(self, text: str, mode: str) -> None:
        if mode != self._mode:
            self._mode = mode
            if not self._at_start:
                text = "\n" + text
        shown = visible(text)
        print(f"\x1b[2m{shown}\x1b[0m" if mode and self._colours else shown, end="", flush=True)
        self._at_start = text.endswith("\n")

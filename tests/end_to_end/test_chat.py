"""`agent-rl chat` on a terminal and in a pipe, with a real server."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actors.cli.main import main
from tests.end_to_end.processes import SECONDS, alive, family, wait_for
from tests.end_to_end.topologies import write_model

pytestmark = pytest.mark.slow
CHAT = [sys.executable, "-m", "actors.cli", "chat"]


class Terminal:
    """A person at a terminal with the command."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvp(command[0], command)
        self.said = ""

    def until(self, text: str, again: str = "") -> str:
        """What is shown up to a text. ``again`` is typed after each second of silence."""
        end = time.monotonic() + SECONDS
        while text not in self.said:
            assert time.monotonic() < end, self.said
            if select.select([self._file], [], [], 1.0)[0]:
                self.said += os.read(self._file, 65536).decode(errors="replace")
            else:
                self.types(again)
        found, _, self.said = self.said.partition(text)
        return found

    def types(self, text: str) -> None:
        os.write(self._file, text.encode())

    def ends(self) -> int:
        """The exit code."""
        try:
            while os.read(self._file, 65536):
                pass
        except OSError:  # the terminal has no other user any more
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_person_talks_ends_an_answer_saves_and_leaves_nothing_running(tmp_path):
    write_model(tmp_path, max_length=8192)
    person = Terminal([*CHAT, "model", "--max-tokens", "20"], tmp_path)
    person.until("Ctrl-D ends the chat")
    person.until("> ")
    started = family(person.pid)
    server = started - {person.pid}
    person.types("Hello?\n")
    person.until("Hello?\r\n")
    person.until("\n> ")
    for each in server:  # so that no answer comes
        os.kill(each, signal.SIGSTOP)
    person.types("Are you there?\n")
    person.until("Are you there?\r\n")
    time.sleep(0.5)
    person.types("\x03")
    person.until("goes on without this question")
    for each in server:
        os.kill(each, signal.SIGCONT)
    person.types("/save\n")
    person.until("added a row to chat.jsonl: 2 messages")
    person.until("> ")
    person.types("half a line")
    person.until("half a line")
    person.until("(Ctrl-D or /quit ends the chat)", again="\x03")  # readline can miss one before it waits
    person.until("> ")
    person.types("\x04")
    assert person.ends() == 0
    wait_for(lambda: not alive(started), "the server's end")


def test_a_pipe_asks_saves_and_the_row_can_be_trained_on(tmp_path):
    write_model(tmp_path, max_length=8192)
    lines = "Hello?\n\nAnd then?\n/save rows.jsonl\n/save no/where.jsonl\n"
    options = ["--max-tokens", "20", "--system", "Be kind.", "--out", "kept"]
    command = [*CHAT, "model", *options]
    done = subprocess.run(
        command, check=False, input=lines, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert "added a row to rows.jsonl: 5 messages\nno/where.jsonl cannot be written" in done.stdout
    (row,) = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [each["role"] for each in row["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert [each["function"]["name"] for each in row["tools"]] == ["python_code_with_standard_io"]
    assert (tmp_path / "kept" / "journal.sqlite").exists()
    for message in row["messages"]:  # what a model without training writes may be half a tool call
        message["content"] = "Hello."
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["data", "sft", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "sft.jsonl")]) == 0
    assert json.loads((tmp_path / "sft.jsonl").read_text())["tools"] == row["tools"]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("nowhere", "there is no directory nowhere"),
        ("model", "prompts with the descriptions of their tools need more: .*--tools none"),
    ],
)
def test_a_model_that_cannot_be_served_is_refused_before_anything_starts(tmp_path, model, why):
    write_model(tmp_path, max_length=256)
    done = subprocess.run(
        [*CHAT, model], check=False, input="Hello?\n", cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (message,) = done.stderr.splitlines()
    assert re.search(why, message)

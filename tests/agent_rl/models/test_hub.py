"""Models named as on the hub: from a server that answers like it, from a cache, and from a hub that does not answer."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model
from agent_rl.models.hub import is_hub_name, within
from tests.end_to_end.topologies import write_micro

COMMIT = "a" * 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hub") / "tiny"
    shape = InitialiseModel(hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp_size=16)
    initialise_model(shape, directory, 0)
    return directory


@pytest.fixture
def hub(model: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub that has one model, org/tiny, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            asked.append(f"{self.command} {path}")
            files = list(model.iterdir())
            if path.startswith("/api/models/org/tiny/tree/"):
                self.answer(200, json.dumps([
                    {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": tag(file)} for file in files
                ]).encode())  # fmt: skip
            elif path.startswith("/api/models/org/tiny"):
                names = [{"rfilename": file.name} for file in files]
                self.answer(200, json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": names}).encode())
            elif path.startswith("/org/tiny/resolve/") and (file := model / path.rpartition("/")[2]).is_file():
                self.answer(200, file.read_bytes(), ETag=f'"{tag(file)}"')
            else:
                self.answer(404, **{"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET  # noqa: N815 - the server's name for it

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in {**headers, "X-Repo-Commit": COMMIT, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def tag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


def write_topology(folder: Path, name: str) -> Path:
    path, _ = write_micro(folder)
    before, _, after = path.read_text().partition("[model.initialise]")
    path.write_text(f'{before}[model]\npath = "{name}"\n[[environments]]{after.partition("[[environments]]")[2]}')
    return path


COMMANDS = """
import sys, time
from actors.cli.main import main
for line in sys.argv[1:]:
    began = time.monotonic()
    code = main(line.split())
    print(f"## {code} {time.monotonic() - began:.1f}", file=sys.stderr)
"""


def run(folder: Path, *lines: str, **environment: str) -> tuple[list[tuple[int, float]], list[str]]:
    """Command lines one after the other; exit code and seconds of each, and what each said on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, *lines],
        cwd=folder,
        env=os.environ | {"HF_HOME": str(folder / "cache"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    ends, said = [], [""]
    for line in done.stderr.splitlines():
        if line.startswith("## "):
            ends.append((int(line.split()[1]), float(line.split()[2])))
            said.append("")
        else:
            said[-1] += line + "\n"
    return ends, said


def test_a_name_on_the_hub_is_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    assert is_hub_name("Qwen/Qwen3-14B")
    assert not any(map(is_hub_name, ("runs/first", "./Qwen/Qwen3", "/a/b", "~/b", "a/b/c", "model", "a b/c", "")))


def test_what_takes_too_long_is_not_waited_for() -> None:
    assert within(60.0, lambda: 5) == 5
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        within(0.01, threading.Event().wait)
    with pytest.raises(KeyError):
        within(60.0, lambda: {}["nothing"])


ASKED = ("check {file}", "run {file}", "eval {name} --data p.jsonl", "data sft p.jsonl --out o.jsonl --model {name}")


@pytest.mark.parametrize("offline", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_hub_that_is_not_there_is_said_at_once_by_every_command(tmp_path: Path, *, offline: bool) -> None:
    (tmp_path / "p.jsonl").write_text('{"problem": "1?", "answer": "1"}\n')
    file = write_topology(tmp_path, "org/tiny")
    asked = ASKED if offline else ASKED[:3]  # the last loads transformers, for seconds
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        where = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        environment = {"HF_ENDPOINT": where} | ({"HF_HUB_OFFLINE": "1"} if offline else {})
        ends, said = run(tmp_path, *(line.format(file=file, name="org/tiny") for line in asked), **environment)
    assert [code for code, _ in ends] == [2] * len(asked)
    assert max(seconds for _, seconds in ends[:3]) < 20  # a few on a free machine
    for each in said[: len(asked)]:
        assert len(each.splitlines()) == 1, each
        for part in ("HF_HUB_OFFLINE (or",) if offline else (where, "HF_ENDPOINT", "directory of a model"):
            assert part in each


def test_a_model_of_the_hub_is_checked_by_its_small_files_alone(tmp_path: Path, hub: tuple[str, list[str]]) -> None:
    url, asked = hub
    known = write_topology(tmp_path, "org/tiny")
    (tmp_path / "other").mkdir()
    unknown = write_topology(tmp_path / "other", "org/none")
    ends, said = run(tmp_path, f"check {known}", f"check {unknown}", f"check {known}", HF_ENDPOINT=url)
    assert [code for code, _ in ends] == [0, 2, 0], said
    assert "there is neither a directory org/none nor a model of that name at" in said[1]
    assert not any("safetensors" in each for each in asked)  # weights are for those who start a run
    assert asked[-1] == "GET /api/models/org/none"  # what is here is not asked for again


@pytest.mark.slow
def test_a_model_of_the_hub_is_evaluated_and_once_more_from_the_cache(
    tmp_path: Path, hub: tuple[str, list[str]]
) -> None:
    url, _ = hub
    (tmp_path / "p.jsonl").write_text('{"problem": "1?", "answer": "1"}\n')
    line = "eval org/tiny --data p.jsonl --n 1 --max-tokens 8 --prompt plain"
    ends, said = run(tmp_path, line, HF_ENDPOINT=url)
    assert ends[0][0] == 0, said
    assert f"fetching org/tiny from {url}" in said[0]
    chat = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}'
    (tmp_path / "c.jsonl").write_text(chat)
    counted = "data sft c.jsonl --out o.jsonl --model org/tiny"
    ends, said = run(tmp_path, f"{line} --out again", counted, HF_HUB_OFFLINE="1")
    assert [code for code, _ in ends] == [0, 0], said
    assert (tmp_path / "again" / "results.json").is_file()

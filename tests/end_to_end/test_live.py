"""A real run that is trained by sessions from outside: they begin, are rewarded and end by HTTP."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

from actors.cli.main import main
from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model
from agent_rl.records.journal import read_journal
from tests.actors.gateway.stand import free_port
from tests.end_to_end.processes import (
    balanced,
    check_trained_once,
    finish,
    rows,
    signal_actor,
    start,
    steps_trained,
    wait_for,
)
from tests.end_to_end.topologies import write_half_right

KEY = "sk-sessions"


def post(port: int, path: str, key: str, **body: Any) -> tuple[int, dict[str, Any]]:
    """Status and body; 0 where nobody answers."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())
    except OSError:
        return 0, {}


def session(port: int, number: int) -> bool:
    """One user of the model, whose every third session gets no reward."""
    status, begun = post(port, "/rl/start_session", KEY)
    if status != 200:
        time.sleep(0.05)
        return False
    key = begun["api_key"]
    messages = [{"role": "user", "content": f"What is {number}?"}]
    if post(port, "/v1/chat/completions", key, model="agent-rl", messages=messages)[0] != 200:
        return False
    post(port, "/rl/end_session", key)
    if number % 3 == 2:
        return False
    return post(port, "/rl/set_reward", begun["reward_key"], reward=float(number % 2))[0] == 200


class Users:
    """Several users at once, until the run ends."""

    def __init__(self, port: int, count: int) -> None:
        self.over = threading.Event()
        self.rewarded = 0
        self._port, self._number, self._lock = port, 0, threading.Lock()
        self._threads = [threading.Thread(target=self._go_on) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()

    def _go_on(self) -> None:
        while not self.over.is_set():
            with self._lock:
                self._number += 1
                number = self._number
            done = session(self._port, number)
            with self._lock:
                self.rewarded += done


def live(tmp_path: Path, port: int, steps: int) -> tuple[Path, Path, list[str]]:
    path, directory = write_half_right(tmp_path, steps=steps)
    whole = path.read_text().replace("tests.end_to_end.faulty:HalfRight", "actors.roc_filter:RoCFilter")
    path.write_text(whole.replace('class = "maths"\nsettings.files = ["fours.jsonl"]', 'class = "live"'))
    options = [
        'environments.0.harness={source="live", seconds=3}',
        f'actors.gateway.settings={{port={port}, session_key="{KEY}"}}',
        'run.keep_trajectories="all"',
    ]
    return path, directory, options


@pytest.mark.slow
def test_sessions_from_outside_train_the_model_also_when_a_generator_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    path, directory, options = live(tmp_path, port, steps=4)
    process = start(path, *options)
    with Users(port, 6) as users:
        wait_for(lambda: steps_trained(directory) >= 1, "a step")
        signal_actor(path, "rollout_generator.0")
        finish(process)
    balanced(directory, steps=4)
    check_trained_once(directory)
    assert users.rewarded > 0
    assert main(["export", str(directory)]) == 0
    capsys.readouterr()
    found = rows(directory / "trajectories.jsonl")
    assert {row["reward"] for row in found} == {0.0, 1.0}
    log = "".join(each.read_text() for each in (directory / "logs").iterdir())
    assert "a session is dropped" in log


@pytest.mark.slow
def test_what_a_session_may_not_do_is_said(tmp_path: Path) -> None:
    port = free_port()
    path, _, options = live(tmp_path, port, steps=99)
    process = start(path, *options)
    try:
        wait_for(lambda: post(port, "/rl/start_session", KEY)[0] == 200, "a session")
        assert post(port, "/rl/start_session", "wrong")[0] == 401
        assert post(port, "/rl/start_session", KEY, task_id="nobody's")[0] == 429
        status, begun = post(port, "/rl/start_session", KEY)
        assert status == 200
        key = begun["api_key"]
        assert post(port, "/rl/set_reward", key, reward=1)[0] == 401, "the agent does not choose its reward"
        key = begun["reward_key"]
        for wrong in (None, True, "1", float("1e999"), 1e39):
            status, said = post(port, "/rl/set_reward", key, reward=wrong)
            assert status == 400, said
            assert re.search("finite number|number that is too large", said["error"]["message"])
        assert post(port, "/rl/set_reward", key, reward=1, interaction_id="x")[0] == 400
        assert post(port, "/rl/set_reward", f"{key}x", reward=1)[0] == 409
        assert post(port, "/rl/end_session", "nothing")[0] == 401
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.slow
def test_a_model_is_served_to_any_client_and_what_was_said_is_kept(tmp_path: Path) -> None:
    port = free_port()
    spec = InitialiseModel(hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_size=32)
    initialise_model(spec, tmp_path / "model", 0)
    options = ["--port", str(port), "--key", KEY, "--max-tokens", "40", "--tools", "none", "--out", "out"]
    process = subprocess.Popen(
        [sys.executable, "-m", "actors.cli", "serve", "model", *options],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    body = {"model": "agent-rl", "messages": [{"role": "user", "content": "Hello?"}]}
    try:
        wait_for(lambda: post(port, "/v1/chat/completions", KEY, **body)[0] == 200, "a turn")
        assert post(port, "/v1/chat/completions", "wrong", **body)[0] == 401
        status, said = post(port, "/v1/messages", KEY, max_tokens=9, **body)
        assert (status, said["role"]) == (200, "assistant")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    journal = read_journal(tmp_path / "out")
    try:
        kept = [each for group in journal.group_ids() for each in journal.trajectories(group)]
    finally:
        journal.close()
    assert len([each for each in kept if each.reward == 0.0]) >= 2

"""A real run that is trained by sessions from outside: they begin, are rewarded and end by HTTP."""

import json
import re
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

from agent_rl.records.journal import read_journal
from tests.actors.gateway.stand import free_port
from tests.end_to_end.processes import Run, in_background, wait_for
from tests.end_to_end.topologies import write_half_right, write_model

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


def live(tmp_path: Path, port: int, steps: int) -> Run:
    run = Run(*write_half_right(tmp_path, steps=steps))
    whole = run.path.read_text().replace("tests.end_to_end.faulty:HalfRight", "actors.roc_filter:RoCFilter")
    run.path.write_text(whole.replace('class = "maths"\nsettings.files = ["fours.jsonl"]', 'class = "live"'))
    return run.start(
        'environments.0.harness={source="live", seconds=3}',
        f'actors.gateway.settings={{port={port}, session_key="{KEY}"}}',
        'run.keep_trajectories="all"',
    )


@pytest.mark.slow
def test_sessions_from_outside_train_the_model_also_when_a_generator_is_killed(tmp_path):
    port = free_port()
    run = live(tmp_path, port, steps=4)
    with Users(port, 6) as users:
        run.until(1).signal("rollout_generator.0")
        run.finish()
    run.balanced(steps=4)
    run.trained_once()
    assert users.rewarded > 0
    assert {row["reward"] for row in run.exported()} == {0.0, 1.0}
    assert "a session is dropped" in run.log()


@pytest.mark.slow
def test_what_a_session_may_not_do_is_said(tmp_path):
    port = free_port()
    run = live(tmp_path, port, steps=99)
    run.wait(lambda: post(port, "/rl/start_session", KEY)[0] == 200, "a session")
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


@pytest.mark.slow
def test_a_model_is_served_to_any_client_and_what_was_said_is_kept(tmp_path):
    port = free_port()
    write_model(tmp_path)
    options = ["--port", str(port), "--key", KEY, "--max-tokens", "40", "--tools", "none", "--out", "out"]
    process = in_background([sys.executable, "-m", "actors.cli", "serve", "model", *options], cwd=tmp_path)
    body = {"model": "agent-rl", "messages": [{"role": "user", "content": "Hello?"}]}
    wait_for(lambda: post(port, "/v1/chat/completions", KEY, **body)[0] == 200, "a turn")
    assert post(port, "/v1/chat/completions", "wrong", **body)[0] == 401
    status, said = post(port, "/v1/messages", KEY, max_tokens=9, **body)
    assert (status, said["role"]) == (200, "assistant")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    journal = read_journal(tmp_path / "out")
    try:
        kept = [each for group in journal.group_ids() for each in journal.trajectories(group)]
    finally:
        journal.close()
    assert len([each for each in kept if each.reward == 0.0]) >= 2

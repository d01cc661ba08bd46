"""Programs of rollouts: whose fault a check is that decides nothing, what is a secret, what their jails hide."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio

from actors.rollout_generator.agent_loop import TaskFaultError
from actors.rollout_generator.harness import Harnesses
from agent_rl.config.hidden import HIDDEN
from agent_rl.config.topology import Harness
from agent_rl.environments.harbor import Harbor
from agent_rl.environments.harness import HarnessOutcome
from tests.actors.sandbox.test_programs import ran

LOG = structlog.wrap_logger(structlog.ReturnLogger(), processors=[])
RIGHT = HarnessOutcome("status 0", check_status="status 0", check_reward="1\n")
BROKEN = {
    "no reward": HarnessOutcome("status 0", check_status="status 127", check_output="no_such_program: not found"),
    "no number": HarnessOutcome("status 0", check_status="status 0", check_reward="nan"),
    "cut": HarnessOutcome("status 0", check_status="status 0", check_reward='{"reward": 0.'),
    "hangs": HarnessOutcome("status 0", check_status="no end within 3 s", check_reward="1\n"),
    "killed": HarnessOutcome("status 0", check_status="SIGKILL", check_reward="1\n"),
    "lost": HarnessOutcome("its warden was lost"),
}


def stand(tmp_path: Path, alone: HarnessOutcome) -> tuple[Harnesses, Harbor, Any]:
    """``alone``: what the check comes to where no program has run."""
    task = tmp_path / "tasks" / "one"
    (task / "tests").mkdir(parents=True)
    for name in ("task.toml", "instruction.md", "tests/test.sh"):
        (task / name).write_text("")
    made = Harbor(seed=0, base=tmp_path, folder="tasks")
    made.harness = Harness(command=("agent",), check=("bash", "{tests}/test.sh"))
    found = Harnesses(None, None, None, url="http://127.0.0.1:1", base=tmp_path, log=LOG)  # type: ignore[arg-type]

    async def run(*given: Any) -> HarnessOutcome:
        assert given[-1] is None
        return alone

    found._run = run  # type: ignore[method-assign, assignment]
    return (
        found,
        made,
        SimpleNamespace(request=SimpleNamespace(problem=replace(next(made.problems().trained), environment="harbor"))),
    )


@pytest.mark.parametrize("how", BROKEN)
async def test_a_check_that_decides_nothing_is_the_task_s_fault_unless_it_decides_without_the_program(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "a").mkdir()
    by_program, environment, episode = stand(tmp_path / "a", RIGHT)
    for _ in range(4):
        await by_program._try_check(environment, episode, BROKEN[how])
    by_task, environment, episode = stand(tmp_path, BROKEN[how])
    await by_task._try_check(environment, episode, RIGHT)
    for left in ("not judged", "not judged", "left out for the rest of the run"):
        by_task._refuse_broken(episode.request.problem, 3)
        with pytest.raises(TaskFaultError, match=f"task 'one' of environment 'harbor' is {left}: the tests "):
            await by_task._try_check(environment, episode, BROKEN[how])
    with pytest.raises(TaskFaultError, match="left out"):
        by_task._refuse_broken(episode.request.problem, 3)


class Alone:
    """A zygote whose program leaves what its variables hold."""

    jailed, listener, flooded = False, None, False

    @asynccontextmanager
    async def program(self, asked: dict[str, Any]) -> AsyncIterator[Any]:
        self.text = " ".join(asked["env"][name] for name in ("MAX_TOKENS", "GITHUB_TOKEN", "PLACE", "OPENAI_API_KEY"))
        self.written_all = trio.Event()
        self.written_all.set()
        yield self

    async def read(self, most: int) -> None:
        """Nothing more."""

    def starved(self) -> bool:
        return False

    async def result(self) -> dict[str, Any]:
        check = {"status": "status 0", "output": self.text, "reward": "1"}
        return {"status": "status 0", "check": check, "files": {"a": self.text}}


@pytest.mark.parametrize(("pin", "left"), [("1", "1"), ("of-the-host", HIDDEN)])
async def test_the_key_and_values_of_the_host_are_secrets_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pin: str, left: str
) -> None:
    harnesses, environment, episode = stand(tmp_path, RIGHT)
    del harnesses._run  # the real one
    monkeypatch.setenv("PIN", pin)
    variables = {"MAX_TOKENS": "512", "GITHUB_TOKEN": "env:PIN", "PLACE": "env:PIN"}
    environment.harness = Harness(command=("agent",), check=("true",), environment=variables)
    harnesses._zygote = partial(trio.to_thread.run_sync, lambda *_: Alone())  # type: ignore[method-assign, assignment]
    episode.request.seed = 0
    found = await harnesses._run(environment, episode, "key-of-the-rollout", tmp_path, trio.Event())
    assert (found.output, found.check_reward) == (f"512 {left} {left} {HIDDEN}", "1")
    assert found.files["a"] == found.check_output == found.output


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["prefix", "environment", "linked"])
async def test_answers_are_hidden_where_they_lie_in_what_the_program_is_installed_in(tmp_path: Path, kind: str) -> None:
    project = tmp_path / "project"
    lib = project / "lib" / "site-packages"
    for each in (
        "bin/agent",
        "lib/site-packages/used.py",
        "lib/site-packages/answers/gold.py",
        "tasks/gold.txt",
        "gold.toml",
    ):
        (project / each).parent.mkdir(parents=True, exist_ok=True)
        (project / each).write_text("#!/bin/sh\nfind $PLACE -name 'gold*' -o -name used.py\n")
    (project / "bin" / "agent").chmod(0o755)
    if kind == "environment":
        (project / "pyvenv.cfg").write_text("")
    (tmp_path / "link").symlink_to(project)
    hidden = [str((tmp_path / "link" if kind == "linked" else project) / each) for each in (".", "tasks")]
    hidden = [os.path.normpath(each) for each in hidden] + [str(lib / "answers")]
    async with trio.open_nursery() as nursery:
        found = Harnesses(None, None, nursery, url="http://127.0.0.1:1", base=project, log=LOG, hidden=hidden)  # type: ignore[arg-type]
        wanted = Harness(command=(str(project / "bin" / "agent"),), isolation="strong")
        made = await found._new_zygote("harbor", wanted)
        if made.why_plain:
            pytest.skip(f"no jails here: {made.why_plain}")
        _, program = await ran(made, tmp_path, "", argv=list(wanted.command), env={"PLACE": str(tmp_path)})
        nursery.cancel_scope.cancel()
    assert program.text == f"{lib / 'used.py'}\n"

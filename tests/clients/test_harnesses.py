"""Agents of others as harnesses: each is started by the generator, in a jail, as docs/harnesses.md says."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from agent_rl.config.topology import Harness
from agent_rl.environments.base import ChatMessages, Environment
from agent_rl.environments.harness import HarnessOutcome, outcome_of
from agent_rl.messages import Problem, Sampling
from agent_rl.rollout.episode import Episode
from tests import builders
from tests.actors.gateway.stand import stand
from tests.clients.test_clients import COMMANDS, ENVIRONMENT, FINAL, HERE, INSTALLED, LONGEST_SECONDS, TURNS

PYTHON = str(ENVIRONMENT / "bin" / "python")
QWEN = ENVIRONMENT / "node_modules" / "@qwen-code" / "qwen-code" / "cli.js"
WRITES = '<tool_call>{"name": "write_file", "arguments": {"file_path": "/app/answer", "content": "42\\n"}}</tool_call>'
pytestmark = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED, reason="no clients are here: make .venv-clients/installed"),
]


class Task(Environment):
    """One task."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness

    def prompt(self, problem: Problem) -> ChatMessages:
        return [{"role": "user", "content": f"Write 6 times 7 to the file answer. ({problem.id})"}]

    def check_files(self, problem: Problem) -> Mapping[str, str]:
        return {"test.sh": "mkdir -p /logs/verifier; grep -qx 42 answer && echo 1 > /logs/verifier/reward.txt\n"}


async def harnessed(folder: Path, texts: Sequence[str], **settings: Any) -> tuple[HarnessOutcome, Episode]:
    """What a harness leaves, and its rollout, in which the engine writes these texts."""
    turns = iter(texts)
    harness = Harness(
        isolation="strong", shows=(str(HERE), *settings.pop("shows", ())), collect=("answer",), **settings
    )
    with trio.fail_after(LONGEST_SECONDS):
        async with stand(folder, lambda *_: next(turns, "One turn too many.")) as at:
            generator = at.generator
            request = builders.request(sampling=Sampling(1.0, 100_000, 100))
            episode = Episode(request, generator._chat, generator._engine.longest, begun=False)
            await generator._harnesses.run(Task(harness), episode)
    found = outcome_of(episode.transcript)
    assert found is not None
    return found, episode


async def test_mini_swe_agent_works_in_its_folder_and_the_check_sees_it(tmp_path: Path) -> None:
    command = (PYTHON, str(HERE / "mini_swe_agent.py"))
    found, episode = await harnessed(tmp_path, COMMANDS, command=command, check=("bash", "{tests}/test.sh"))
    assert (found.status, found.files, found.check_reward) == ("status 0", {"answer": "42\n"}, "1\n"), found.output
    assert [strand.turns for strand in episode.strands] == [[1, 2]]


@pytest.mark.parametrize(
    ("client", "texts"),
    [
        (("openai_agents.py", "responses"), TURNS),
        (("smolagents_agent.py", "tools"), (TURNS[0], FINAL % "Rain", TURNS[2], FINAL % "Dry in Oslo")),
    ],
)
async def test_agents_of_python(tmp_path: Path, client: Sequence[str], texts: Sequence[str]) -> None:
    found, episode = await harnessed(tmp_path, texts, command=(PYTHON, str(HERE / client[0]), *client[1:]))
    assert (found.status, "Dry in Oslo" in found.output) == ("status 0", True), found.output
    assert episode.turns == len(texts)


@pytest.mark.skipif(not QWEN.is_file() or shutil.which("node") is None, reason="no Qwen Code: make .venv-clients/qwen")
async def test_a_coding_agent_of_npm(tmp_path: Path) -> None:
    command = ("node", str(QWEN), "-p", "{prompt}", "--yolo", "--auth-type", "openai")
    shows, variables = (str(QWEN.parents[2]),), {"OPENAI_MODEL": "agent-rl", "QWEN_TELEMETRY_ENABLED": "false"}
    more = {"command": command, "shows": shows, "environment": variables, "check": ("bash", "{tests}/test.sh")}
    found, episode = await harnessed(tmp_path, (f"I write it.\n{WRITES}", "Done."), memory_mib=8192, **more)
    assert (found.status, found.files, found.check_reward) == ("status 0", {"answer": "42\n"}, "1\n"), found.output
    assert [strand.turns for strand in episode.strands] == [[1, 2]]

"""A rollout by a program of its own, the harness: it asks the gateway for turns, with the rollout's key.

The program runs in an empty folder, in a session of its own, as a plain process of the generator's user: whoever starts
it must trust it. It sees no variable of the generator's environment but ``PATH`` and what the topology gives it. When
the rollout ends, the program and all that it started in its session are killed, and the folder is removed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from actors.rollout_generator.agent_loop import AgentLoop, EnvironmentFaultError
from agent_rl.config.hidden import with_environment
from agent_rl.environments.load import sound_prompt
from agent_rl.messages import EnvironmentMessage
from agent_rl.rollout.keys import MODEL

if TYPE_CHECKING:
    from actors.rollout_generator.served import ServedRollouts
    from actors.rollout_generator.turns import Written
    from agent_rl.config.topology import Harness
    from agent_rl.environments.base import Environment
    from agent_rl.rollout.episode import Episode

OUTPUT_CHARS = 16 * 1024
"""The end of what a program writes that the transcript keeps."""
LEAVE_SECONDS = 5.0
"""How long a program may go on once it was told that its rollout has ended."""


class HarnessRun:
    """Runs the program of one rollout."""

    def __init__(self, agent: AgentLoop, served: ServedRollouts, environment: Environment, url: str) -> None:
        assert environment.harness is not None
        self._agent, self._served, self._url = agent, served, url
        self._environment, self._harness = environment, environment.harness

    async def run(self, episode: Episode, written: Callable[[Written], None] | None = None) -> None:
        """Run the program to its end; ``written`` is told of each turn.

        Raises EngineError, ContractError, and EnvironmentFaultError for the program's faults.
        """
        async with self._served.serving(self._agent, episode, written) as (key, rollout):
            with tempfile.TemporaryDirectory(prefix="agent-rl-harness-", ignore_cleanup_errors=True) as folder:
                status, output = await self._run(episode, key, Path(folder), rollout.over)
        if isinstance(status, EnvironmentFaultError):
            raise status
        if rollout.failure is not None:
            raise rollout.failure
        if not episode.turns:
            name = episode.request.problem.environment
            said = output.strip()[-2000:] or "nothing"
            raise EnvironmentFaultError(
                f"environment {name!r}: its harness asked for no turn; it ended with {status} and wrote: {said}"
            )
        episode.said([EnvironmentMessage(episode.turns, "harness", output)])
        episode.finish()

    async def _run(
        self, episode: Episode, key: str, folder: Path, over: trio.Event
    ) -> tuple[str | EnvironmentFaultError, str]:
        """How it ended, or why it did not start, and the end of its output."""
        harness = self._harness
        problem = episode.request.problem
        prompt = sound_prompt(self._environment, problem)[-1]["content"]
        values = {"{prompt}": prompt, "{id}": problem.id, "{model}": MODEL, "{seed}": str(episode.request.seed)}
        command = [_filled(part, values) for part in harness.command]
        written = bytearray()
        try:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=self._variables(harness, key, folder),
                start_new_session=True,
            )
        except OSError as error:
            why = f"environment {problem.environment!r}: its harness {command[0]!r} cannot be started: "
            remedy = f"{error.strerror or error}; write its path in `harness.command`"
            return EnvironmentFaultError(why + remedy), ""
        fault = ""
        try:
            with trio.move_on_after(harness.seconds) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_read, process, written)
                    nursery.start_soon(_leaves, over, nursery.cancel_scope)
                    await process.wait()
                    nursery.cancel_scope.cancel()
            if scope.cancelled_caught:
                fault = f"no end within {harness.seconds:g} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await process.wait()
            if process.stdout is not None:
                await process.stdout.aclose()
        return fault or f"status {process.returncode}", written.decode(errors="replace")[-OUTPUT_CHARS:]

    def _variables(self, harness: Harness, key: str, folder: Path) -> Mapping[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "OPENAI_BASE_URL": f"{self._url}/v1",
            "OPENAI_API_BASE": f"{self._url}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": self._url,
            "ANTHROPIC_API_KEY": key,
            "AGENT_RL_MODEL": MODEL,
            **dict(with_environment(harness.environment)),
        }


def _filled(part: str, values: Mapping[str, str]) -> str:
    """A part of a command with the values of its names; a value is not searched for names again."""
    if part in values:
        return values[part]
    for name, value in values.items():
        if name != "{prompt}":
            part = part.replace(name, value)
    return part.replace("{prompt}", values["{prompt}"])


async def _read(process: trio.Process, written: bytearray) -> None:
    """Keep the end of what the program writes."""
    assert process.stdout is not None
    while data := await process.stdout.receive_some(65536):
        written += data
        del written[: -4 * OUTPUT_CHARS]


async def _leaves(over: trio.Event, scope: trio.CancelScope) -> None:
    """The rollout has ended: the program is given up after a while."""
    await over.wait()
    await trio.sleep(LEAVE_SECONDS)
    scope.cancel()

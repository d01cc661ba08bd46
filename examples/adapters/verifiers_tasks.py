"""Tasks and rewards of verifiers (0.4): problems from a file of tasks, scores from a server (`verifiers_server.py`).

::

    agent-rl mcp FILE --> verifiers_server.py --> the file of tasks --> Verifiers.problems, in every actor
    Verifiers.judge --> Context.ask_server --> the taskset's rewards --> Judgement
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import NonNegativeInt

from agent_rl.environments.base import ChatMessages, Context, Environment, TaskError
from agent_rl.environments.task_files import read_rows
from agent_rl.environments.tasks import ListedTasks
from agent_rl.files.reading_json import sound_json
from agent_rl.messages import Judgement, Problem, Transcript


class Verifiers(Environment):
    """The tasks of a taskset whose rollouts are conversations alone."""

    def __init__(
        self,
        *,
        seed: int,
        base: Path,
        tasks: str = "tasks.jsonl",
        server: str = "verifiers",
        held_out: NonNegativeInt = 0,
        success_at: float = 1.0,
    ) -> None:
        """``tasks`` is the file of tasks, ``server`` the name of the MCP server in the environment's table ``mcp``.

        The last ``held_out`` tasks are for evaluations. A rollout succeeds with a reward of ``success_at`` or more.
        Raises TaskError for a file that holds no tasks.
        """
        self._server, self._success_at = server, success_at
        if not (base / tasks).is_file():
            raise TaskError(f"there is no {base / tasks}; write it with `agent-rl mcp FILE`", ("tasks",), missing=tasks)
        problems = list(_problems(tasks, base / tasks))
        if held_out >= len(problems):
            raise TaskError(f"{tasks} has {len(problems)} tasks, and held_out is {held_out}; hold fewer", ("held_out",))
        at = len(problems) - held_out
        self._tasks = ListedTasks([problems[:at]], problems[at:], seed=seed)

    def problems(self) -> ListedTasks:
        """The tasks of the file."""
        return self._tasks

    def prompt(self, problem: Problem) -> ChatMessages:
        """The task's system prompt, where it has one, and its prompt."""
        system = problem.payload["system"]
        head = [{"role": "system", "content": system}] if system else []
        return [*head, {"role": "user", "content": problem.text}]

    async def judge(self, problem: Problem, transcript: Transcript, context: Context) -> Judgement:
        """The sum of the taskset's weighted rewards. Raises RuntimeError for a rollout that verifiers cannot score."""
        messages = [*self.prompt(problem)]
        for turn, text in enumerate(transcript.texts, start=1):
            messages.append({"role": "assistant", "content": text})
            messages += [{"role": "user", "content": call.response} for call in transcript.calls if call.turn == turn]
        task = {key: problem.payload[key] for key in ("index", "key")}
        output = await context.ask_server(self._server, "score", {**task, "messages": messages})
        if output.outcome != "success":
            raise RuntimeError(f"verifiers gave no score: {output.stderr}")
        score = sound_json(output.value.encode())
        parts = {name: float(value) for name, value in {**score["metrics"], **score["rewards"]}.items()}
        return Judgement(float(score["reward"]), score["reward"] >= self._success_at, parts, note="verifiers")


def _problems(name: str, path: Path) -> Iterator[Problem]:
    for where, row in read_rows(name, path):
        if not isinstance(row.get("prompt"), str) or not {"index", "key", "system"} <= row.keys():
            raise TaskError(f"{where}: no task; remove the file, and run `agent-rl mcp FILE`", ("tasks",))
        yield Problem(str(row["index"]), row["prompt"], payload=dict(row))

"""Tasks of inspect-ai: problems from a file of samples, rollouts and scores by a harness (`inspect_server.py`).

::

    agent-rl mcp FILE --> inspect_server.py list --> the file of samples --> InspectTask.problems, in every actor
    harness: inspect_server.py run --> the task's solver, the gateway's model --> its scorers --> InspectTask.judge
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from pydantic import NonNegativeInt

from agent_rl.environments.base import ChatMessages, Context, Environment, TaskError
from agent_rl.environments.harness import HarnessOutcome, outcome_of
from agent_rl.environments.task_files import read_rows
from agent_rl.environments.tasks import ListedTasks
from agent_rl.files.reading_json import parse_json
from agent_rl.messages import Judgement, Problem, Transcript


class InspectTask(Environment):
    """The samples of a task. Its solver writes the rollouts, and its scorers judge them."""

    def __init__(
        self,
        *,
        seed: int,
        base: Path,
        tasks: str = "tasks.jsonl",
        held_out: NonNegativeInt | None = None,
        score: str = "",
        success_at: float = 1.0,
    ) -> None:
        """``tasks`` is the file of samples; the last ``held_out`` are for evaluations, all if left out.

        The reward is the ``score`` of this name, else the mean of all. A rollout succeeds with ``success_at`` or more.
        Raises TaskError for a file that holds no samples.
        """
        self._score, self._success_at = score, success_at
        if not (base / tasks).is_file():
            raise TaskError(f"there is no {base / tasks}; write it with `agent-rl mcp FILE`", ("tasks",), missing=tasks)
        problems = []
        for where, row in read_rows(tasks, base / tasks):
            if not isinstance(row.get("text"), str) or not isinstance(row.get("id"), str):
                raise TaskError(f"{where}: no sample; remove the file, and run `agent-rl mcp FILE`", ("tasks",))
            problems.append(Problem(row["id"], row["text"]))
        if held_out is not None and held_out > len(problems):
            raise TaskError(
                f"{tasks} has {len(problems)} samples, and held_out is {held_out}; hold fewer", ("held_out",)
            )
        at = 0 if held_out is None else len(problems) - held_out
        self._tasks = ListedTasks([problems[:at]], problems[at:], seed=seed)

    def problems(self) -> ListedTasks:
        """The samples of the file."""
        return self._tasks

    def prompt(self, problem: Problem) -> ChatMessages:
        """What the sample asks; the solver may say more."""
        return [{"role": "user", "content": problem.text}]

    async def judge(self, problem: Problem, transcript: Transcript, context: Context) -> Judgement:
        """The scores of the run, 0 if it was stopped before. Raises RuntimeError for a run that failed."""
        del context
        if self.harness is None:
            raise RuntimeError("no harness runs the task; write [environments.harness] (docs/adapters.md)")
        outcome = outcome_of(transcript) or HarnessOutcome("nothing was run")
        last = outcome.output.strip().rpartition("\n")[2]
        if not last.startswith("scores "):
            if outcome.status.startswith("status "):
                raise RuntimeError(
                    f"sample {problem.id} was not run ({outcome.status}): {outcome.output[-500:].strip()}"
                )
            return Judgement(0.0, success=False, note=outcome.status)
        said = parse_json(last.removeprefix("scores ").encode())
        parts: dict[str, float] = said["scores"]
        if said["error"] or not parts:
            raise RuntimeError(f"sample {problem.id} has no score: {said['error'] or 'its task has no scorer'}")
        if self._score and self._score not in parts:
            raise RuntimeError(f"there is no score {self._score!r}; there is {', '.join(parts)}")
        reward = parts[self._score] if self._score else fmean(parts.values())
        return Judgement(reward, reward >= self._success_at, parts, note="inspect")

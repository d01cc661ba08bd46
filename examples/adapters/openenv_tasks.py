"""Environments of OpenEnv (0.10): problems from a file of tasks, episodes at a server (`openenv_server.py`).

::

    agent-rl mcp FILE --> openenv_server.py --> the file of tasks --> OpenEnv.problems and its tools, in every actor
    a turn --> observe, or a tool --> Context.ask_server --> reset and step of the environment --> what the model reads
    OpenEnv.judge --> the rewards of all steps --> Judgement

The episode is a function of seed and actions. So an executor that lacks it plays all actions again, and `judge`
compares what the environment shows then with what the model has read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import NonNegativeInt

from agent_rl.environments.base import ChatMessages, Context, Environment, Observation, TaskError, ToolOutput
from agent_rl.environments.task_files import read_rows
from agent_rl.environments.tasks import ListedTasks
from agent_rl.environments.tools import rendered
from agent_rl.files.reading_json import JsonError, parse_json, sound_json
from agent_rl.messages import Judgement, Problem, Transcript
from agent_rl.rollout.parsing import harmless

OVER = "The episode has ended."


@dataclass(eq=False, slots=True)
class OpenEnvTool:
    """A tool of an environment whose actions are calls of tools. Its calls are steps, one after the other."""

    server: str
    name: str
    schema: Mapping[str, Any]
    runs: Literal["sandbox", "host"] = "host"
    stateful: bool = True
    seconds: float | None = None

    async def call(self, arguments: Mapping[str, Any], state: bytes, context: Context) -> ToolOutput:
        """Take a step. What the environment answers is a success, also if it is an error of its own."""
        del state
        results, output = await _played(self.server, context, action=_call(self.name, arguments))
        if not results:
            return output
        return ToolOutput("success", value=_shown(results[-1]), state=b"called")

    def render(self, output: ToolOutput) -> str:
        """The text that the model reads."""
        return rendered(output)


class OpenEnv(Environment):
    """The episodes of an environment, one for each seed."""

    def __init__(
        self,
        *,
        seed: int,
        base: Path,
        tasks: str = "tasks.jsonl",
        server: str = "openenv",
        instruction: str = "",
        reward: Literal["sum", "last"] = "sum",
        held_out: NonNegativeInt = 0,
        success_at: float = 1.0,
    ) -> None:
        """``tasks`` is the file of tasks, ``server`` the name of the MCP server in the environment's table ``mcp``.

        ``instruction`` stands before what the environment shows at the beginning. The ``reward`` is the sum of all
        steps' or that of the last one. The last ``held_out`` tasks are for evaluations. A rollout succeeds with a
        reward of ``success_at`` or more. Raises TaskError for a file that holds no tasks.
        """
        self._server, self._sums, self._success_at = server, reward == "sum", success_at
        if not (base / tasks).is_file():
            raise TaskError(f"there is no {base / tasks}; write it with `agent-rl mcp FILE`", ("tasks",), missing=tasks)
        (where, head), *rows = read_rows(tasks, base / tasks) or [("", {})]
        if not isinstance(head.get("action"), dict) or not all({"seed", "text"} <= row.keys() for _, row in rows):
            raise TaskError(f"{where}: no tasks; remove the file, and run `agent-rl mcp FILE`", ("tasks",))
        self.tools = tuple(OpenEnvTool(server, each["name"], _schema(each)) for each in head["tools"])
        self.observes = not self.tools
        self._field = _field(head["action"])
        problems = [_problem(row, instruction) for _, row in rows]
        if held_out >= len(problems):
            raise TaskError(f"{tasks} has {len(problems)} tasks, and held_out is {held_out}; hold fewer", ("held_out",))
        if not problems[0].payload["prompt"]:
            raise TaskError("the environment shows nothing at the beginning; write an instruction", ("instruction",))
        at = len(problems) - held_out
        self._tasks = ListedTasks([problems[:at]], problems[at:], seed=seed)

    def problems(self) -> ListedTasks:
        """The seeds of the file."""
        return self._tasks

    def prompt(self, problem: Problem) -> ChatMessages:
        """The instruction, and what the environment shows after its reset."""
        return [{"role": "user", "content": problem.payload["prompt"]}]

    async def observe(
        self, problem: Problem, transcript: Transcript, state: bytes, context: Context
    ) -> Observation | None:
        """Take a step with the last turn. Raises RuntimeError where the server has no answer."""
        del problem, state
        if self._action(transcript.texts[-1]) is None:
            fault = "Error: an action of this environment is a JSON object. Write nothing else."
            return Observation([{"role": "user", "content": fault}])
        actions = [action for text in transcript.texts if (action := self._action(text)) is not None]
        results, output = await _played(self._server, context, actions=actions)
        if not results:
            raise RuntimeError(f"the environment's server took no step: {output.stderr}")
        return Observation([{"role": "user", "content": _shown(results[-1])}], done=results[-1]["done"])

    async def judge(self, problem: Problem, transcript: Transcript, context: Context) -> Judgement:
        """The rewards of the episode. Raises RuntimeError where the server has no answer, or gives another one."""
        steps = self._steps(transcript)
        results, output = await _played(self._server, context, actions=[action for action, _ in steps], last=True)
        if not results:
            raise RuntimeError(f"the environment's server gave no reward: {output.stderr}")
        same = results[0]["text"] == problem.payload["text"]
        for read, result in zip([read for _, read in steps], results[1:], strict=False):
            shown = _shown(result).strip()
            same = same and read in {None, shown, harmless(shown)}
        if not same or len(results) != len(steps) + 1:
            why = f"seed {problem.id} shows another episode than the model has read: all actions were played again, and"
            remedy = "use one executor, or remove the file of tasks and run `agent-rl mcp FILE`"
            raise RuntimeError(f"{why} the environment is not determined by its seed, or has changed; {remedy}")
        rewards = [float(result["reward"] or 0.0) for result in results[1:]]
        reward = sum(rewards) if self._sums else (rewards or [0.0])[-1]
        parts = {"steps": float(len(rewards)), "done": float(results[-1]["done"])}
        return Judgement(reward, reward >= self._success_at, parts, note="openenv")

    def _steps(self, transcript: Transcript) -> list[tuple[dict[str, Any], str | None]]:
        """The actions that the environment has answered, and what the model read; None if that was cut."""
        if self.tools:
            return [
                (_call(call.tool, call.arguments), None if call.cut else call.response.strip())
                for call in transcript.calls
                if call.outcome == "success"
            ]
        read = {reply.turn: reply.content.strip() for reply in transcript.replies}
        found = ((self._action(text), read.get(turn)) for turn, text in enumerate(transcript.texts, start=1))
        return [(action, reply) for action, reply in found if action is not None and reply is not None]

    def _action(self, text: str) -> dict[str, Any] | None:
        """The action of a turn; None for a text that is none."""
        if self._field:
            return {self._field: text}
        try:
            action = parse_json(text.encode())
        except JsonError:
            return None
        return action if isinstance(action, dict) else None


async def _played(
    server: str, context: Context, *, last: bool = False, **actions: Any
) -> tuple[list[dict[str, Any]], ToolOutput]:
    """What came of the actions, nothing if there is no answer."""
    given = {"rollout": context.rollout, "seed": int(context.problem.id), "last": last, **actions}
    output = await context.ask_server(server, "play", given)
    return sound_json(output.value.encode()) if output.outcome == "success" else [], output


def _call(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "call_tool", "tool_name": tool, "arguments": dict(arguments)}


def _shown(result: Mapping[str, Any]) -> str:
    return "\n".join(filter(None, (str(result["text"]), OVER if result["done"] else ""))) or "Nothing is shown."


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    parameters = {"properties": {}, **(tool["input_schema"] or {"type": "object"})}
    function = {"name": tool["name"], "description": tool["description"] or "", "parameters": parameters}
    return {"type": "function", "function": function}


def _field(action: Mapping[str, Any]) -> str:
    """The field of an action that a turn's text is; empty where the text is the whole action as JSON."""
    fields = [name for name in action.get("properties", {}) if name != "metadata"]
    needed = action.get("required", fields)
    texts = [name for name in needed if action["properties"][name].get("type") == "string"]
    return texts[0] if len(needed) == 1 and texts else ""


def _problem(row: Mapping[str, Any], instruction: str) -> Problem:
    shown = str(row["text"])
    payload = {"text": shown, "prompt": "\n\n".join(filter(None, (instruction, shown)))}
    return Problem(str(row["seed"]), f"seed {row['seed']}: {shown}", payload=payload)

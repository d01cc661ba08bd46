"""A taskset of verifiers as an MCP server without tools: it writes the tasks to a file, and scores rollouts of them.

``python verifiers_server.py TASKSET FILE [MOST] [CONFIG]``, in an interpreter that has verifiers 0.4 and the taskset.

- FILE gets a line of JSON for each of the first MOST tasks (1000), if there is no such file.
- CONFIG is the taskset's configuration, as JSON.
- The call ``score`` takes ``index`` and ``key`` of a task and the ``messages`` of a rollout. It returns ``reward``,
  ``rewards`` and ``metrics`` as JSON. No tool is listed: the environment makes the call, not the model.

Standard library and verifiers alone.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

stdio_server: Any = importlib.import_module("stdio_server")  # beside this script, which runs alone

MOST = 1000
RUNTIME = ("setup", "finalize", "stage_verifier")
"""Hooks of a task that work on a runtime."""
vf: Any = None


def loaded(taskset: str, most: int, config: dict[str, Any]) -> list[Any]:
    """The first tasks of a taskset. Ends the process for a taskset whose rollouts are not conversations alone."""
    loaders = importlib.import_module("verifiers.v1.utils.loaders")
    kind = loaders.taskset_config_type(taskset)
    tasks = list(islice(loaders.load_taskset(kind.model_validate({**config, "id": taskset})), most))
    for task in tasks:
        if fault := fault_of(task):
            sys.exit(f"task {task.data.idx} of {taskset} {fault}; this adapter runs tasks with a text as prompt, alone")
    return tasks


def fault_of(task: Any) -> str:
    """What of a task is more than a conversation and its rewards; empty for a task that can be run."""
    if task.NEEDS_CONTAINER or any(getattr(type(task), name) is not getattr(vf.Task, name) for name in RUNTIME):
        return "needs a runtime"
    if task.toolsets(task.config):
        return "has tools"
    for reward in task.hooks("reward"):
        given = inspect.signature(reward).parameters.get("runtime")
        if given is not None and given.default is given.empty:
            return f"has the reward {reward.__name__}, which needs a runtime"
    return "" if isinstance(task.data.prompt, str) else "has no prompt that is one text"


def rows(tasks: list[Any]) -> list[dict[str, Any]]:
    """The lines of the file of tasks."""
    return [
        {"index": task.data.idx, "key": task.key, "prompt": task.data.prompt, "system": task.data.system_prompt}
        for task in tasks
    ]


def trace_of(task: Any, messages: list[dict[str, str]]) -> Any:
    """A rollout as verifiers records it: one branch, in which the model wrote all of the assistant's messages."""
    kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}
    nodes = [
        vf.MessageNode(
            parent=number - 1 if number else None,
            message=kinds[each["role"]](content=each["content"]),
            sampled=each["role"] == "assistant",
        )
        for number, each in enumerate(messages)
    ]
    state = importlib.import_module("verifiers.v1.state").state_cls(type(task))()
    about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    agent = vf.AgentInfo(config=vf.AgentConfig())
    return vf.Trace(task=about, agent=agent, nodes=nodes, state=state, is_completed=True, ok=True)


async def scored(task: Any, messages: list[dict[str, str]]) -> dict[str, Any]:
    """The score of a rollout."""
    trace = trace_of(task, messages)
    await task.score(trace)
    rewards = {name: reward.value for name, reward in trace.rewards.items()}
    return {"reward": trace.reward, "rewards": rewards, "metrics": trace.metrics}


async def answered(tasks: list[Any], given: dict[str, Any]) -> dict[str, Any]:
    """The score of the rollout in a call. Raises LookupError for another task than that of the file."""
    task = tasks[given["index"]] if given["index"] < len(tasks) else None
    if task is None or task.key != given["key"]:
        why = f"task {given['index']} of the taskset is not that of the file"
        raise LookupError(f"{why}; remove the file, and run agent-rl mcp")
    return await scored(task, given["messages"])


if __name__ == "__main__":
    out = stdio_server.prepared()
    vf = stdio_server.required("verifiers.v1", "verifiers 0.4 and the taskset")
    named, path, *more = sys.argv[1:]
    found = loaded(named, int(more[0]) if more else MOST, json.loads(more[1]) if more[1:] else {})
    if not Path(path).exists():
        stdio_server.written(rows(found), Path(path))
    asyncio.run(stdio_server.serve(lambda _, given: answered(found, given), out))

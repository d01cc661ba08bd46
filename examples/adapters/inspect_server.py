"""A task of inspect-ai: its samples in a file, and the run of one sample as a harness. In an interpreter that has both.

``python inspect_server.py list TASK FILE [ARGUMENTS]``: an MCP server without tools. It writes FILE, a line of JSON for
each sample, if there is no such file.

``python inspect_server.py run TASK ID [ARGUMENTS]``: run the task's solver on a sample, with the model of the gateway,
and its scorers. The last line of output is ``scores``, a space and JSON: each score as a number, or an ``error``.

- TASK is ``package/task`` or ``file.py@task``. ARGUMENTS, as JSON, are the task's.
- ID is a sample's place in the dataset, and a digest, by which another dataset is noticed.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

try:
    inspect_ai: Any = importlib.import_module("inspect_ai")
    loader: Any = importlib.import_module("inspect_ai._eval.loader")
    scorer: Any = importlib.import_module("inspect_ai.scorer")
except ImportError as error:
    sys.exit(f"{error}; install inspect-ai for {sys.executable}")

STOPPED = ("BadRequestError", "ConflictError")
"""How the gateway's answers look once a rollout has reached a limit: no fault of the task."""


def loaded(name: str, arguments: dict[str, Any]) -> Any:
    """The task. Ends the process for one that does not exist, or that needs a sandbox in a container."""
    try:
        tasks = loader.load_tasks([name], arguments)
    except Exception as error:  # noqa: BLE001  whatever the task raises
        sys.exit(f"the task {name} cannot be loaded: {type(error).__name__}: {error}")
    if len(tasks) != 1:
        sys.exit(f"{name} names {len(tasks)} tasks; install its package, or write package/task or file.py@task")
    for sandbox in [tasks[0].sandbox, *(sample.sandbox for sample in tasks[0].dataset)]:
        kind = getattr(sandbox, "type", sandbox)
        if kind not in {None, "local"}:
            sys.exit(
                f"the task {name} needs the sandbox {kind!r}, and programs here have no containers; choose another"
            )
    return tasks[0]


def text_of(sample: Any) -> str:
    """What the sample asks."""
    return sample.input if isinstance(sample.input, str) else "\n\n".join(each.text for each in sample.input)


def name_of(place: int, sample: Any) -> str:
    """The sample's ID."""
    digest = hashlib.sha256(json.dumps([text_of(sample), sample.target, sample.choices]).encode())
    return f"{place}-{digest.hexdigest()[:8]}"


def numbers(name: str, value: Any) -> dict[str, float]:
    """The numbers of a score's value, by name: "C" is 1 and "I" 0; of several values each has a name of its own."""
    if isinstance(value, dict):
        return {at: number for key, each in value.items() for at, number in numbers(f"{name}/{key}", each).items()}
    if isinstance(value, list | tuple):
        return numbers(name, {str(place): each for place, each in enumerate(value)})
    return {name: float(scorer.value_to_float()(value))}


def scored(name: str, wanted: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The scores of a run of one sample, and its error."""
    task = loaded(name, arguments)
    place = int(wanted.partition("-")[0])
    if place >= len(task.dataset) or name_of(place, task.dataset[place]) != wanted:
        sys.exit(f"sample {wanted} of {name} is not that of the file; remove the file, and run agent-rl mcp")
    task.dataset = task.dataset[place : place + 1]
    with tempfile.TemporaryDirectory() as logs:
        (log,) = inspect_ai.eval(
            task,
            model=f"openai-api/openai/{os.environ['AGENT_RL_MODEL']}",
            model_roles={"grader": "none/none"},  # else the model would judge itself, and be trained on it
            epochs=1,
            fail_on_error=False,
            score_on_error=True,
            max_retries=2,
            display="none",
            log_dir=logs,
        )
        sample = log.samples[0] if log.samples else None  # read from the log now
    fault = (sample and sample.error) or log.error
    found = sample.scores or {} if sample else {}
    scores = {at: number for key, each in found.items() for at, number in numbers(key, each.value).items()}
    said = fault.message if fault else ""
    return {"scores": scores, "error": "" if said.startswith(STOPPED) else said}


def main(what: str, name: str, at: str, arguments: str = "{}") -> None:
    """List, or run."""
    if what == "run":
        said = scored(name, at, json.loads(arguments))
        sys.stdout.write(f"\nscores {json.dumps(said)}\n")
        return
    stdio_server: Any = importlib.import_module("stdio_server")  # beside this script, which runs alone
    out = stdio_server.prepared()
    dataset = loaded(name, json.loads(arguments)).dataset
    rows = [{"id": name_of(place, sample), "text": text_of(sample)} for place, sample in enumerate(dataset)]
    if not Path(at).exists():
        stdio_server.written(rows, Path(at))
    asyncio.run(stdio_server.serve(None, out))


if __name__ == "__main__":
    main(*sys.argv[1:])
elif __name__ == "loaded":  # a harness forks from here: packages of tasks take seconds to load
    importlib.import_module("inspect_ai.model._providers.openai_compatible")
    importlib.import_module("inspect_ai._util.entrypoints").ensure_entry_points()

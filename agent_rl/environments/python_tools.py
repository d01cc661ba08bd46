"""The tools that run the model's Python: alone, and as the cells of a notebook (paper, section Prompt and format)."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import PositiveFloat

from agent_rl.environments.base import SNAPSHOT_BYTES, Context, ToolOutput
from agent_rl.environments.tools import tool

PYTHON_TOOL = "python_code_with_standard_io"
NOTEBOOK_TOOL = "jupyter_code"


def _schema(name: str, description: str, **parameters: str) -> dict[str, object]:
    properties = {parameter: {"type": "string", "description": text} for parameter, text in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": ["code"]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


@tool(
    name=PYTHON_TOOL,
    schema=_schema(
        PYTHON_TOOL,
        "Run Python code and return what it prints, or the value of its last expression.",
        code="The Python code to run.",
        input="What the code reads from standard input.",
    ),
)
async def python(
    code: str,
    input: str = "",  # noqa: A002  the paper's name
    language: Literal["python"] = "python",
    timeout: PositiveFloat | None = None,
    *,
    context: Context,
) -> ToolOutput:
    """Each call by itself. ``timeout`` asks for less time than a call may take."""
    del language
    return await context.execute(code, input, seconds=timeout)


@tool(
    name=NOTEBOOK_TOOL,
    schema=_schema(
        NOTEBOOK_TOOL,
        "Run a cell of Python in a notebook that keeps its variables from call to call; return what it "
        "prints, or the value of its last expression.",
        code="The code of the cell.",
    ),
)
async def notebook(
    code: str, timeout: PositiveFloat | None = None, *, state: list[str], context: Context
) -> ToolOutput:
    """The cells of a rollout share their variables. The state is the code of the earlier cells."""
    size = len(json.dumps([*state, code], ensure_ascii=False).encode())
    if size > SNAPSHOT_BYTES:
        full = f"The notebook is full: its cells would take {size} bytes, and may take {SNAPSHOT_BYTES}."
        return ToolOutput("error", stderr=f"{full} The cell was not run.\n")
    output = await context.run_cell(code, tuple(state), seconds=timeout)
    if output.kept:
        state.append(code)
    return output

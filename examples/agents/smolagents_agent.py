"""A smolagents agent with one tool: `python smolagents_agent.py TASK`."""

import os
import sys
from pathlib import Path

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def write_file(name: str, content: str) -> str:
    """Write a text file of this folder.

    Args:
        name: Its name.
        content: Its text.

    """
    Path(Path(name).name).write_text(content)
    return f"{name} is written."


where = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
ToolCallingAgent([write_file], OpenAIModel(os.environ["AGENT_RL_MODEL"], **where)).run(sys.argv[1], max_steps=8)

"""An agent of openai-agents with one tool: `python openai_agent.py TASK`. Its client reads OPENAI_BASE_URL itself."""

import os
import sys
from pathlib import Path

from agents import Agent, Runner, function_tool, set_tracing_disabled


@function_tool
def write_file(name: str, content: str) -> str:
    """Write a text file of this folder."""
    Path(Path(name).name).write_text(content)
    return f"{name} is written."


set_tracing_disabled(True)  # it would ask OpenAI's own address
agent = Agent(name="Calculator", model=os.environ["AGENT_RL_MODEL"], tools=[write_file])
result = Runner.run_sync(agent, sys.argv[1], max_turns=8)
sys.stdout.write(f"{result.final_output}\n")

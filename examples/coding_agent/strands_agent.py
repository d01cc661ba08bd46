"""A Strands agent that reads files, as its authors' public interface has it: `python strands_agent.py TASK`.

It runs in the folder of the files. The client reads OPENAI_BASE_URL and OPENAI_API_KEY itself.
"""

import os
import sys
from pathlib import Path

import openai.resources.chat  # noqa: F401 - loaded before forks; else each of them loads it anew
from strands import Agent, tool
from strands.agent.conversation_manager import SummarizingConversationManager
from strands.models.openai import OpenAIModel


@tool(description="Read a file.")
def cat(file: str) -> str:
    """The text of a file of this folder."""
    path = Path(Path(file).name)
    return path.read_text().strip() if path.is_file() else "none"


def main() -> None:
    """Do the task. When the context is 70 % full, all but the last call and its result are summarised by the model."""
    memory = SummarizingConversationManager(
        summary_ratio=0.8,
        preserve_recent_messages=2,
        summarization_system_prompt="",
        proactive_compression={"compression_threshold": 0.7},
    )
    model = OpenAIModel(model_id=os.environ["AGENT_RL_MODEL"], context_window_limit=int(os.environ["CONTEXT"]))
    agent = Agent(model=model, tools=[cat], conversation_manager=memory, callback_handler=None)
    agent(sys.argv[1], limits={"turns": 8})


if __name__ == "__main__":
    main()

"""smolagents: a ToolCallingAgent; or a CodeAgent, which writes Python, with streams and stop strings."""

import os
import sys

import smolagents
from weather import MODEL, QUESTIONS, tell, weather

where = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
model = smolagents.OpenAIModel(MODEL, **where, temperature=0.2, max_tokens=2000)
tools = [smolagents.tool(weather)]
if sys.argv[1] == "tools":
    agent = smolagents.ToolCallingAgent(tools, model, verbosity_level=0)
else:
    agent = smolagents.CodeAgent(tools, model, verbosity_level=0, stream_outputs=True)
tell(*[agent.run(question, reset=False) for question in QUESTIONS])

"""smolagents: a ToolCallingAgent, whose second task continues the first."""

from __future__ import annotations

import os

import smolagents
from weather import MODEL, QUESTIONS, tell, weather

where = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
model = smolagents.OpenAIModel(MODEL, **where, temperature=0.2, max_tokens=2000)
agent = smolagents.ToolCallingAgent([smolagents.tool(weather)], model, verbosity_level=0)
tell(*[str(agent.run(question, reset=False)) for question in QUESTIONS])

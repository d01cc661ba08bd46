"""smolagents: a CodeAgent with streams. It writes Python, and stop strings end its turns."""

from __future__ import annotations

import os

import smolagents
from weather import MODEL, QUESTIONS, tell, weather

where = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
model = smolagents.OpenAIModel(MODEL, **where, temperature=0.2, max_tokens=2000)
agent = smolagents.CodeAgent([smolagents.tool(weather)], model, verbosity_level=0, stream_outputs=True)
tell(str(agent.run(QUESTIONS[0])))

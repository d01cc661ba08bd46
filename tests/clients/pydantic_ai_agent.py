"""pydantic-ai: an agent with a tool, over each of the three dialects."""

import asyncio
import sys

import pydantic_ai
from weather import MODEL, QUESTIONS, SYSTEM, tell, weather


async def main() -> None:
    agent = pydantic_ai.Agent(
        f"{sys.argv[1]}:{MODEL}",
        instructions=SYSTEM,
        tools=[weather],
        model_settings={"temperature": 0.2, "max_tokens": 2000, "seed": 7},
    )
    first = await agent.run(QUESTIONS[0])
    async with agent.run_stream(QUESTIONS[1], message_history=first.all_messages()) as stream:
        pieces = [each async for each in stream.stream_text(delta=True, debounce_by=None)]
    tell(first.output, "".join(pieces), pieces=pieces)


asyncio.run(main())

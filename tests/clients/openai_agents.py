"""openai-agents: an agent with a tool over Responses, its default, or over Chat Completions."""

import asyncio
import sys

import agents
from weather import MODEL, QUESTIONS, SYSTEM, tell, weather

agents.set_tracing_disabled(True)
agents.set_default_openai_api(sys.argv[1])


async def main() -> None:
    agent = agents.Agent(
        name="Forecaster",
        instructions=SYSTEM,
        model=MODEL,
        tools=[agents.function_tool(weather)],
        model_settings=agents.ModelSettings(temperature=0.2, top_p=0.9, parallel_tool_calls=True),
    )
    first = await agents.Runner.run(agent, QUESTIONS[0])
    second = agents.Runner.run_streamed(agent, [*first.to_input_list(), {"role": "user", "content": QUESTIONS[1]}])
    raw = [event.data async for event in second.stream_events() if event.type == "raw_response_event"]
    pieces = [event.delta for event in raw if event.type == "response.output_text.delta"]
    tell(first.final_output, second.final_output, pieces=pieces)


asyncio.run(main())

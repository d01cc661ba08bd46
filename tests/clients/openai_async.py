"""openai, asynchronous: Chat Completions."""

from __future__ import annotations

import asyncio
import json

import openai
from weather import FUNCTION, MODEL, QUESTIONS, SYSTEM, tell, weather


async def converse(client: openai.AsyncOpenAI) -> list[str]:
    messages = [{"role": "developer", "content": SYSTEM}]
    answers = []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": [{"type": "text", "text": question}]})
        while True:
            reply = await client.chat.completions.create(
                model=MODEL,
                messages=messages,
                tools=[{"type": "function", "function": FUNCTION | {"strict": True}}],
                temperature=1.5,
                max_tokens=2000,
                n=1,
            )
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                result = weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        answers.append(message.content)
    return answers


async def main() -> None:
    async with openai.AsyncOpenAI() as client:
        tell(*await converse(client))


asyncio.run(main())

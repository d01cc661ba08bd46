"""openai, asynchronous: Chat Completions."""

import asyncio

import openai
from weather import MODEL, QUESTIONS, SYSTEM, TOOLS, results, tell


async def main() -> None:
    messages = [{"role": "developer", "content": SYSTEM}]
    answers = []
    async with openai.AsyncOpenAI() as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": [{"type": "text", "text": question}]})
            while True:
                reply = await client.chat.completions.create(
                    model=MODEL, messages=messages, tools=TOOLS, temperature=1.5, max_tokens=2000, n=1
                )
                message = reply.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    break
                messages += results(message.tool_calls)
            answers.append(message.content)
    tell(*answers)


asyncio.run(main())

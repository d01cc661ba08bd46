"""litellm: Chat Completions, whole and as streams."""

from __future__ import annotations

import json

import litellm
from weather import FUNCTION, MODEL, QUESTIONS, SYSTEM, tell, weather

messages = [{"role": "system", "content": SYSTEM}]
answers, pieces = [], []
for question, streamed in zip(QUESTIONS, (False, True), strict=True):
    messages.append({"role": "user", "content": question})
    while True:
        reply = litellm.completion(
            model=f"openai/{MODEL}",
            messages=messages,
            tools=[{"type": "function", "function": FUNCTION}],
            temperature=0.2,
            max_tokens=2000,
            stream=streamed,
        )
        if streamed:
            chunks = list(reply)
            pieces += [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
            reply = litellm.stream_chunk_builder(chunks, messages=messages)
        message = reply.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "name": "weather", "content": result})
    answers.append(message.content)
tell(*answers, pieces=pieces)

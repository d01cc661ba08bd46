"""openai: Chat Completions as streams, by chunks and by the client's own accumulation."""

from __future__ import annotations

import json

import openai
from weather import FUNCTION, MODEL, QUESTIONS, SYSTEM, tell, weather

client = openai.OpenAI()
messages = [{"role": "system", "content": SYSTEM}]
answers, pieces, tokens = [], [], []
for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    while True:
        with client.chat.completions.stream(
            model=MODEL,
            messages=messages,
            tools=[{"type": "function", "function": FUNCTION}],
            temperature=0.2,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True},
        ) as stream:
            for event in stream:
                if event.type == "content.delta":
                    pieces.append(event.delta)
                if event.type == "chunk":
                    tokens += [token for choice in event.chunk.choices for token in choice.model_extra.get("token_ids", [])]
            reply = stream.get_final_completion()
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    answers.append(message.content)
tell(*answers, pieces=pieces, tokens=tokens, usage=reply.usage.completion_tokens)

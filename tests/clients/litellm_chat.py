"""litellm: Chat Completions, whole and as streams."""

import litellm
from weather import MODEL, QUESTIONS, SYSTEM, TOOLS, results, tell

messages = [{"role": "system", "content": SYSTEM}]
answers, pieces = [], []
for question, streamed in zip(QUESTIONS, (False, True), strict=True):
    messages.append({"role": "user", "content": question})
    while True:
        reply = litellm.completion(
            model=f"openai/{MODEL}", messages=messages, tools=TOOLS, temperature=0.2, max_tokens=2000, stream=streamed
        )
        if streamed:
            chunks = list(reply)
            pieces += [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
            reply = litellm.stream_chunk_builder(chunks, messages=messages)
        message = reply.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            break
        messages += [{**each, "name": "weather"} for each in results(message.tool_calls)]
    answers.append(message.content)
tell(*answers, pieces=pieces)

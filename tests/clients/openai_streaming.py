"""openai: Chat Completions as streams, by chunks and by the client's own accumulation."""

import openai
from weather import MODEL, QUESTIONS, SYSTEM, TOOLS, results, tell

client = openai.OpenAI()
messages = [{"role": "system", "content": SYSTEM}]
answers, pieces, tokens = [], [], []
for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    while True:
        with client.chat.completions.stream(
            model=MODEL,
            messages=messages,
            tools=TOOLS,
            temperature=0.2,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True},
        ) as stream:
            for event in stream:
                if event.type == "content.delta":
                    pieces.append(event.delta)
                if event.type == "chunk":
                    for choice in event.chunk.choices:
                        tokens += choice.model_extra.get("token_ids", [])
            reply = stream.get_final_completion()
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += results(message.tool_calls)
    answers.append(message.content)
tell(*answers, pieces=pieces, tokens=tokens, usage=reply.usage.completion_tokens)

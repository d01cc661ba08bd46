"""anthropic: Messages, whole and as streams."""

import anthropic
from weather import ABOUT, MODEL, QUESTIONS, SCHEMA, SYSTEM, tell, weather

client = anthropic.Anthropic()
asked = {
    "model": MODEL,
    "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "weather", "description": ABOUT, "input_schema": SCHEMA}],
}
messages = []
answers, pieces = [], []
for question, streamed in zip(QUESTIONS, (False, True), strict=True):
    messages.append({"role": "user", "content": question})
    counted = client.messages.count_tokens(messages=messages, **asked).input_tokens
    while True:
        thinking = {"type": "enabled", "budget_tokens": 1024}
        more = {"max_tokens": 2000, "thinking": thinking, "extra_body": {"temperature": 0.2, "top_k": 5}}
        if streamed:
            with client.messages.stream(messages=messages, **asked, **more) as stream:
                pieces += stream.text_stream
                reply = stream.get_final_message()
        else:
            reply = client.messages.create(messages=messages, **asked, **more)
        messages.append({"role": "assistant", "content": reply.content})
        calls = [each for each in reply.content if each.type == "tool_use"]
        if not calls:
            break
        results = [{"type": "tool_result", "tool_use_id": each.id, "content": weather(**each.input)} for each in calls]
        messages.append({"role": "user", "content": results})
    answers += [each.text for each in reply.content if each.type == "text"]
tell(*answers, pieces=pieces, stop=reply.stop_reason, counted=counted)

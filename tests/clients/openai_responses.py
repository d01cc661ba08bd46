"""openai: Responses, whole and as streams."""

import json

import openai
from weather import FUNCTION, MODEL, QUESTIONS, SYSTEM, tell, weather

client = openai.OpenAI()
items = []
answers, pieces = [], []
asked = {
    "model": MODEL,
    "instructions": SYSTEM,
    "tools": [{"type": "function", "strict": False, **FUNCTION}],
    "temperature": 0.2,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "low", "summary": "auto"},
    "truncation": "auto",
}
for question, streamed in zip(QUESTIONS, (False, True), strict=True):
    items.append({"role": "user", "content": question})
    while True:
        if streamed:
            with client.responses.stream(input=items, **asked) as stream:
                pieces += [event.delta for event in stream if event.type == "response.output_text.delta"]
                response = stream.get_final_response()
        else:
            response = client.responses.create(input=items, **asked)
        items += response.output
        calls = [each for each in response.output if each.type == "function_call"]
        if not calls:
            break
        for call in calls:
            result = weather(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
    answers.append(response.output_text)
tell(*answers, pieces=pieces)

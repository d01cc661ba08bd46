"""openai: Chat Completions."""

import openai
from weather import MODEL, QUESTIONS, SYSTEM, TOOLS, results, tell

# What a model under training doesn't heed must not fail.
PARAMETERS = {"temperature": 0.2, "top_p": 0.9, "seed": 7, "frequency_penalty": 0.1, "presence_penalty": 0.1}
PARAMETERS |= {"logit_bias": {"50256": -100}, "reasoning_effort": "low", "parallel_tool_calls": True}
PARAMETERS |= {"tool_choice": "auto", "max_completion_tokens": 2000, "user": "someone", "metadata": {"purpose": "test"}}
PARAMETERS |= {"store": False}

client = openai.OpenAI()
messages = [{"role": "system", "content": SYSTEM}]
answers = []
for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    while True:
        reply = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, **PARAMETERS)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += results(message.tool_calls)
    answers.append(message.content)
tell(*answers, finish=reply.choices[0].finish_reason, listed=[each.id for each in client.models.list()])

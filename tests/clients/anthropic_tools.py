"""anthropic: its tool runner, which calls functions by itself. It asks for a thread, and can do without."""

import anthropic
from weather import MODEL, QUESTIONS, SYSTEM, tell, weather

client = anthropic.Anthropic()
tools = [anthropic.beta_tool(weather)]
messages, answers = [], []
for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    runner = client.beta.messages.tool_runner(
        model=MODEL, system=SYSTEM, tools=tools, messages=[*messages], max_tokens=2000
    )
    for reply in runner:
        messages.append({"role": "assistant", "content": reply.content})
        if results := runner.generate_tool_call_response():
            messages.append(results)
    answers += [each.text for each in reply.content if each.type == "text"]
tell(*answers)

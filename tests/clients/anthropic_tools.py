"""anthropic: its tool runner, which calls functions and goes on by itself. It asks for a thread, and can do without."""

from __future__ import annotations

import anthropic
import weather as w

weather = anthropic.beta_tool(w.weather)
client = anthropic.Anthropic()
messages = []
answers = []
for question, streamed in zip(w.QUESTIONS, (False, True), strict=True):
    messages.append({"role": "user", "content": question})
    runner = client.beta.messages.tool_runner(
        model=w.MODEL, system=w.SYSTEM, tools=[weather], messages=messages, max_tokens=2000, stream=streamed
    )
    replies = [each.get_final_message() if streamed else each for each in runner]
    messages = [*runner.params["messages"]]
    answers += [each.text for each in replies[-1].content if each.type == "text"]
w.tell(*answers)

"""What all clients here talk about: two questions, a tool, and what a client tells the test that started it."""

import json
import os
import sys

MODEL = os.environ["AGENT_RL_MODEL"]
SYSTEM = "You know the weather by the tool only."
QUESTIONS = ("How will the weather be in Paris?", "And in Oslo and Bern?")
ABOUT = "The weather of a city in the next days."
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
FUNCTION = {"name": "weather", "description": ABOUT, "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALLS: list[dict[str, object]] = []
"""The arguments of each call so far."""


def weather(city: str, days: int) -> str:
    """The weather of a city in the next days.

    Args:
        city: Its name.
        days: How many days.
    """
    CALLS.append({"city": city, "days": days})
    return f"{city}: {15 + days} degrees"


def results(calls):
    """The messages that answer calls, in Chat Completions."""
    given = [(call.id, weather(**json.loads(call.function.arguments))) for call in calls]
    return [{"role": "tool", "tool_call_id": own, "content": content} for own, content in given]


def tell(*answers: str, **more: object) -> None:
    """Tell what was seen, on a line of its own."""
    sys.stdout.write("\n" + json.dumps({"calls": CALLS, "answers": answers, **more}) + "\n")

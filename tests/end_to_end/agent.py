"""An agent as a program: it asks the gateway, changes what it said, and asks another model for a title."""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any


def ask(messages: list[dict[str, Any]], **more: Any) -> str:
    """The model's turn, or nothing once the rollout has ended."""
    body = {"model": os.environ["AGENT_RL_MODEL"], "messages": messages, "max_tokens": 20, **more}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as reply:
            return str(json.load(reply)["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as error:
        if error.code not in {400, 409}:
            raise
        return ""


def main() -> None:
    """One rollout."""
    task = {"role": "user", "content": sys.argv[1]}
    said = {"role": "assistant", "content": ask([task])}
    ask([task], model="small", max_tokens=4)
    ask([task, said, {"role": "user", "content": "Sure?"}])
    ask([task, {**said, "content": "Hm."}, {"role": "user", "content": "Sure?"}])
    ask([{"role": "user", "content": "Help."}])


if __name__ == "__main__":
    main()

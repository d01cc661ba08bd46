"""An agent as a program: it asks the gateway, changes what it said, and asks another model for a title.

With a second argument it asks several times, slowly, and repeats what a lost gateway did not answer.
"""

import ctypes
import json
import os
import sys
import time
import urllib.error
import urllib.request
from typing import Any


def ask(messages: list[dict[str, Any]], retries: int = 0, **more: Any) -> str:
    """The model's turn, or nothing once the rollout has ended."""
    body = {"model": os.environ["AGENT_RL_MODEL"], "messages": messages, "max_tokens": 20, **more}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "x-stainless-retry-count": str(retries)}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as reply:
            return str(json.load(reply)["choices"][0]["message"]["content"])
    except urllib.error.HTTPError as error:
        if error.code not in {400, 409}:
            raise
        return ""


def ask_until_answered(messages: list[dict[str, Any]], **more: Any) -> str:
    """The model's turn, from whichever gateway and generator answer."""
    for attempt in range(100):
        try:
            return ask(messages, retries=attempt, **more)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.2)
    raise SystemExit("nobody answers")


def main() -> None:
    """One rollout."""
    task = {"role": "user", "content": sys.argv[1]}
    if sys.argv[2:]:
        messages = [task]
        for turns in range(int(sys.argv[2])):
            messages += [{"role": "assistant", "content": ask_until_answered(messages, max_tokens=8)}]
            messages += [{"role": "user", "content": "Sure?"}]
            time.sleep(0.3)
            ctypes.CDLL(None).prctl(15, b"had-turns-%d" % (turns + 1))  # the name of this process, for tests
        return
    said = {"role": "assistant", "content": ask([task])}
    ask([task], model="small", max_tokens=4)
    ask([task, said, {"role": "user", "content": "Sure?"}])
    ask([task, {**said, "content": "Hm."}, {"role": "user", "content": "Sure?"}])
    ask([{"role": "user", "content": "Help."}])


if __name__ == "__main__":
    main()

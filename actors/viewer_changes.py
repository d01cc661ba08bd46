"""Changes of a run that its page asks for: who may ask, and what is asked. Pure.

::

    POST /change, the key, JSON --Control.refusal--(another page, no key: refused)
                                `--change_asked--> (run, SwapWanted | ScaleWanted | DrainWanted | StopWanted)

The viewer asks the run as `agent-rl swap` does, with the run's own key or as the run's user. The key of a request is
another one: the viewer makes it at its start. The run's key never reaches a browser.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from actors.http import Request
from agent_rl.messages import Changed, DrainWanted, ScaleWanted, StopWanted, SwapWanted

Command: TypeAlias = SwapWanted | ScaleWanted | DrainWanted | StopWanted
PATH = "/change"
BODY_BYTES = 64 * 1024
MOST = 1 << 31
"""Numbers of a change are smaller."""
SHAPES = """\
{"run": 0, "change": "swap", "role": ROLE, "class": "module:Class", "settings": ["key=value"], "fresh": false},
{"run": 0, "change": "scale", "role": ROLE, "number": N}, {"run": 0, "change": "drain", "host": HOST}
or {"run": 0, "change": "stop"}"""


@dataclass(frozen=True, slots=True)
class Control:
    """``key``: what a request has to carry. ``change``: asks a run, as `actors.runtime.control.ask_run`."""

    key: str
    change: Callable[[Path, Command], Awaitable[Changed]]

    def refusal(self, request: Request) -> tuple[int, str]:
        """Status and reason; an empty reason where the request may change a run."""
        if request.method != "POST":
            return 405, "a change is sent by POST"
        # Browsers name the page that sends a request, and let no page choose the name.
        if request.headers.get("origin", "").lower() != f"http://{request.headers.get('host', '').lower()}":
            return 403, "only the page itself changes a run; elsewhere use agent-rl swap, scale, drain and stop"
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self.key.encode())
        if scheme.lower() != "bearer" or not right:
            return 401, "this is not the key that agent-rl view --control printed"
        return 200, ""


def change_asked(body: bytes) -> tuple[int, Command]:
    """The number of the run, and the change. Raises ValueError for a body that is none."""
    try:
        asked = json.loads(body)
        json.dumps(asked, ensure_ascii=False).encode()  # half a character cannot be sent on
    except (ValueError, RecursionError):
        asked = None
    wanted: Command
    match asked:
        case {"change": "swap", "role": str(role), "class": str(path), "settings": [*settings], "fresh": bool(new)} if (
            all(isinstance(each, str) for each in settings)
        ):
            wanted = SwapWanted(role, path, tuple(settings), fresh=new)
        case {"change": "scale", "role": str(role), "number": number} if type(number) is int and 0 <= number < MOST:
            wanted = ScaleWanted(role, number)
        case {"change": "drain", "host": str(host)}:
            wanted = DrainWanted(host)
        case {"change": "stop"}:
            wanted = StopWanted()
        case _:
            raise ValueError(f"a change is {SHAPES}")
    match asked:
        case {"run": run} if type(run) is int and 0 <= run < MOST:
            return run, wanted
    raise ValueError("name the run by its place in the command, from 0")

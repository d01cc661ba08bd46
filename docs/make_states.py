"""Make docs/states.md from the table of states: ``python docs/make_states.py``; a test notices when it is old."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from actors.runtime.reconcile import TABLE

OUTPUT = Path(__file__).with_name("states.md")
HEAD = """\
# The states of an actor's process

What becomes of the process of an actor (`actors/runtime/reconcile.py`). Made from its table by
`python docs/make_states.py`; a test goes through all orders of a few events. An event that a row does not name leaves
the process in its state.

"""


def page() -> str:
    """The whole page."""
    events = list(dict.fromkeys(chain.from_iterable(TABLE.values())))
    lines = ["| state | " + " | ".join(events) + " |", "|---" * (len(events) + 1) + "|"]
    for state, row in TABLE.items():
        lines.append(f"| **{state}** | " + " | ".join(", ".join(row.get(event, ())) for event in events) + " |")
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(page())

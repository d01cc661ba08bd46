"""The process of one tracker: ``python -m actors.runtime.tracker``, started by the supervisor (`tracking.Tracking`).

The first line on stdin names the tracker and the run. Each further line is a row of ``metrics.jsonl``. The process
answers each line on stdout: with ``{}`` once the row is recorded, or with ``{"fault": "..."}``, and then ends. At the
end of stdin the process closes the tracker.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from agent_rl.config.plugins import described, resolve
from agent_rl.config.user_modules import look_beside
from agent_rl.observe.trackers.base import Tracker, tracked


def main() -> None:
    """Entry point."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output printed by a tracker goes to stderr, not into the answers

    def answer(result: dict[str, str]) -> None:
        answers.write(json.dumps(result) + "\n")
        answers.flush()

    try:
        asked = json.loads(sys.stdin.readline())
        tracker = _made(asked)
        answer({})
        for line in sys.stdin:
            figures = tracked(json.loads(line), asked["stages"])
            if figures is not None:
                tracker.record(*figures)
            answer({})
        tracker.close()
    except Exception as error:
        answer({"fault": described(error)})
        raise
    answer({})


def _made(asked: dict[str, Any]) -> Tracker:
    look_beside(Path(asked["topology"]))
    cls = resolve("tracker", asked["tracker"])
    made: Tracker = cls(directory=Path(asked["directory"]), run=asked["run"], identity=asked["identity"])
    return made


if __name__ == "__main__":
    main()

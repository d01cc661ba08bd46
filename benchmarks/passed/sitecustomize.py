"""Read by every Python process with this folder on PYTHONPATH: notes the product files that one group passes.

A process counts from the first message about a group that it handles (``FIRST``) until it handles the last (``LAST``)
or, in the learner, until the new policy is published. A file counts if one of its functions is called in between.
"""

import atexit
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

FIRST = {"GroupOpened", "RolloutRequest", "ToolCall", "Trajectory", "TrainingGroup", "EngineLoad"}
LAST = {"StepTrained", "StageEntered"}
NO_PART = ("actors/runtime/", "actors/weights/", "agent_rl/observe/")
"""Rooms that serve processes, weights and figures, whatever a trajectory does."""


class Passed:
    """The files of the product with a call since the first message, relative to ``root``."""

    def __init__(self, root: Path) -> None:
        self.root, self.files, self.counting = f"{root}/", set[str](), False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Called by the interpreter before each function."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self.root):
            return
        name = code.co_filename.removeprefix(self.root)
        if name.startswith("actors/") and code.co_name in {"handle", "publish"}:
            message = type(frame.f_locals.get("message")).__name__
            self.counting = (self.counting or message in FIRST) and message not in LAST and code.co_name != "publish"
        if self.counting and name.startswith(("agent_rl/", "actors/", "transport/")) and not name.startswith(NO_PART):
            self.files.add(name)

    def write(self, folder: Path) -> None:
        """Write what was seen to a file of this process."""
        sys.setprofile(None)
        (folder / str(os.getpid())).write_text("\n".join(sorted(self.files)), encoding="utf-8")


if "FILES_PASSED" in os.environ:
    passed = Passed(Path(__file__).parents[2])
    atexit.register(passed.write, Path(os.environ["FILES_PASSED"]))
    threading.setprofile(passed)
    sys.setprofile(passed)

"""Run a module in a process that cannot outlive its parent process.

``python -P lifeline.py PARENT MODULE ARGUMENTS...`` asks the kernel to kill the process when the parent's thread ends.
Then it becomes ``python -m MODULE ARGUMENTS...``, but searches the working directory last for modules. This file is a
script and not a module, so that no folder of the working directory can take its place. It sets the signal after exec:
Python code between fork and exec would run in a forked child of a process with threads (ZeroMQ's).
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends. Exit at once when the parent is already gone.

    Linux only; on other systems the lifeline pipe alone reports the end. Raises OSError when the kernel refuses.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # the parent ended before prctl took effect
        raise SystemExit("the supervisor is gone")


def main() -> None:
    """Entry point of the script."""
    parent, module, *arguments = sys.argv[1:]
    die_with(int(parent))
    sys.path.append(str(Path(__file__).parents[2]))
    from agent_rl.config.user_modules import look_in_working_directory

    look_in_working_directory()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

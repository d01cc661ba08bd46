"""Run a module in a process that cannot outlive the one that started it.

``python -P lifeline.py PARENT MODULE ARGUMENTS...`` asks the kernel to kill the process when the thread that started it
ends, then becomes ``python -m MODULE ARGUMENTS...``, except that modules of the working directory are looked for last. It is
a script rather than a module: so no folder of the working directory can take its place. Doing it here rather than between
fork and exec keeps Python code out of a forked child of a process that has threads (ZeroMQ's).
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
    """Have the kernel kill this process when its parent ends; exit at once when the parent is gone already.

    Linux only: elsewhere the lifeline pipe alone tells. Raises OSError when the kernel refuses.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before it could be watched
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

"""Run a module in a process that cannot outlive the one that started it.

``python -m agent_rl.lifeline PARENT MODULE ARGUMENTS...`` asks the kernel to kill the process when the thread that
started it ends, then becomes ``python -m MODULE ARGUMENTS...``. Doing it here rather than between fork and exec keeps
Python code out of a forked child of a process that has threads (ZeroMQ's).
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

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
    """Entry point of ``python -m agent_rl.lifeline``."""
    parent, module, *arguments = sys.argv[1:]
    die_with(int(parent))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

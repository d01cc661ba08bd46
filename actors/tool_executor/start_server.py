"""Become an MCP server that cannot outlive its executor: ``python start_server.py PARENT PROGRAM ARGUMENTS...``.

The kernel kills the process when the parent's thread ends. Standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h

if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != int(parent):  # the parent ended before prctl took effect
        raise SystemExit("the executor is gone")
    try:
        os.execvp(command[0], command)  # noqa: S606  a program that the user names
    except OSError as error:
        raise SystemExit(f"{command[0]!r} cannot be started: {error.strerror}") from None

"""Read by every Python process with this folder on PYTHONPATH: the wall clock of the process jumps on request.

`time.time` and `time.time_ns` have the seconds added that the file named by CHAOS_CLOCK holds (a double). The file is
mapped into memory, so that a jump is seen at once by all processes. Only Python code that asks the `time` module sees
the jump: the host's clock, the kernel's timers and `datetime` do not move.
"""

import mmap
import os
import struct
import time

_DOUBLE = struct.Struct("d")


def _jump(path: str) -> None:
    with open(path, "r+b") as file:  # noqa: PTH123 - this runs at the start of every interpreter: pathlib takes 5 ms
        offset = mmap.mmap(file.fileno(), _DOUBLE.size, access=mmap.ACCESS_READ)
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + _DOUBLE.unpack_from(offset)[0]
    time.time_ns = lambda: nanoseconds() + int(_DOUBLE.unpack_from(offset)[0] * 1e9)


if "CHAOS_CLOCK" in os.environ:
    _jump(os.environ["CHAOS_CLOCK"])

"""The heap of a process with a model: how much memory it keeps after several threads have computed in turn."""

import subprocess
import sys

import pytest

THREADS = """
import threading
from pathlib import Path
from agent_rl.learning.heap import give_heap_back, share_one_heap

def resident():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) >> 10

def compute():
    blocks = [b"x" * ((1 + number % 7) << 20) for number in range(20)]
    del blocks
    print(resident())
    waiting.wait()

{prepare}
waiting = threading.Barrier(4)
threads = [threading.Thread(target=compute) for _ in range(3)]
for thread in threads:
    thread.start()
    while waiting.n_waiting < threads.index(thread) + 1:
        pass
waiting.wait()
for thread in threads:
    thread.join()
give_heap_back()
print(resident())
"""


def after_each_thread(prepare: str) -> list[int]:
    """MiB that the process holds after each of three threads has freed 75 MiB, and when it has given memory back."""
    command = [sys.executable, "-c", THREADS.replace("{prepare}", prepare)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and glibc's malloc")
def test_threads_in_turn_keep_the_memory_of_one():
    first, _, third, back = after_each_thread("share_one_heap()")
    assert 75 <= first <= third <= first + 8
    assert back <= third - 60
    first, _, third, _ = after_each_thread("")  # the blocks are below glibc's largest own mappings once one was freed
    assert third >= first + 60

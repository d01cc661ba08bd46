"""Attacks that use up what calls share: processes, memory, disk, output, time. Each runs beside a neighbour's call."""

from __future__ import annotations

import pytest

from actors.sandbox.owner.client import ExecutionLimits
from tests.actors.sandbox.conftest import Attacked
from tests.actors.sandbox.running import living, named, wait_until


def test_fork_bomb(attacked: Attacked) -> None:
    code = named("fork-bomb") + "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    result = attacked.by(code, limits=ExecutionLimits(wall_seconds=0.6, processes=8), beside=0.8)
    assert result.outcome == "timeout"
    assert wait_until(lambda: living("fork-bomb") == 0)


def test_fork_bomb_whose_first_process_ends_at_once(attacked: Attacked) -> None:
    code = named("fork-bomb-2") + "import os\nfor _ in range(4):\n    if os.fork() == 0:\n        while True: pass"
    assert attacked.by(code).outcome == "success"
    assert wait_until(lambda: living("fork-bomb-2") == 0)


def test_thread_bomb(attacked: Attacked) -> None:
    code = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=[60], daemon=True).start()"
    result = attacked.by(code)
    assert (result.outcome, "can't start new thread" in result.stderr) == ("error", True)


def test_memory_bomb(attacked: Attacked) -> None:
    assert attacked.by("x = []\nwhile True: x.append(bytearray(10**6))").outcome == "memory_limit"


def test_memory_bomb_by_mapping(attacked: Attacked) -> None:
    result = attacked.by("import mmap\nx = [mmap.mmap(-1, 10**8) for _ in range(100)]")
    assert (result.outcome, "Cannot allocate memory" in result.stderr) == ("error", True)


def test_memory_bomb_in_several_processes(attacked: Attacked) -> None:
    """Each of four processes has the limit for itself, and says how it met it."""
    code = (
        "import os\nchildren = []\nfor _ in range(3):\n    pid = os.fork()\n    if not pid: break\n    children.append(pid)\n"
        "else: pid = 1\nx = []\ntry:\n    while len(x) < 200: x.append(bytearray(10**6))\nexcept MemoryError: pass\n"
        "print(len(x) < 70, flush=True)\nif not pid: os._exit(0)\nfor child in children: os.waitpid(child, 0)"
    )
    result = attacked.by(code, limits=ExecutionLimits(memory_bytes=64 << 20, processes=8))
    assert (result.outcome, result.stdout) == ("success", 4 * "True\n")


def test_memory_that_no_address_space_counts(attacked: Attacked) -> None:
    result = attacked.by("import os\nos.memfd_create('x')")
    assert "Operation not permitted" in result.stderr


def test_a_huge_file(attacked: Attacked) -> None:
    result = attacked.by("open('x', 'wb').write(bytes(17 << 20))")
    assert "File too large" in result.stderr


def test_a_huge_sparse_file(attacked: Attacked) -> None:
    assert "File too large" in attacked.by("open('x', 'wb').truncate(1 << 40)").stderr


def test_many_large_files(attacked: Attacked) -> None:
    code = "for i in range(100):\n    open(f'x{i}', 'wb').write(bytes(15 << 20))"
    limits = ExecutionLimits(memory_bytes=256 << 20)
    assert "No space left on device" in attacked.by(code, limits=limits).stderr


def test_as_many_files_as_there_can_be(attacked: Attacked) -> None:
    result = attacked.by("for i in range(10_000):\n    open(f'x{i}', 'w').close()")
    assert "No space left on device" in result.stderr


def test_as_many_directories_as_there_can_be(attacked: Attacked) -> None:
    result = attacked.by("import os\nfor i in range(10_000):\n    os.mkdir('d')\n    os.chdir('d')")
    assert result.outcome == "error"


@pytest.mark.parametrize("stream", [1, 2])
def test_endless_output(attacked: Attacked, stream: int) -> None:
    result = attacked.by(f"import os\nwhile True: os.write({stream}, b'x' * 1000)", beside=0.3)
    assert result.outcome == "output_limit"
    assert len(result.stdout) + len(result.stderr) < 11_000


def test_a_line_of_a_gigabyte(attacked: Attacked) -> None:
    code = "import sys\nfor _ in range(1000): sys.stdout.write('x' * 10**6)"
    result = attacked.by(code, beside=0.3)
    assert result.outcome == "output_limit"
    assert attacked.by("print('x' * 10**9)").outcome == "memory_limit"


def test_a_value_of_a_gigabyte(attacked: Attacked) -> None:
    assert attacked.by("class A:\n    def __repr__(self): return 'x' * 10**9\nA()").outcome == "memory_limit"
    result = attacked.by("'x' * 10**7")
    assert (result.outcome, len(result.value) < 11_000) == ("success", True)


def test_an_output_that_is_made_to_look_huge(attacked: Attacked) -> None:
    result = attacked.by("import os\nos.ftruncate(1, 16 << 20)\nos.ftruncate(3, 15 << 20)")
    assert result.outcome == "output_limit"
    assert len(result.stdout) < 11_000


def test_as_many_descriptors_as_there_can_be(attacked: Attacked) -> None:
    assert "Too many open files" in attacked.by("import os\nwhile True: os.dup(0)").stderr


def test_as_many_pipes_full_of_data_as_there_can_be(attacked: Attacked) -> None:
    code = "import os\nwhile True:\n    r, w = os.pipe()\n    os.write(w, bytes(60_000))"
    assert "Too many open files" in attacked.by(code).stderr


def test_ignoring_every_signal(attacked: Attacked) -> None:
    code = (
        "import signal\nfor number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:\n"
        "    try: signal.signal(number, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nwhile True: pass"
    )
    assert attacked.by(code, limits=ExecutionLimits(wall_seconds=0.4), beside=0.5).outcome == "timeout"


def test_ignoring_the_end_of_cpu_time(attacked: Attacked) -> None:
    code = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    result = attacked.by(code, limits=ExecutionLimits(wall_seconds=45, cpu_seconds=1))
    assert result.outcome == "timeout"
    assert result.run_seconds < 44


def test_stopping_itself(attacked: Attacked) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"
    assert attacked.by(code, limits=ExecutionLimits(wall_seconds=0.3)).outcome == "timeout"


def test_deep_recursion(attacked: Attacked) -> None:
    assert "RecursionError" in attacked.by("def f(): f()\nf()").stderr


def test_deep_recursion_beyond_the_stack(attacked: Attacked) -> None:
    code = "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self): return repr(self)\nrepr(A())"
    result = attacked.by(code)
    assert result.outcome in ("killed", "memory_limit")


def test_an_expression_that_the_parser_dies_of(attacked: Attacked) -> None:
    assert attacked.by("(" * 100_000 + ")" * 100_000).outcome in ("error", "memory_limit", "killed")


def test_a_regular_expression_without_end(attacked: Attacked) -> None:
    code = "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')"
    assert attacked.by(code, limits=ExecutionLimits(wall_seconds=0.3)).outcome == "timeout"

"""Attacks on what calls share: processors, memory, locks and bookkeeping of the kernel, places for calls.

Each goes through another mechanism, and goes on until its deadline or a limit ends it. Whether it has taken more than
its share shows on its neighbours, not in what it prints: ``agent-rl bench hostile`` runs several of one kind at once
and measures honest calls beside them.
"""

from __future__ import annotations

from benchmarks.hostile import Attack, Group, require_unique_names

PRELUDE = """
import os, time
def spread(work, count=30):
    for _ in range(count):
        try:
            pid = os.fork()
        except OSError:
            break
        if pid == 0:
            try:
                work()
            finally:
                os._exit(0)
    work()
"""
"""``spread`` has as many processes do the same as a call may have."""
ANYHOW = ("success", "error", "timeout", "killed", "memory_limit", "output_limit")
"""The outcomes of calls that a limit may end at any point."""


def _attack(name: str, group: Group, taken: str, code: str) -> Attack:
    proof = f"Neighbours time out, or wait more than 10 times as long: the calls have {taken}."
    return Attack(name, group, PRELUDE + code, proof, ends=ANYHOW)


PROCESSOR = (
    _attack("spin", "processor", "the processors", "while True: pass"),
    _attack(
        "spin-32",
        "processor",
        "a share of the processors for every process",
        "def work():\n    while True: pass\nspread(work)",
    ),
    _attack(
        "sessions",
        "processor",
        "a scheduling group (autogroup) for every session",
        """
def work():
    try:
        os.setsid()
    except OSError:
        pass
    while True: pass
spread(work)
""",
    ),
    _attack(
        "threads",
        "processor",
        "a share of the processors for every thread",
        """
import hashlib, threading
block = bytes(1 << 20)
def work():
    while True: hashlib.sha256(block)
for _ in range(30): threading.Thread(target=work, daemon=True).start()
work()
""",
    ),
    _attack(
        "system-calls",
        "processor",
        "the processors within the kernel",
        """
def work():
    while True: os.stat("/usr/lib"); os.getppid()
spread(work)
""",
    ),
    _attack(
        "yields",
        "processor",
        "the scheduler's run queues",
        """
def work():
    while True: os.sched_yield()
spread(work)
""",
    ),
    _attack(
        "ping-pong",
        "processor",
        "the scheduler, by wake-ups",
        """
def work():
    a, b = os.pipe(), os.pipe()
    if os.fork() == 0:
        a, b = b, a
    else:
        os.write(a[1], b"x")
    while True: os.write(a[1], os.read(b[0], 1))
spread(work, 14)
""",
    ),
    _attack(
        "bursts",
        "processor",
        "the processors whenever they wake, since they sleep in between",
        """
def work():
    while True:
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until: pass
        time.sleep(0.002)
spread(work)
""",
    ),
    _attack(
        "compiling",
        "processor",
        "the processors in one long call of the interpreter",
        "while True: compile('x = [' + '(1, 2.5, \"a\"), ' * 100000 + ']', 'x', 'exec')",
    ),
)
PROCESSES = (
    _attack(
        "forks",
        "processes",
        "the kernel's locks around forks",
        """
def work():
    while True:
        try:
            pid = os.fork()
        except OSError:
            continue
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
spread(work, 14)
""",
    ),
    _attack(
        "fork-bomb",
        "processes",
        "every process number and the reaping of them",
        """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    try:
        os.fork()
    except OSError:
        if os.getpid() % 2: os._exit(0)
""",
    ),
    _attack(
        "execs",
        "processes",
        "the processors and page tables by programs that start",
        """
def work():
    while True:
        try:
            pid = os.posix_spawn("/bin/true", ["true"], {})
            os.waitpid(pid, 0)
        except OSError:
            pass
spread(work, 14)
""",
    ),
    _attack(
        "thread-storm",
        "processes",
        "the kernel's books of threads",
        """
import _thread
def work():
    while True:
        try:
            _thread.start_new_thread(time.sleep, (0,))
        except RuntimeError:
            time.sleep(0)
spread(work, 7)
""",
    ),
    _attack(
        "crashes",
        "processes",
        "the kernel's handling, and log, of crashes",
        """
import ctypes
def work():
    while True:
        pid = os.fork()
        if pid == 0: ctypes.string_at(1)
        os.waitpid(pid, 0)
spread(work, 14)
""",
    ),
    _attack(
        "orphans",
        "processes",
        "the maker of slots: each call leaves processes, and ends at once",
        """
for _ in range(20):
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        break
""",
    ),
    _attack("sleepers", "processes", "places for calls", "spread(lambda: time.sleep(600))"),
    _attack("trivial-calls", "processes", "the server and the forker, by calls that end at once", "pass"),
)
MEMORY = (
    _attack(
        "memory",
        "memory",
        "the memory of all calls together",
        """
def work():
    held = []
    while True:
        try:
            held.append(bytearray(b"x") * (1 << 22))
        except MemoryError:
            for block in held: block[::4096] = block[::4096]
spread(work)
""",
    ),
    _attack(
        "hidden-memory",
        "memory",
        "the memory of all calls together, on pages that count as no process' own",
        """
import mmap
def work():
    held = []
    while True:
        try:
            held.append(mmap.mmap(-1, 1 << 24, mmap.MAP_SHARED))
        except (MemoryError, OSError):
            time.sleep(600)
        held[-1][::4096] = b"x" * (1 << 12)
        held[-1].madvise(mmap.MADV_DONTNEED)
spread(work)
""",
    ),
    _attack(
        "page-faults",
        "memory",
        "the kernel's pages, given back and touched again",
        """
import mmap
def work():
    area = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    while True:
        area[::4096] = bytes(8192)
        area.madvise(mmap.MADV_DONTNEED)
spread(work, 14)
""",
    ),
    _attack(
        "copies-on-write",
        "memory",
        "the locks of memory that is common to the interpreter's children",
        """
block = bytearray(b"x") * (64 << 20)
def work():
    while True:
        try:
            pid = os.fork()
        except OSError:
            continue
        if pid == 0:
            block[::4096] = block[::4096]
            os._exit(0)
        os.waitpid(pid, 0)
spread(work, 7)
""",
    ),
    _attack(
        "mappings",
        "memory",
        "the other processors, by the flushing of their address caches",
        """
import mmap, threading
path = os.__file__
file = os.open(path, os.O_RDONLY)
def work():
    while True:
        area = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        area[0] = 1
        area.close()
        mmap.mmap(file, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ).close()
def some():
    for _ in range(3): threading.Thread(target=work, daemon=True).start()
    work()
spread(some, 6)
""",
    ),
    _attack(
        "huge-pages",
        "memory",
        "the kernel's search for huge pages",
        """
import mmap
def work():
    while True:
        area = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        area[::4096] = bytes(8192)
        for advice in (25, 21, mmap.MADV_DONTNEED):
            try:
                area.madvise(advice)
            except OSError:
                pass
        area.close()
spread(work, 7)
""",
    ),
    _attack(
        "large-ends",
        "memory",
        "the time that it takes to give their memory back, and end at once",
        "held = bytearray(b'x') * (300 << 20)",
    ),
)
FILES = (
    _attack(
        "files",
        "files",
        "the kernel's books of files",
        """
while True:
    for i in range(4000): os.close(os.open(f"{i}", os.O_CREAT | os.O_WRONLY))
    for i in range(4000): os.unlink(f"{i}")
""",
    ),
    _attack(
        "full-tmp-left",
        "files",
        "the removal of what a call leaves",
        "for i in range(4000): os.mkdir(f'{i}')\n",
    ),
    _attack(
        "large-writes",
        "files",
        "the memory's bandwidth",
        """
block = bytes(15 << 20)
def work():
    name = str(os.getpid())
    while True:
        try:
            with open(name, "wb") as file: file.write(block)
        except OSError:
            pass
spread(work, 3)
""",
    ),
    _attack(
        "fsyncs",
        "files",
        "the disk's journal",
        """
import glob
files = [os.open(path, os.O_RDONLY) for path in glob.glob("/usr/lib/*/*.so*")[:20]]
files.append(os.open("mine", os.O_CREAT | os.O_WRONLY))
def work():
    while True:
        for file in files:
            try:
                os.write(files[-1], b"x")
                os.fsync(file)
                os.fdatasync(file)
            except OSError:
                pass
spread(work, 14)
""",
    ),
    _attack(
        "page-cache",
        "files",
        "the page cache, read and dropped",
        """
import glob
def work():
    while True:
        for path in glob.glob("/usr/lib/*/*.so*"):
            try:
                file = os.open(path, os.O_RDONLY)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                while os.read(file, 1 << 20): pass
                os.close(file)
            except OSError:
                pass
spread(work, 7)
""",
    ),
    _attack(
        "missing-names",
        "files",
        "the kernel's memory of names that do not exist",
        """
def work():
    number = 0
    while True:
        number += 1
        try:
            os.stat(f"/usr/lib/{os.getpid()}-{number}")
        except OSError:
            pass
spread(work)
""",
    ),
    _attack("output", "files", "the memory of what is printed", "while True: print('x' * 10000)"),
    _attack("long-value", "files", "the executor, which reads what is said", "'\\udcff' * (80 << 20)"),
)
DESCRIPTORS = (
    _attack(
        "pipes",
        "descriptors",
        "the pages that the user's pipes may have",
        """
import fcntl
def work():
    held = []
    while True:
        try:
            held.append(os.pipe())
            fcntl.fcntl(held[-1][1], 1031, 1 << 20)
            os.set_blocking(held[-1][1], False)
            while True: os.write(held[-1][1], bytes(1 << 16))
        except OSError:
            if len(held) > 25: time.sleep(0.01)
spread(work)
""",
    ),
    _attack(
        "inotify",
        "descriptors",
        "the user's watches, and the events of shared directories",
        """
import ctypes
libc = ctypes.CDLL(None)
def work():
    held = []
    while True:
        fd = libc.inotify_init1(2048)
        if fd < 0:
            for old in held: os.close(old)
            held = []
            continue
        held.append(fd)
        for directory in (b"/usr/lib", b"/usr/bin", b"/tmp", b"/usr"): libc.inotify_add_watch(fd, directory, 0xfff)
        os.listdir("/usr/bin")
spread(work)
""",
    ),
    _attack(
        "socket-buffers",
        "descriptors",
        "the kernel's memory for messages that nobody reads",
        """
import socket
def work():
    held = []
    while True:
        try:
            held.append(socket.socketpair())
            held[-1][0].setblocking(False)
            while True: held[-1][0].send(bytes(1 << 16))
        except OSError:
            if len(held) > 25: held.clear()
spread(work)
""",
    ),
    _attack(
        "polls",
        "descriptors",
        "the kernel's lists of who waits",
        """
import select
def work():
    pairs = [os.pipe() for _ in range(20)]
    polls = [select.epoll() for _ in range(15)]
    for poll in polls:
        for read, _ in pairs: poll.register(read, select.EPOLLIN)
    while True:
        for read, write in pairs:
            os.write(write, b"x")
            os.read(read, 1)
spread(work)
""",
    ),
)
SIGNALS = (
    _attack(
        "signals",
        "signals",
        "the kernel's delivery of signals",
        """
import signal
for number in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(number, lambda *_: None)
def work():
    while True:
        try:
            os.kill(0, signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR2)
        except OSError:
            pass
spread(work, 14)
""",
    ),
    _attack(
        "queued-signals",
        "signals",
        "the signals that the user may have pending",
        """
import ctypes, signal
libc = ctypes.CDLL(None)
signal.pthread_sigmask(signal.SIG_BLOCK, range(34, 60))
def work():
    while True:
        for number in range(34, 60): libc.sigqueue(os.getpid(), number, None)
spread(work)
""",
    ),
    _attack(
        "timers",
        "signals",
        "the processors by interrupts of timers",
        """
import ctypes, signal
libc = ctypes.CDLL(None)
signal.signal(signal.SIGALRM, lambda *_: None)
def work():
    signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)
    fine = (ctypes.c_long * 4)(0, 1000, 0, 1000)
    held = [libc.timerfd_create(1, 2048) for _ in range(30)]
    for fd in held: libc.timerfd_settime(fd, 0, ctypes.byref(fine), None)
    while True: time.sleep(0)
spread(work)
""",
    ),
    _attack(
        "futexes",
        "signals",
        "the kernel's table of those who wait for a lock",
        """
import ctypes, mmap
libc = ctypes.CDLL(None)
area = mmap.mmap(-1, 4096)
word = ctypes.addressof(ctypes.c_int.from_buffer(area))
brief = (ctypes.c_long * 2)(0, 1000)
def work():
    while True:
        libc.syscall(202, ctypes.c_void_p(word), 0, 0, ctypes.byref(brief))
        libc.syscall(202, ctypes.c_void_p(word), 1, 1000)
spread(work)
""",
    ),
    _attack(
        "barriers",
        "signals",
        "the other processors, by interrupts between processors",
        """
import ctypes
libc = ctypes.CDLL(None)
def work():
    for command in (4, 16, 64): libc.syscall(324, command, 0)
    while True:
        for command in (2, 8, 32, 1): libc.syscall(324, command, 0)
spread(work)
""",
    ),
)

ATTACKS: tuple[Attack, ...] = (*PROCESSOR, *PROCESSES, *MEMORY, *FILES, *DESCRIPTORS, *SIGNALS)
require_unique_names(ATTACKS)

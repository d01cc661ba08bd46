"""Attacks on what a call can reach: other calls, later ones in the same slot, the executor, the host."""

from __future__ import annotations

import errno
import os
import platform

from actors.sandbox.isolation.syscalls import (
    ALLOWED,
    ARCHITECTURES,
    CHECKED,
    ENTERING,
    IGNORED,
    MARKING,
    MISSING,
    REFUSED,
    SHORTENING,
    SIGNALLING,
    numbers,
)
from benchmarks.hostile import Attack, Group, require_unique_names

MACHINE = platform.machine() if platform.machine() in ARCHITECTURES else "x86_64"
GROUPS = (*ALLOWED, *CHECKED, *SIGNALLING, IGNORED, MARKING, SHORTENING, ENTERING, MISSING, REFUSED)
NUMBERS = {name: number for group in GROUPS for name, number in numbers(group.calls, MACHINE).items()}
NUMBERS["futex_waitv"] = 449
STRONG = ("strong",)
STRONG_AS_ROOT: tuple[str, ...] = ("strong",) if os.geteuid() == 0 else ()
"""What the kernel counts by user is the slot's own where root can give each slot a user."""

PRELUDE = f"""
import array, ctypes, errno, fcntl, mmap, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
LIBRARY = os.__file__
NUMBERS = {NUMBERS!r}
def call(name, *arguments):
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(NUMBERS[name], *given)
    return errno.errorcode[ctypes.get_errno()] if result < 0 else result
def tried(act, *arguments):
    try:
        return act(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
def conclude(held, said=""):
    print("HELD" if held else f"BROKEN: {{said}}", flush=True)
"""


def attack(name: str, group: Group, code: str, proof: str, **more: object) -> Attack:
    """An attack whose parts all begin with the prelude."""
    sides = {side: PRELUDE + str(more.pop(side)) for side in ("accomplice", "victim") if side in more}
    return Attack(name, group, PRELUDE + code, proof, **sides, **more)  # type: ignore[arg-type]


def refused(name: str, group: Group, said: str, proof: str, *errors: int, **more: object) -> Attack:
    """One that holds when the expression ``said`` gives one of ``errors`` (EPERM)."""
    names = tuple(errno.errorcode[number] for number in errors or (errno.EPERM,))
    return attack(name, group, f"said = {said}\nconclude(said in {names!r}, said)\n", proof, **more)


HONEST = """
open("solve.py", "w").write("print(6 * 7)")
import subprocess
for _ in range(3):
    time.sleep(0.03)
    if os.listdir("/tmp" if os.getcwd() == "/tmp" else ".") != ["solve.py"]:
        conclude(False, os.listdir("."))
        break
    text = open("solve.py").read()
    if text != "print(6 * 7)":
        conclude(False, text)
        break
else:
    conclude(True)
"""
"""A call that writes a program and finds it as it wrote it."""
FORGE = """
def forge(directory, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            fd = os.open("solve.py", os.O_WRONLY | os.O_TRUNC, dir_fd=directory)
            os.write(fd, b"print('forged')")
            os.close(fd)
        except OSError:
            pass
        time.sleep(0.002)
"""
"""What a foreign holder of a call's directory does with it: it waits until the call has a program there, so that
nothing shows before."""
NAMED_DATAGRAMS = """
names, ends = [], []
for _ in range(40):
    try:
        end, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    except OSError:
        break
    tried(end.setsockopt, socket.SOL_SOCKET, 16, 1)
    tried(end.send, b"x")
    other.close()
    tried(end.send, b"x")
    names.append(end.getsockname())
    ends.append(end)
"""
"""Sockets that have names, since they ask for credentials, and take what anybody sends, since their other ends are
gone."""
TAKE_DESCRIPTOR = f"""{NAMED_DATAGRAMS}{FORGE}
conclude(True)
until = time.monotonic() + 2
import select
while names and time.monotonic() < until:
    for end in select.select(ends, [], [], 0.1)[0]:
        _, fds, _, _ = socket.recv_fds(end, 16, 16)
        if fds:
            forge(fds[0], 4)
            names = []
            break
"""
GIVE_DESCRIPTOR = """
directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
try:
    sender, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
except OSError as error:
    conclude(True)
else:
    conclude(False, "a datagram socket")
    sent = 0
    for number in range(1 << 20):
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [directory]))
            sender.sendmsg([b"x"], [rights], 0, b"\\0%05x" % number)
            break
        except OSError:
            pass
"""
LEFT_BEHIND = f"""{FORGE}
directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
def leave():
    tried(os.setpgid, 0, 0)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)
"""
OTHERS = (
    "[pid for pid in {*range(2, 400), *range(os.getppid() - 200, os.getppid() + 400)} if pid > 1 and pid != "
    "os.getpid()]"
)
"""Numbers of processes near the interpreter's, as the executor and other calls have, and of the host's first."""

SOCKETS = [
    attack(
        "descriptor to a parallel call",
        "sockets",
        GIVE_DESCRIPTOR,
        "Another call has the directory of this one, whose slot an honest call gets next.",
        accomplice=TAKE_DESCRIPTOR,
        victim=HONEST,
    ),
    attack(
        "descriptor to a stopped session",
        "sockets",
        GIVE_DESCRIPTOR,
        "A session has the directory of a call from its next cell on.",
        accomplice=f"{NAMED_DATAGRAMS}conclude(not names, names)\n",
        victim=HONEST,
        in_session=True,
    ),
    refused(
        "raw sockets are datagram sockets",
        "sockets",
        "tried(socket.socketpair, socket.AF_UNIX, socket.SOCK_RAW)",
        "A socket that sends to any other by its name.",
    ),
    refused(
        "datagram sockets with flags",
        "sockets",
        "tried(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)",
        "A socket that sends to any other by its name.",
    ),
    refused(
        "datagram sockets behind bits that no filter compares",
        "sockets",
        "call('socketpair', 1, (1 << 32) | 2, 0, (ctypes.c_int * 2)())",
        "A socket that sends to any other by its name.",
    ),
    refused(
        "reliably delivered datagrams",
        "sockets",
        "call('socketpair', 1, 4, 0, (ctypes.c_int * 2)())",
        "A socket of a kind that nobody has looked at.",
    ),
    refused("pairs of TIPC", "sockets", "call('socketpair', 30, 5, 0, (ctypes.c_int * 2)())", "A socket of a network."),
    refused(
        "an address for what a stream sends",
        "sockets",
        "tried(socket.socketpair()[0].sendto, b'x', b'\\0agent-rl')",
        "Words to a socket of the host.",
    ),
    attack(
        "an address for a message of a sequenced pair",
        "sockets",
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\nb.settimeout(0.1)\n"
        "said = tried(a.sendmsg, [b'x'], [], 0, b'\\0agent-rl')\n"
        "conclude(said in ('EPERM', 'EISCONN', 'EOPNOTSUPP', 'EINVAL', 'ECONNREFUSED') or b.recv(1) == b'x', said)\n",
        "Words to a socket of the host.",
    ),
    refused(
        "a name for a socket by asking for credentials",
        "sockets",
        "tried(socket.socketpair()[0].setsockopt, socket.SOL_SOCKET, 16, 1)",
        "A socket with a name that others can send to.",
    ),
    attack(
        "a name for the control link",
        "sockets",
        "link = socket.socket(fileno=os.dup(4))\nsaid = tried(link.setsockopt, socket.SOL_SOCKET, 16, 1)\n"
        "name = link.getsockname()\nconclude(said == 'EPERM' and not name, (said, name))\n",
        "The link to the server has a name that others can send to.",
    ),
    refused(
        "the server's process by the control link",
        "sockets",
        "tried(socket.socket(fileno=os.dup(4)).getsockopt, socket.SOL_SOCKET, 77)",
        "A descriptor of the server's process, which signals can be sent to.",
    ),
    refused(
        "who is at the other end of the control link",
        "sockets",
        "tried(socket.socket(fileno=os.dup(4)).getsockopt, socket.SOL_SOCKET, 17, 12)",
        "User and process number of the server.",
    ),
    refused(
        "a program of its own in the kernel, on a socket",
        "sockets",
        "tried(socket.socketpair()[0].setsockopt, socket.SOL_SOCKET, 26, bytes(16))",
        "A BPF program of the attacker's in the kernel.",
    ),
    attack(
        "bytes out of band",
        "sockets",
        "a, b = socket.socketpair()\nsaid = {tried(a.send, b'x', 1), tried(a.sendmsg, [b'x'], [], 1), tried(b.recv, 1, "
        "1), tried(b.recvmsg, 1, 0, 1)}\n"
        "conclude(said == {'EPERM'}, said)\n",
        "A part of the kernel that no program here needs, and that had faults by which sandboxes were left.",
    ),
    refused(
        "other levels of socket options",
        "sockets",
        "call('setsockopt', socket.socketpair()[0].fileno(), 6, 7, bytes(4), 4)",
        "Options of a protocol that no pair has.",
    ),
    attack(
        "sockets of every other family",
        "sockets",
        "made = [family for family in range(46) for kind in (1, 2, 3, 5) if call('socket', family, kind, 0) != "
        "'EPERM'] if 'socket' in "
        "NUMBERS else []\nconclude(not made, made)\n",
        "A socket of the network, of netlink, of the kernel's cryptography.",
    ),
    attack(
        "a socket in a shared directory",
        "sockets",
        "a, b = socket.socketpair()\nsaid = {tried(a.bind, path) for path in ('/tmp/s', '/usr/s', 's', b'\\0s')}\n"
        "conclude(said == {'EPERM'}, said)\n",
        "A place where calls meet.",
    ),
    attack(
        "descriptors in a queue that nobody reads",
        "sockets",
        "directory = os.open('.', os.O_RDONLY)\na, b = socket.socketpair()\n"
        "for _ in range(50): tried(socket.send_fds, a, [b'x'], [directory, a.fileno(), b.fileno()])\n"
        "file = os.open('.', os.O_TMPFILE | os.O_RDWR) if os.getcwd() == '/tmp' else directory\n"
        "tried(socket.send_fds, a, [b'x'], [file])\nconclude(True)\n",
        "Files of a call outlive it in a ring of sockets that hold each other.",
        victim=HONEST,
    ),
    attack(
        "descriptors sent to the server",
        "sockets",
        "directory = os.open('.', os.O_RDONLY)\nlink = "
        "socket.socket(fileno=4)\nlink.setblocking(False)\nconclude(True)\n"
        "for _ in range(200): tried(socket.send_fds, link, [b'.'], [directory] * 60)\n",
        "The server holds the directory of a call that has ended, and runs out of descriptors.",
        victim=HONEST,
        ends=("success", "error"),
    ),
    attack(
        "the next call by the control link",
        "sockets",
        "link = socket.socket(fileno=4)\nlink.setblocking(False)\nuntil = time.monotonic() + 0.1\nsaid = set()\n"
        "while time.monotonic() < until:\n    said.add(tried(socket.recv_fds, link, 64, 8))\n    time.sleep(0.005)\n"
        "conclude(said == {'EAGAIN'}, said)\n",
        "Code or descriptors of another call.",
    ),
]

DESCRIPTORS = [
    attack(
        "as many descriptors in flight as there may be",
        "descriptors",
        "a, b = socket.socketpair()\nsaid = tried(socket.send_fds, a, [b'x'], [0])\nconclude(said == 1, said)\n",
        "A neighbour can't send a descriptor, as multiprocessing does, since the kernel counts those of all calls "
        "together.",
        accomplice=(
            "a, b = socket.socketpair()\nfor _ in range(80): tried(socket.send_fds, a, [b'x'], [0])\nconclude(True)\n"
            "time.sleep(0.3)\n"
        ),
        levels=STRONG_AS_ROOT,
    ),
    refused(
        "descriptors of another process",
        "descriptors",
        "call('pidfd_getfd', os.pidfd_open(os.getpid()), 1, 0)",
        "Any descriptor of a process that it may trace.",
    ),
    attack(
        "descriptors by their paths",
        "descriptors",
        "paths = ['/proc/self/fd', '/proc/1/fd', '/dev/fd', '/proc/thread-self/fdinfo', '/proc/1/root', "
        "'/proc/1/cwd']\n"
        "said = {path: tried(os.listdir if os.path.isdir(path) else open, path) for path in paths}\n"
        "conclude(all(isinstance(s, str) and s.isupper() for s in said.values()), said)\n",
        "Descriptors, or the root, of another process.",
    ),
    attack(
        "handles of files",
        "descriptors",
        "handle = (ctypes.c_char * 200)()\nsaid = {call('name_to_handle_at', -100, b'/', handle, handle, 0), "
        "call('open_by_handle_at', 0, handle, 0)}\n"
        "conclude(said == {'EPERM'}, said)\n",
        "Any file of a file system, whatever its path.",
    ),
    attack(
        "descriptors that are the interpreter's",
        "descriptors",
        "found = []\nfor fd in range(4096):\n    if isinstance(tried(os.fstat, fd), os.stat_result): found.append(fd)\n"
        "conclude(found == [0, 1, 2, 3, 4], found)\n",
        "A descriptor of the warm interpreter's.",
    ),
    attack(
        "a process that keeps its call's directory",
        "descriptors",
        f"{LEFT_BEHIND}\nif os.fork() == 0:\n    leave()\n    forge(directory, 3)\n    os._exit(0)\nconclude(True)\n",
        "Somebody writes into the next call's directory.",
        victim=HONEST,
    ),
    attack(
        "a process that is never the same",
        "descriptors",
        f"{LEFT_BEHIND}\nif os.fork() == 0:\n    until = time.monotonic() + 1\n    leave()\n    while time.monotonic() "
        f"< until:\n"
        "        forge(directory, 0.001)\n        try:\n            if os.fork(): os._exit(0)\n        except OSError: "
        "pass\n"
        "        tried(os.setpgid, 0, 0)\n    os._exit(0)\nconclude(True)\n",
        "A process that forks and ends, again and again, and is overlooked when its slot is looked at.",
        victim=HONEST,
    ),
    attack(
        "a process whose end nobody is told",
        "descriptors",
        f"{LEFT_BEHIND}\npid = libc.syscall({56 if MACHINE == 'x86_64' else 220}, ctypes.c_long(0), 0, 0, 0, 0)\n"
        "if pid == 0:\n    leave()\n    forge(directory, 3)\n    os._exit(0)\nconclude(True)\n",
        "A process without a signal at its end outlives its call.",
        victim=HONEST,
    ),
    attack(
        "a program that keeps its call's directory",
        "descriptors",
        f"{LEFT_BEHIND}\nimport subprocess\nleave()\nos.set_inheritable(directory, True)\n"
        "subprocess.Popen(['/bin/sh', '-c', 'while :; do echo forged > solve.py; done 2> /dev/null'], "
        "pass_fds=[directory], process_group=0)\n"
        "conclude(True)\n",
        "Somebody writes into the next call's directory.",
        victim=HONEST,
    ),
    attack(
        "the executor's directories",
        "descriptors",
        "import glob\nfound = []\nfor top in ('/tmp', '/var/tmp', '/run', '/dev/shm', '..', '../..'):\n"
        "    names = tried(os.listdir, top)\n    if not isinstance(names, str) and os.path.realpath(top) not in "
        "('/tmp', '/'): found.append((top, names))\n"
        "conclude(not found, found)\n",
        "The list of what others have in directories for temporary files.",
    ),
    attack(
        "up from its own directory",
        "descriptors",
        "fd = os.open('.', os.O_PATH)\nfound = []\nfor _ in range(4):\n    fd = os.open('..', os.O_PATH, dir_fd=fd)\n"
        "    for path in ('etc/shadow', 'root/.ssh', 'home', 'proc/1/environ'):\n"
        "        said = tried(os.open, path, os.O_RDONLY, 0o600)\n        said = tried(lambda: os.open(path, "
        "os.O_RDONLY, dir_fd=fd))\n"
        "        if not isinstance(said, str): found.append(path)\nconclude(not found, found)\n",
        "Files above the call's directory.",
    ),
    refused(
        "seals on its own output",
        "descriptors",
        "tried(fcntl.fcntl, 1, 1033, 15)",
        "A file of the executor's that nobody can change any more.",
    ),
]

FCNTL = [
    refused(
        "a lease on a library",
        "files",
        "tried(fcntl.fcntl, os.open(LIBRARY, os.O_RDONLY), 1024, fcntl.F_RDLCK)",
        "Whoever opens the file for writing waits for 45 s.",
    ),
    refused(
        "a lease on its own file",
        "files",
        "tried(fcntl.fcntl, os.open('own', os.O_RDWR | os.O_CREAT), 1024, fcntl.F_WRLCK)",
        "The executor waits when it opens the file.",
    ),
    refused(
        "news of a directory of all",
        "files",
        "tried(fcntl.fcntl, os.open('/usr/lib', os.O_RDONLY), 1026, 0x8000003f)",
        "It is told of what others do to files.",
    ),
    attack(
        "signals to others by what happens to a file",
        "signals",
        "r, w = os.pipe()\nsaid = {tried(fcntl.fcntl, r, 8, 1), tried(fcntl.fcntl, r, 15, bytes(8)), "
        "tried(fcntl.fcntl, r, 10, 18)}\n"
        "said.add(tried(fcntl.fcntl, r, fcntl.F_SETFL, 0x2000))\nconclude(said == {'EPERM'}, said)\n",
        "A signal to a process of its choice, SIGCONT among them.",
    ),
    refused(
        "signals by an open file",
        "signals",
        "tried(os.open, '/dev/null', os.O_RDWR | 0x2000)",
        "A descriptor that sends signals.",
    ),
    refused(
        "pipes of a megabyte",
        "memory",
        "tried(fcntl.fcntl, os.pipe()[0], 1031, 1 << 20)",
        "The pages of pipes that a user may have, which all calls share, are used up by 64 pipes.",
    ),
    attack(
        "locks of open files",
        "files",
        "import struct\nlock = struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0)\nfd = os.open(LIBRARY, os.O_RDONLY)\n"
        "said = {tried(fcntl.fcntl, fd, command, lock) for command in (36, 37, 38)}\nconclude(said == {'EPERM'}, "
        "said)\n",
        "A lock on a file of all that outlives the descriptor it was taken by.",
    ),
    attack(
        "locks on what all see",
        "files",
        "said = {tried(fcntl.flock, os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB) for path in (LIBRARY, "
        "'/usr', '/dev/null')}\n"
        "conclude(said == {'EPERM'}, said)\n",
        "Programs of the host that lock themselves or a directory wait.",
    ),
    attack(
        "record locks on what all see",
        "files",
        "import struct\npack, unset = struct.Struct('hhqqi4x').pack, []\n"
        "for path, flags in ((LIBRARY, os.O_RDONLY), ('/dev/null', os.O_RDWR), ('/usr', os.O_RDONLY)):\n"
        "    fd = os.open(path, flags)\n    for at in range(2000): tried(fcntl.fcntl, fd, fcntl.F_SETLK, "
        "pack(fcntl.F_RDLCK, 0, 2 * at, 1, 0))\n"
        "    r, w = os.pipe()\n    if os.fork() == 0:\n        os.write(w, fcntl.fcntl(fd, fcntl.F_GETLK, "
        "pack(fcntl.F_WRLCK, 0, 0, 0, 0))[:2])\n"
        "        os._exit(0)\n    unset.append(os.read(r, 2) == struct.pack('h', fcntl.F_UNLCK))\nconclude(all(unset), "
        "unset)\n",
        "Whoever closes the file, on the whole host, walks a list of a hundred thousand locks under a spin lock: 2 ms "
        "where it took 2 us.",
    ),
    refused(
        "shortening what is opened to be read",
        "files",
        "tried(os.open, os.open('mine', os.O_CREAT) and 'mine', os.O_RDONLY | os.O_TRUNC)",
        "With Landlock before Linux 6.2, files of the environment that the executor's user owns are emptied.",
    ),
    refused(
        "shortening by path",
        "files",
        "tried(os.truncate, os.open('mine', os.O_CREAT) and 'mine', 0)",
        "With Landlock before Linux 6.2, files of the host that the executor's user owns are emptied.",
        levels=("filtered",),
    ),
    attack(
        "a program of the host for each crash",
        "processes",
        "limits = (ctypes.c_long * 2)(0, 0)\nsaid = {call('setrlimit', 4, limits), call('prlimit64', 0, 4, limits, "
        "0)}\n"
        "call('getrlimit', 4, limits)\nconclude(said == {'EPERM'} and limits[0] <= 1, (said, *limits))\n",
        "The kernel starts the program in core_pattern, as root and outside of all groups, for each program of the "
        "call that crashes.",
    ),
    attack(
        "every other command of fcntl",
        "files",
        "allowed = {0, 1, 2, 3, 4, 5, 6, 7, 1027, 1030, 1032}\nr, w = os.pipe()\n"
        "said = {c: call('fcntl', r, c, 0) for c in [*range(64), *range(1020, 1080)] if c not in allowed}\n"
        "conclude(set(said.values()) == {'EPERM'}, said)\n",
        "A command of a later kernel that nobody has looked at.",
    ),
]

FILES = [
    attack(
        "news of files of all",
        "files",
        "fds = [call(name, 0) for name in ('inotify_init', 'inotify_init1') if name in NUMBERS]\n"
        "said = call('inotify_add_watch', 3, b'/usr/lib', 0xfff)\nconclude(set(fds) == {'EPERM'} and said == 'EPERM', "
        "(fds, said))\n",
        "It sees which files others open, and uses up the user's 128 instances.",
    ),
    attack(
        "a storm of fsync",
        "files",
        "fd, (r, w) = os.open(LIBRARY, os.O_RDONLY), os.pipe()\n"
        "for _ in range(2000): os.fsync(fd); os.fdatasync(fd)\n"
        "said = [tried(os.fsync, r), tried(os.fdatasync, r), call('msync', mmap.PAGESIZE, mmap.PAGESIZE, 4), "
        "call('syncfs', fd), call('sync')]\n"
        "conclude(said == [None, None, 0, 'EPERM', 'EPERM'], said)  # the kernel itself refuses the first three\n",
        "The host's disk does nothing but flush its caches.",
    ),
    attack(
        "files that are written through",
        "files",
        "said = {tried(os.open, 'x', os.O_RDWR | os.O_CREAT | flag) for flag in (os.O_SYNC, os.O_DSYNC)}\n"
        "said.add(call('openat2', -100, b'x', bytes(24), 24))\nconclude(said == {'EPERM', 'ENOSYS'}, said)\n",
        "Each write waits for the host's disk.",
    ),
    attack(
        "modes and times of files of all",
        "files",
        "paths = (LIBRARY, os.path.dirname(LIBRARY), '/usr', '/dev/null')\n"
        "looks = lambda: [s.st_ctime_ns for s in map(os.stat, paths)]\nbefore = looks()\n"
        "for path in paths:\n    stat = os.stat(path)\n    mode = stat.st_mode & 0o7777\n    same = lambda where: "
        "os.utime(where, ns=(stat.st_atime_ns, stat.st_mtime_ns))\n    tried(same, path)\n    tried(os.chmod, path, "
        "mode)\n"
        "    tried(os.chown, path, -1, -1)\n    fd = tried(os.open, path, os.O_RDONLY)\n"
        "    if isinstance(fd, int): tried(os.fchmod, fd, mode); tried(same, fd)\n"
        "after = looks()\nconclude(before == after, (before, after))\n",
        "Files of the host that nobody, or everybody, may read; a mark that other calls can read.",
    ),
    attack(
        "a pipe in a directory of all",
        "files",
        "said = {tried(os.mkfifo, path) for path in ('/usr/p', '/dev/p', '/p', '/etc/p', os.path.dirname(LIBRARY) + "
        "'/p')}\n"
        "conclude(said <= {'EROFS', 'EACCES', 'EPERM', 'ENOENT'}, said)\n",
        "A place where calls meet.",
    ),
    attack(
        "devices that calls have no use for",
        "files",
        "paths = ['/dev/' + name for name in ('tty', 'ptmx', 'fuse', 'kvm', 'mem', 'kmsg', 'vda', 'sda', "
        "'loop-control', 'net/tun', 'rtc0')]\n"
        "opened = [path for path in paths if not isinstance(tried(open, path, 'rb'), str)]\nconclude(not opened, "
        "opened)\n",
        "A device of the host.",
    ),
    attack(
        "commands to devices and file systems",
        "files",
        "fds = [tried(os.open, path, os.O_RDONLY) for path in ('.', '/usr', '/dev/null', '/dev/urandom')]\n"
        "said = {call('ioctl', fd, command, 0) for fd in fds if isinstance(fd, int) for command in (0x5412, 0x5452, "
        "0x8901, 0x5203, 0x40085203, 0xc0045877,"
        " 0x40049409, 0x80086601, 0x8008660b, 0x5401 + (1 << 16))}\nconclude(said == {'ENOTTY'}, said)\n",
        "Random numbers that are known, a frozen file system, shared blocks.",
    ),
    attack(
        "files of the kernel's settings",
        "files",
        "paths = ['/proc/sys/kernel/ns_last_pid', '/proc/sys/user/max_inotify_watches', '/proc/self/oom_score_adj', "
        "'/proc/self/uid_map',"
        " '/proc/locks', '/proc/meminfo', '/sys/kernel', '/sys/fs/cgroup']\n"
        "reached = [path for path in paths if not isinstance(tried(os.listdir if os.path.isdir(path) else open, path), "
        "str)]\n"
        "conclude(not reached, reached)\n",
        "What the kernel tells of other processes, or lets them set.",
    ),
    attack(
        "attributes of files of all",
        "files",
        "said = {tried(os.setxattr, path, 'user.x', b'x') for path in ('.', '/usr', LIBRARY)}\nconclude(said == "
        "{'EPERM'}, said)\n",
        "A mark that other calls can read.",
    ),
]

SIGNALS = [
    attack(
        "a child whose end says go on",
        "signals",
        f"clone = {56 if MACHINE == 'x86_64' else 220}\n"
        "said = {libc.syscall(clone, ctypes.c_long(s), 0, 0, 0, 0) for s in (18, 9, 19, 64)}\n"
        "if 0 in said: os._exit(0)\nconclude(said == {-1}, said)\n",
        "A session that is stopped goes on when its child ends.",
    ),
    attack(
        "another signal at its parent's end",
        "signals",
        "said = {libc.prctl(1, s, 0, 0, 0) for s in (0, 18, 15)}\nconclude(said == {-1}, said)\n",
        "A process that outlives the interpreter.",
    ),
    attack(
        "signals to processes of others",
        "signals",
        f"reached = [pid for pid in {OTHERS} if tried(os.kill, pid, 0) is None]\nconclude(not reached, reached[:9])\n",
        "A signal to a process of the host or of another call.",
    ),
    attack(
        "signals to threads of others",
        "signals",
        f"reached = [pid for pid in {OTHERS} if call('tkill', pid, 0) == 0 or call('tgkill', pid, pid, 0) == 0]\n"
        "conclude(not reached, reached[:9])\n",
        "A signal to a thread of the host or of another call.",
    ),
    attack(
        "signals with a message to others",
        "signals",
        "info = (ctypes.c_int * 32)(0, 0, -1)\n"
        f"reached = [pid for pid in {OTHERS} if call('rt_sigqueueinfo', pid, 0, info) == 0]\nconclude(not reached, "
        f"reached[:9])\n",
        "A signal with a message to a process of the host or of another call.",
    ),
    attack(
        "signals by descriptors of processes",
        "signals",
        f"reached = []\nfor pid in {OTHERS}:\n    fd = tried(os.pidfd_open, pid)\n    if not isinstance(fd, str):\n"
        "        if tried(signal.pidfd_send_signal, fd, 0) is None: reached.append(pid)\n        os.close(fd)\n"
        "conclude(not reached, reached[:9])\n",
        "A signal to a process of the host or of another call.",
    ),
    attack(
        "signals that wait",
        "signals",
        "signal.pthread_sigmask(signal.SIG_BLOCK, {40})\ninfo, sent = (ctypes.c_int * 32)(40, 0, -1), 0\n"
        "while sent < 5000 and call('rt_sigqueueinfo', os.getpid(), 40, info) == 0: sent += 1\nconclude(10 < sent <= "
        "64, sent)\n",
        "The signals that may wait for a user's processes, which all calls share, are used up.",
    ),
    attack(
        "groups of others",
        "signals",
        f"reached = [pid for pid in {OTHERS} if tried(os.killpg, pid, 0) is None]\n"
        "reached += [pid for pid in range(2, 3000) if pid != os.getpid() and tried(os.setpgid, 0, pid) is "
        "None]\nconclude(not reached, reached[:9])\n",
        "A signal to a group of processes of others, or a place in it.",
    ),
]

PROCESSES = [
    attack(
        "numbers of processes as words",
        "processes",
        "for _ in range(37):\n    pid = os.fork()\n    if pid == 0: os._exit(0)\n    os.waitpid(pid, "
        "0)\nconclude(os.getpid() == 2, os.getpid())\n",
        "The next call in the slot sees how many processes this one had.",
        victim="conclude(os.getpid() == 2, os.getpid())\n",
        levels=STRONG,
    ),
    attack(
        "a session for each process",
        "processor",
        "r, w = os.pipe()\nif os.fork() == 0:\n    os.write(w, repr(tried(os.setsid)).encode())\n    os._exit(0)\n"
        "said = os.read(r, 99)\nconclude(said == b\"'EPERM'\", said)\n",
        "Each process has a processor share as large as that of a whole call.",
    ),
    attack(
        "a session for a program",
        "processor",
        "import subprocess\nsaid = tried(lambda: subprocess.run(['/bin/true'], start_new_session=True))\n"
        "plain = subprocess.run(['/bin/true'], process_group=0)\nconclude(said == 'EPERM' and plain.returncode == 0, "
        "said)\n",
        "Each program has a processor share as large as that of a whole call.",
    ),
    refused(
        "another filter over its own",
        "processes",
        "'EPERM' if libc.prctl(22, 2, ctypes.create_string_buffer(16), 0, 0) == -1 and ctypes.get_errno() == 1 else "
        "'filter'",
        "Programs of the attacker's in the kernel.",
    ),
    attack(
        "namespaces by high descriptors",
        "processes",
        "import resource\nsaid = [tried(os.dup2, 0, 600), call('setns', 512, 0)]\n"
        "try: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)); said.append('raised')\nexcept (ValueError, "
        "OSError): pass\n"
        "said.append(call('setns', 600, 0))\n"
        "conclude(said[0] == 'EBADF' and said[1:] == ['EPERM', 'EPERM'], said)\n",
        "The namespaces of another slot.",
    ),
    attack(
        "new namespaces by every way",
        "processes",
        "said = {call('unshare', flag) for flag in (0x80, 0x400, 0x20000, 0x10000000, 0x20000000)} | {call('clone3', "
        "bytes(88), 88)}\n"
        "conclude(said == {'EPERM', 'ENOSYS'}, said)\n",
        "Capabilities in a namespace of its own, and with them much more of the kernel.",
    ),
    attack(
        "children that are its own to reap",
        "processes",
        "said = {libc.prctl(option, 1, 0, 0, 0) for option in (4, 8, 23, 24, 28, 33, 35, 36, 40, 41, 47, 53, 62, 65)}\n"
        "conclude(said == {-1}, said)\n",
        "A state of its process that children, or the kernel, go by.",
    ),
    attack(
        "every other operation on a thread's registers",
        "processes",
        "said = {call('arch_prctl', code, 0) for code in (0x1011, 0x1012, 0x2001, 0x3001, 0x4001, 0x5001)} if "
        "'arch_prctl' in NUMBERS "
        "else {'EINVAL'}\nconclude(said == {'EINVAL'}, said)\n",
        "Faults where others have none; an operation that nobody has looked at.",
    ),
    attack(
        "limits of its neighbours",
        "processes",
        f"reached = [pid for pid in [1, *{OTHERS}[:5000]] if call('prlimit64', pid, 7, 0, (ctypes.c_long * 2)()) != "
        f"'EPERM']\n"
        "conclude(not reached, reached[:9])\n",
        "Limits of another process.",
    ),
]

MEMORY = [
    refused(
        "pages that the host has reserved",
        "memory",
        "call('mmap', 0, 1 << 21, 3, 0x40022, -1, 0)",
        "Huge pages, which count in no group, are taken from the host's own programs.",
    ),
    attack(
        "advice that reaches the pages of others",
        "memory",
        "import mmap\npage = mmap.mmap(os.open(LIBRARY, os.O_RDONLY), 4096, prot=mmap.PROT_READ)\n"
        "said = {tried(page.madvise, advice) for advice in (12, 13, 20, 21, 25, 100, 101, 24)}\nconclude(said == "
        "{'EPERM'}, said)\n",
        "Pages of files are pushed out for all, or merged with those of others and so compared.",
    ),
    refused(
        "which pages are in memory, by mincore",
        "timing",
        "call('mincore', mmap.PAGESIZE, mmap.PAGESIZE, (ctypes.c_char * 1)())",
        "It sees which files others read.",
    ),
    attack(
        "which pages are in memory, by reads that do not wait",
        "timing",
        "fd = os.open(LIBRARY, os.O_RDONLY)\nsaid = tried(os.preadv, fd, [bytearray(4096)], 0, 8)\n"
        "plain = os.preadv(fd, [bytearray(64)], 0)\nconclude(said in ('EOPNOTSUPP', 'ENOTSUP') and plain == 64, "
        "said)\n",
        "It sees which files others read.",
    ),
    refused(
        "which pages are in memory, by cachestat",
        "timing",
        "call('cachestat', 0, bytes(16), (ctypes.c_char * 64)(), 0)",
        "It sees which files others read and write.",
    ),
    attack(
        "pages of files out of memory",
        "timing",
        "fd = os.open(LIBRARY, os.O_RDONLY)\nsaid = {tried(os.posix_fadvise, fd, 0, 0, advice) for advice in (3, 4, "
        "5)}\n"
        "said.add(call('readahead', fd, 0, 4096))\nconclude(said == {'EPERM'}, said)\n",
        "Others read from disk what they had in memory; so two calls can talk.",
    ),
    attack(
        "pages of files into a pipe",
        "memory",
        "fd = os.open(LIBRARY, os.O_RDONLY)\nr, w = os.pipe()\n"
        "said = {call('splice', fd, 0, w, 0, 64, 0), call('tee', r, w, 64, 0), call('vmsplice', w, 0, 0, "
        "0)}\nconclude(said == {'EPERM'}, said)\n",
        "Pages that all see, in a pipe that a fault of the kernel lets it write to.",
    ),
    attack(
        "locks that lend priorities",
        "memory",
        "word = (ctypes.c_int * 4)()\nsaid = {call('futex', word, op, 0, 0, word, 0) for op in (2, 6, 7, 8, 11, 12, "
        "13, 134)}\n"
        "said.add(call('futex_waitv', 0, 0, 0, 0, 0))\nconclude(said == {'EPERM', 'ENOSYS'}, said)\n",
        "A part of the kernel that no program here needs, and that had many faults.",
    ),
    refused(
        "barriers on all processors",
        "processor",
        "call('membarrier', 2, 0)",
        "Each processor is interrupted, as often as it likes.",
    ),
]

ATTACKS = [*SOCKETS, *DESCRIPTORS, *FCNTL, *FILES, *SIGNALS, *PROCESSES, *MEMORY]
require_unique_names(ATTACKS)

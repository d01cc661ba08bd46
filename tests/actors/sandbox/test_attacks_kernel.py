"""Attacks by system calls, most of them by number through ctypes. Each runs beside a neighbour's call."""

from __future__ import annotations

import platform

import pytest

from actors.sandbox.isolation.syscalls import REFUSED, numbers
from benchmarks.hostile import NUMBERS
from tests.actors.sandbox.conftest import Attacked

MACHINE = platform.machine()
CALL = """
import ctypes, errno, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    result = libc.syscall(number, *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return errno.errorcode[ctypes.get_errno()] if result < 0 else result
"""


def by_number(attacked: Attacked, name: str, *arguments: int) -> str:
    given = "".join(f", {argument}" for argument in arguments)
    return attacked.by(f"{CALL}print(call({NUMBERS[name]}{given}))", beside=0.02).stdout.strip()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("setns", (3, 0)),
        ("setns", (60, 0)),
        ("socketpair", (2, 1, 0, 0)),
        ("prctl", (4, 1, 0, 0, 0)),  # dumpable
        ("prctl", (22, 2, 0, 0, 0)),  # another filter
        ("prctl", (23, 21, 0, 0, 0)),  # the bounding set
        ("prctl", (36, 1, 0, 0, 0)),  # subreaper
        ("kill", (0, 18)),  # to go on, from here: what stops a session is not its own to undo
        ("tkill", (0, 18)),
        ("tgkill", (0, 0, 18)),
        ("rt_sigqueueinfo", (0, 18, 0)),
        ("rt_tgsigqueueinfo", (0, 0, 18, 0)),
        ("pidfd_send_signal", (3, 18, 0, 0)),
        ("fcntl", (0, 10, 18)),
    ],
)
def test_arguments_of_system_calls_that_are_refused(attacked: Attacked, name: str, arguments: tuple[int, ...]) -> None:
    assert by_number(attacked, name, *arguments) == "EPERM"


def test_every_refused_system_call_is_refused(attacked: Attacked) -> None:
    refused = numbers(REFUSED.calls, MACHINE)
    code = (
        f"{CALL}print({{name: said for name, n in {refused!r}.items() "
        "if (said := call(n, -1, 0, 0, 0, 0, 0)) != 'EPERM'})"
    )
    assert attacked.by(code).stdout == "{}\n"


@pytest.mark.parametrize(
    "flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x8000, 0x2000]
)
def test_new_namespaces_and_foreign_parents_by_clone(attacked: Attacked, flag: int) -> None:
    assert by_number(attacked, "clone", flag | 17, 0, 0, 0, 0) == "EPERM"


def test_clone3_whose_flags_no_filter_sees(attacked: Attacked) -> None:
    assert by_number(attacked, "clone3", 0, 88) == "ENOSYS"


@pytest.mark.skipif(MACHINE != "x86_64", reason="the number is that of x86-64")
def test_timers_that_send_any_signal_do_not_exist(attacked: Attacked) -> None:
    assert attacked.by(f"{CALL}print(call(222, 1, 0, 0))").stdout == "ENOSYS\n"


def test_a_terminal_is_not_typed_into(attacked: Attacked) -> None:
    assert by_number(attacked, "ioctl", 0, 0x5412, 0) == "ENOTTY"


@pytest.mark.skipif(MACHINE != "x86_64", reason="x86-64 has two other system call interfaces")
def test_the_32_bit_interface_of_the_kernel(attacked: Attacked) -> None:
    code = (
        f"{CALL}page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\n"  # eax = getpid; int 0x80
        "print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())"
    )
    result = attacked.by(code)
    assert (result.outcome, result.stdout) == ("killed", "")
    assert "signal 31" in result.stderr


@pytest.mark.skipif(MACHINE != "x86_64", reason="x86-64 has two other system call interfaces")
def test_the_x32_interface_of_the_kernel(attacked: Attacked) -> None:
    result = attacked.by(f"{CALL}print(call(0x40000000 + 39))")
    assert (result.outcome, "signal 31" in result.stderr) == ("killed", True)


def test_taking_capabilities_and_users(attacked: Attacked) -> None:
    code = (
        f"{CALL}import struct\nheader = struct.pack('Ii', 0x20080522, 0)\n"
        f"print(call({NUMBERS['capset']}, header, struct.pack('6I', 255, 255, 0, 0, 0, 0)))\n"
        "for act in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0), lambda: "
        "os.setgroups([0])):\n"
        "    try: act(); print('TAKEN')\n    except OSError: print('refused')\nprint(os.getresuid())"
    )
    assert attacked.by(code).stdout == "EPERM\n" + "refused\n" * 4 + "(1000, 1000, 1000)\n"

"""The seccomp filters of sandboxed calls, assembled as classic BPF programs. They refuse every call that is not listed.

``syscalls.toml`` lists the system calls, the arguments that are checked, and the reasons. The programs are assembled
here, because the only binding on PyPI that is not tied to a distribution (pyseccomp) needs a system library. Tests run
the programs on every system call.
"""

from __future__ import annotations

import errno
import struct
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.sandbox.isolation.kernel import FIRST_SLOT_FD

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000
"""Numbers from here on belong to x86-64's 32-bit interface, which a filter that compares numbers would miss."""
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


@dataclass(frozen=True, slots=True)
class Check:
    """A condition of the filter on one argument of a system call.

    ``one_of``: it is one of ``values``, once the bits of ``besides`` are taken away. ``none_of``: it has none of these
    bits. ``pretended``: where it is one of ``values``, the call reports success and does nothing. ``null``: it is NULL.
    ``at_least``: it is no less than the one of ``values``. ``when``: where it is the one of ``values``, ``then`` holds.
    """

    argument: int
    rule: str
    values: dict[str, int]
    besides: dict[str, int]
    refusal: int
    then: Check | None


@dataclass(frozen=True, slots=True)
class SyscallGroup:
    """System calls with one rule. ``argument`` is the one that names the signal, in the groups of SIGNALLING."""

    reason: str
    calls: str
    checks: tuple[Check, ...] = ()
    argument: int = 0


def _values(text: str) -> dict[str, int]:
    return {name: int(value, 0) for name, _, value in (entry.partition(":") for entry in text.split())}


def _read_check(entry: dict[str, Any]) -> Check:
    [rule] = entry.keys() & {"one_of", "none_of", "pretended", "null", "at_least", "when"}
    values = _values(entry[rule]) if isinstance(entry[rule], str) else {rule: int(entry[rule])}
    refusal = getattr(errno, entry.get("refusal", "EPERM"))
    then = _read_check(entry["then"]) if "then" in entry else None
    return Check(entry["argument"], rule, values, _values(entry.get("besides", "")), refusal, then)


def _group(entry: dict[str, Any]) -> SyscallGroup:
    return SyscallGroup(**entry | {"checks": tuple(map(_read_check, entry.get("checks", ())))})


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
CHECKED, ALLOWED, SIGNALLING, JAILED = (
    tuple(map(_group, _TABLE[name])) for name in ("checked", "allowed", "signalling", "jailed")
)
ENTERING, LEADING, IGNORED, MARKING, SHORTENING, MISSING, REFUSED = (
    _group(_TABLE[name]) for name in ("entering", "leading", "ignored", "marking", "shortening", "missing", "refused")
)
SEALED: dict[str, str] = _TABLE["sealed"]
_PRCTL = next(group for group in CHECKED if group.calls.startswith("prctl:"))
SEALED_PRCTLS = {name: _PRCTL.checks[0].values[name] for name in ("PR_SET_PDEATHSIG", "PR_SET_SECCOMP")}
SIGCONT = 18
assert ENTERING.checks[0].values == {"at_least": FIRST_SLOT_FD}


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | number)


_PASS = _instruction(_RETURN, _ALLOW)


def _argument(index: int, *, high: bool = False) -> bytes:
    """Load the low half of an argument. The arguments compared here are 32 bits wide in the kernel, except pointers."""
    return _instruction(_LOAD, 16 + 8 * index + 4 * high)


def _is_one_of(values: dict[str, int], refusal: int) -> bytes:
    """Continue after these instructions if the loaded value is one of ``values``."""
    beyond = range(len(values), 0, -1)
    compared = (_instruction(_EQUAL, value, steps) for value, steps in zip(values.values(), beyond, strict=True))
    return b"".join(compared) + _refuse(refusal)


def _check(check: Check) -> bytes:
    """Instructions that refuse the call, or continue after themselves."""
    load, no = _argument(check.argument), _refuse(check.refusal)
    [first, *_] = check.values.values()
    match check.rule:
        case "one_of":
            kept = _instruction(_AND, ~sum(check.besides.values()) % (1 << 32)) if check.besides else b""
            return load + kept + _is_one_of(check.values, check.refusal)
        case "none_of":
            return load + _instruction(_ANY_BIT, sum(check.values.values()), 0, 1) + no
        case "pretended":
            done = (_instruction(_EQUAL, value, 0, 1) + _refuse(0) for value in check.values.values())
            return load + b"".join(done)
        case "at_least":
            return load + _instruction(_AT_LEAST, first, 1) + no
        case "null":
            halves = (_argument(check.argument, high=high) + _instruction(_EQUAL, 0, 1) + no for high in (False, True))
            return b"".join(halves)
        case _:  # when
            assert check.then is not None
            then = _check(check.then)
            return load + _instruction(_EQUAL, first, 0, len(then) // 8) + then


def numbers(calls: str, machine: str) -> dict[str, int]:
    """The numbers of the system calls of ``machine``, by name."""
    column = list(ARCHITECTURES).index(machine) + 1
    rows = (entry.split(":") for entry in calls.split())
    return {row[0]: int(row[column]) for row in rows if row[column]}


def _bodies(*, strong: bool, may_continue: bool) -> Iterator[tuple[str, bytes]]:
    """Tables of system calls and their checks, those with checked arguments first: the kernel caches the others."""
    for checked in (*CHECKED, *([ENTERING] if strong else [])):
        yield checked.calls, b"".join(map(_check, checked.checks)) + _PASS
    for group in SIGNALLING:
        compared = _argument(group.argument) + _instruction(_EQUAL, SIGCONT, 0, 1) + _refuse(errno.EPERM)
        yield group.calls, (b"" if may_continue else compared) + _PASS
    for group in (*ALLOWED, LEADING):
        yield group.calls, _PASS
    yield MARKING.calls, _PASS if strong or may_continue else _refuse(0)
    yield SHORTENING.calls, _PASS if strong or may_continue else _refuse(errno.EPERM)
    yield IGNORED.calls, _refuse(0)
    yield MISSING.calls, _refuse(errno.ENOSYS)
    yield REFUSED.calls, _refuse(errno.EPERM)
    if not strong:
        yield ENTERING.calls, _refuse(errno.EPERM)


def _head(machine: str) -> list[bytes]:
    """Kill calls of another interface; load the number of the system call. Raises KeyError for an unknown machine."""
    parts = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        parts += [_instruction(_AT_LEAST, X32, 0, 1), _instruction(_RETURN, _KILL)]
    return parts


def program(machine: str, *, strong: bool, may_continue: bool = False) -> bytes:
    """The filter for ``machine`` (x86_64, aarch64). Raises KeyError for others.

    A session is stopped between two cells. Only the process with ``may_continue`` can send the signal that continues
    the session. Otherwise threads or timers of the session could undo the stop.

    The warm interpreter installs the filter and its children inherit it, because installing takes 0.1 ms. At level
    ``strong`` the interpreter itself needs setns. The descriptors it enters are numbered from FIRST_SLOT_FD on; no
    child may open as many.
    """
    parts = _head(machine)
    for calls, body in _bodies(strong=strong, may_continue=may_continue):
        for number in numbers(calls, machine).values():
            parts += [_instruction(_EQUAL, number, 0, len(body) // 8), body]
    return b"".join([*parts, _refuse(errno.ENOSYS)])


def jail_program(machine: str) -> bytes:
    """The filter of programs in jails, which lets through what it does not list. Raises KeyError likewise."""
    parts = _head(machine)
    for group in JAILED:
        body = b"".join(map(_check, group.checks)) + _PASS
        for number in numbers(group.calls, machine).values():
            parts += [_instruction(_EQUAL, number, 0, len(body) // 8), body]
    return b"".join([*parts, _PASS])


def sealing_program(machine: str) -> bytes:
    """The filter that a child adds as the last step of its isolation, without the calls of these steps (see SEALED).

    The filter is short: when a filter is added, the kernel evaluates it for every system call number.
    """
    known = {**numbers(LEADING.calls, machine), **numbers(ENTERING.calls, machine)}
    prctl = numbers(_PRCTL.calls, machine)["prctl"]
    parts = [_instruction(_LOAD, _NUMBER)]
    for number in (known["setsid"], known["setns"]):
        parts += [_instruction(_EQUAL, number, 0, 1), _refuse(errno.EPERM)]
    parts += [_instruction(_EQUAL, prctl, 1), _PASS, _argument(0)]
    for option in SEALED_PRCTLS.values():
        parts += [_instruction(_EQUAL, option, 0, 1), _refuse(errno.EPERM)]
    return b"".join([*parts, _PASS])

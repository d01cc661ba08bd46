"""The seccomp filters, run here on every system call, decide as the table says."""

import errno
import itertools
import struct

import pytest

from actors.sandbox.isolation.syscalls import ALLOWED as UNDER_ANY_ARGUMENTS
from actors.sandbox.isolation.syscalls import (
    ARCHITECTURES,
    CHECKED,
    ENTERING,
    IGNORED,
    LEADING,
    MARKING,
    MISSING,
    REFUSED,
    SEALED,
    SEALED_PRCTLS,
    SHORTENING,
    SIGCONT,
    SIGNALLING,
    numbers,
    program,
    sealing_program,
)

MACHINES = list(ARCHITECTURES)
ALLOWED = 0x7FFF0000
OPERATIONS = 1024
"""System calls are tried up to this number, which is beyond all there are."""


def decided(code: bytes, machine: str, number: int, *arguments: int) -> int:
    """What a classic BPF program decides about a system call."""
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=iIQ6Q", number, ARCHITECTURES[machine], 0, *(value % (1 << 64) for value in padded))
    instructions = list(struct.iter_unpack("=HBBI", code))
    at = value = 0
    while True:
        operation, if_true, if_false, operand = instructions[at]
        at += 1
        if operation == 0x06:
            return operand
        if operation == 0x20:
            [value] = struct.unpack_from("=I", data, operand)
        elif operation == 0x54:
            value &= operand
        else:
            true = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[operation]
            at += if_true if true else if_false


def refusal(number: int) -> int:
    return 0x50000 | number


def by_table(machine: str, *, strong: bool) -> dict[int, int]:
    """What a filter must decide when every argument is one that is let through; by number."""
    always = [*(group.calls for group in (*UNDER_ANY_ARGUMENTS, LEADING, *SIGNALLING))]
    always += [checked.calls for checked in (*CHECKED, *([ENTERING] if strong else []))]
    wanted = dict.fromkeys(range(OPERATIONS), refusal(errno.ENOSYS))
    for verdict, tables in (
        (ALLOWED, always),
        (ALLOWED if strong else refusal(0), [MARKING.calls]),
        (ALLOWED if strong else refusal(errno.EPERM), [SHORTENING.calls]),
        (refusal(0), [IGNORED.calls]),
        (refusal(errno.EPERM), [REFUSED.calls, *([] if strong else [ENTERING.calls])]),
    ):
        for number in (number for calls in tables for number in numbers(calls, machine).values()):
            assert wanted[number] == refusal(errno.ENOSYS), f"{number} stands in two tables"
            wanted[number] = verdict
    return wanted


GOOD = {"open": (0, 0o102), "openat": (0, 0, 0o102), "mmap": (0, 0, 0, 0x22), "futex": (0, 128 | 256 | 9)}
GOOD |= {"madvise": (0, 0, 4), "fcntl": (0, 4, 0o4000), "clone": (0x1200011,), "ioctl": (0, 0x5401), "prctl": (1, 9)}
GOOD |= {"prlimit64": (0,), "socketpair": (1, 1 | 0x80000), "sendto": (0, 1 << 40, 0, 0, 0), "setsockopt": (0, 1, 7)}
GOOD |= {"getsockopt": (0, 1, 3), "arch_prctl": (0x1002,), "setns": (512,)}
"""Arguments that are let through; for other calls 0 is."""


@pytest.mark.parametrize(("machine", "strong"), list(itertools.product(MACHINES, [True, False])))
def test_a_filter_lets_through_what_the_tables_say_and_nothing_else(machine, strong):
    code = program(machine, strong=strong)
    names = {n: name for row in (*CHECKED, ENTERING) for name, n in numbers(row.calls, machine).items()}
    wanted = by_table(machine, strong=strong)
    found = {number: decided(code, machine, number, *GOOD.get(names.get(number, ""), ())) for number in wanted}
    assert found == wanted
    assert len(code) // 8 < 4096  # the kernel's limit


@pytest.mark.parametrize("machine", MACHINES)
def test_arguments_that_are_checked_are_refused_unless_they_are_listed(machine):
    code = program(machine, strong=True)
    for row in (*CHECKED, ENTERING):
        for name, number in numbers(row.calls, machine).items():
            for check in row.checks:
                good = list(GOOD.get(name, ())) + [0] * (6 - len(GOOD.get(name, ())))

                def verdict(value: int, argument: int = check.argument) -> int:
                    return decided(code, machine, number, *good[:argument], value, *good[argument + 1 :])  # noqa: B023

                no, [first, *_] = refusal(check.refusal), check.values.values()
                match check.rule:
                    case "one_of":
                        for value in (*range(300), *range(1000, 1100), 1 << 31, 0x53564D41, 0x1001, 0x5412, 0x80801):
                            if value & ~sum(check.besides.values()) not in check.values.values():
                                assert verdict(value) == no, (name, value)
                    case "none_of":
                        assert {verdict(bit) for bit in check.values.values()} == {no}
                    case "pretended":
                        assert {verdict(value) for value in check.values.values()} == {refusal(0)}
                    case "null":
                        assert {verdict(1), verdict(1 << 32), verdict(-1)} == {no}
                    case "at_least":
                        assert verdict(first - 1) == no
                    case "when":
                        good[check.argument] = first
                        bad = list(check.then.values.values()) if check.then.rule == "none_of" else [1, 18]
                        assert {verdict(value, check.then.argument) for value in bad} == {refusal(check.then.refusal)}


@pytest.mark.parametrize("machine", MACHINES)
def test_no_signal_lets_a_stopped_session_go_on_but_the_servers(machine):
    for group in SIGNALLING:
        for number in numbers(group.calls, machine).values():
            before = [0] * group.argument
            for code, wanted in (
                (program(machine, strong=True), refusal(errno.EPERM)),
                (program(machine, strong=True, may_continue=True), ALLOWED),
            ):
                assert decided(code, machine, number, *before, SIGCONT) == wanted
                assert decided(code, machine, number, *before, 9) == ALLOWED


@pytest.mark.parametrize("machine", MACHINES)
def test_the_second_filter_of_a_child_refuses_what_sealed_it_off_and_nothing_else(machine):
    code = sealing_program(machine)
    rows = [LEADING.calls, ENTERING.calls, *(row.calls for row in CHECKED)]
    known = {name: number for calls in rows for name, number in numbers(calls, machine).items()}
    refused = {number for number in range(OPERATIONS) if decided(code, machine, number, 5) != ALLOWED}
    assert refused == {known[name] for name in SEALED} - {known["prctl"]}
    options = {option for option in range(200) if decided(code, machine, known["prctl"], option) != ALLOWED}
    assert options == set(SEALED_PRCTLS.values())


@pytest.mark.parametrize("machine", MACHINES)
def test_other_interfaces_of_the_kernel_end_the_process(machine):
    other = next(name for name in MACHINES if name != machine)
    code = program(machine, strong=True)
    assert decided(code, other, 0) == 0x80000000
    assert decided(code, machine, 0x40000000) == (0x80000000 if machine == "x86_64" else refusal(errno.ENOSYS))


def test_what_no_filter_can_look_into_does_not_exist():
    code = program("x86_64", strong=True)
    said = {decided(code, "x86_64", number) for number in numbers(MISSING.calls, "x86_64").values()}
    assert said == {refusal(errno.ENOSYS)}


def test_a_machine_without_a_table_is_refused():
    with pytest.raises(KeyError):
        program("riscv64", strong=False)

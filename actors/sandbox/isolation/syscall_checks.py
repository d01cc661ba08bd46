"""What the seccomp filter asks of an argument of a system call; ``syscalls`` makes instructions of it."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class OneOf:
    """The argument has to be one of ``values``, by name."""

    argument: int
    values: dict[str, int]
    refusal: int = errno.EPERM


@dataclass(frozen=True, slots=True)
class Without:
    """The argument may have none of ``bits``, by name."""

    argument: int
    bits: dict[str, int]
    refusal: int = errno.EPERM


@dataclass(frozen=True, slots=True)
class MaskedOneOf:
    """The argument has to be one of ``values`` once the bits of ``ignored`` are taken away."""

    argument: int
    ignored: dict[str, int]
    values: dict[str, int]
    refusal: int = errno.EPERM


@dataclass(frozen=True, slots=True)
class Pretended:
    """Where the argument is one of ``values``, the call reports success and does nothing."""

    argument: int
    values: dict[str, int]


@dataclass(frozen=True, slots=True)
class Null:
    """The argument, a pointer, has to be NULL."""

    argument: int
    refusal: int = errno.EPERM


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The argument has to be ``value`` or more."""

    argument: int
    value: int
    refusal: int = errno.EPERM


@dataclass(frozen=True, slots=True)
class When:
    """Where the argument is ``value``, another check holds too."""

    argument: int
    name: str
    value: int
    then: OneOf | Without | Null


Check: TypeAlias = OneOf | Without | MaskedOneOf | Pretended | Null | AtLeast | When

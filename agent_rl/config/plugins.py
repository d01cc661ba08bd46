"""Code of the user's own that an actor calls, and what is said when it breaks its role's contract.

Such code is a filter's ``select``, a scheduler's placement, a generator's format, an executor's tools, a learner's loss. It is
tried before anything starts where that is cheap (``Actor.probe``), and what it returns is looked at every time: a run that
would train on rubbish stops instead, with the reason.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_ROOT = Path(__file__).parents[2]
_ELSEWHERE = (sysconfig.get_paths()["stdlib"], str(_ROOT / "agent_rl"), str(_ROOT / "actors"))


class ContractError(Exception):
    """Code of the user's own does not do what its role promises; the message says what it did, and with what."""


def called(name: str, call: Callable[[], T], given: str) -> T:
    """What ``call`` returns. Raises ContractError when it raises: ``name`` is what was called, ``given`` on what."""
    try:
        return call()
    except ContractError:
        raise
    except Exception as error:
        raise ContractError(f"{name} fails {given} with {described(error)}") from error


def needs_start(error: BaseException, actor: object) -> bool:
    """Whether code fails for want of an attribute of ``actor``: its ``start`` makes it, and a trial before cannot say more."""
    cause = error.__cause__
    return isinstance(cause, AttributeError) and cause.obj is actor


def described(error: BaseException) -> str:
    """An exception's type and message, and where in the user's own code it was raised."""
    place = place_of(error)
    return f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")


def place_of(error: BaseException) -> str:
    """``file, line n`` of the innermost frame that is neither this package's nor a library's; empty when there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""


def _is_own(file: str) -> bool:
    return not file.startswith(("<", *_ELSEWHERE)) and "site-packages" not in file

"""Files that may be none, JSON in them, with one kind of error for every fault, and values that JSON can hold."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO


class JsonError(ValueError):
    """A text is not valid JSON; the message says why, and where in the text."""


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises JsonError, also for too deep nesting and numbers of thousands of digits."""
    try:
        return json.loads(text)
    except RecursionError:
        raise JsonError("JSON nested too deeply") from None
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise JsonError(f"not JSON ({error.msg} at {place})") from error
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 ({error.reason} at byte {error.start})") from error
    except ValueError as error:  # Python's limit on the digits of an integer
        raise JsonError("a number has thousands of digits; write it as text, in quotes") from error


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError, also for a pipe or a device: reading one may have no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_json(path: Path) -> Any:
    """The value in a file. Raises OSError, and JsonError for what is not JSON."""
    with open_file(path) as file:
        return parse_json(file.read())


def json_value(value: Any) -> Any:
    """The value as JSON can hold it: arrays and tuples as lists, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {key: json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if hasattr(value, "tolist"):  # an array or a number of numpy
        return json_value(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value

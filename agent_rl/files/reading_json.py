"""Files of others, which may be none or endless, JSON in them with one kind of error, and values that JSON can hold."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, AnyStr, BinaryIO

MOST_BYTES, LINE_LENGTH = 256 << 20, 64 << 20
"""Of a file that is read whole, and of a line of one that is read line by line."""
MAX_DEPTH = 100
"""Levels of others' JSON. Python's own limit would be met later, where a value is shown, written or sent."""


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


def sound_json(text: bytes) -> Any:
    """The value of JSON that others wrote, as it can travel: half of a surrogate pair becomes U+FFFD. Raises JsonError,
    also for more than ``MAX_DEPTH`` levels.
    """

    def sound(value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise JsonError(f"JSON nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, str):
            return sound_text(value)
        if isinstance(value, list):
            return [sound(each, depth + 1) for each in value]
        if isinstance(value, dict):
            return {sound_text(key): sound(each, depth + 1) for key, each in value.items()}
        return value

    return sound(parse_json(text), 0)


def sound_text(text: str) -> str:
    """The text with U+FFFD in place of each half of a surrogate pair, which no encoding has."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError, also for a pipe or a device: reading one may have no end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most ``most`` bytes. Raises OSError."""
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > most:  # it may have holes, and be larger than the disk
            raise OSError(errno.EFBIG, f"it has more than {most} bytes", str(path))
        return file.read(most)


def lines_of(file: IO[AnyStr], most: int = LINE_LENGTH) -> Iterator[AnyStr]:
    """The lines of an open file. Raises OSError for one of more than ``most`` characters or bytes."""
    while line := file.readline(most + 1):
        if len(line) > most:
            raise OSError(errno.EFBIG, f"a line has more than {most} characters")
        yield line


def read_text(path: Path, most: int = MOST_BYTES) -> str:
    """Likewise, of UTF-8 with or without its mark. Raises OSError and UnicodeDecodeError."""
    return read_bytes(path, most).decode("utf-8-sig").replace("\r\n", "\n")


def read_json(path: Path) -> Any:
    """The value in a file. Raises OSError, and JsonError for what is not JSON."""
    return parse_json(read_bytes(path))


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where there is none that can be read."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def json_value(value: Any) -> Any:
    """The value as JSON can hold it: arrays and tuples as lists, numbers that are not finite as null."""
    if isinstance(value, Mapping):
        return {key: json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(each) for each in value]
    if hasattr(value, "tolist"):  # an array or a number of numpy
        return json_value(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Secrets in settings: which values are secrets, what people see of them, and values that are in the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from typing import Any

WORDS = frozenset(
    {"auth", "authorization", "credential", "key", "passphrase", "password", "passwd", "pwd", "secret", "token"}
)
"""A setting is a secret if its name has one of these words, also in the plural: ``api_key``, ``accessToken``. A
``key_column`` is none.
"""
HIDDEN = "(a secret)"
"""What reports, journals and messages hold in place of a secret. A changed secret is no other setting."""
_REFERENCE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")


def is_secret(name: str) -> bool:
    """Whether a setting of this name is a secret."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    return "column" not in words and any(word in WORDS or word.removesuffix("s") in WORDS for word in words)


def redacted(settings: Any, names: Collection[str] = ()) -> Any:
    """Settings with HIDDEN in place of secrets: the texts under the ``names``, and under names of secrets at any depth.

    Values of the form ``env:NAME`` tell no secret, and stay.
    """
    if isinstance(settings, Mapping):
        return {
            key: _covered(value) if key in names or is_secret(str(key)) else redacted(value)
            for key, value in settings.items()
        }
    return [redacted(item) for item in settings] if isinstance(settings, list | tuple) else settings


def _covered(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _covered(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_covered(item) for item in value]
    return HIDDEN if isinstance(value, str) and value and not _REFERENCE.fullmatch(value) else value


def with_environment(settings: Any) -> Any:
    """Settings with the environment variable NAME of this host for each value ``env:NAME``.

    Raises LookupError when there is no such variable.
    """
    if isinstance(settings, Mapping):
        return {key: with_environment(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [with_environment(value) for value in settings]
    if isinstance(settings, str) and (match := _REFERENCE.fullmatch(settings)):
        if match[1] not in os.environ:
            raise LookupError(f"the environment variable {match[1]} is not set on this host; export it first")
        return os.environ[match[1]]
    return settings

"""Secrets in settings: which values are secrets, what people see of them, and values that are in the environment."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Secret, SecretBytes, SecretStr

WORDS = frozenset(
    {"auth", "authorization", "bearer", "cookie", "credential", "jwt", "key", "passphrase", "password", "passwd", "pin"}
    | {"pwd", "secret", "token"}
)
"""A setting is a secret if its name has one of these words, also in the plural or joined to another: ``api_key``,
``accessToken``, ``apikeys``. A ``key_column`` is none.
"""
_JOINED = re.compile(r"(api|access|auth|private|secret|client)(key|token|secret)s?")
_NUMBERS = re.compile(r"pass(word|wd|phrase)|pwd|pin|secret")
"""Names of secrets that are numbers too; ``max_tokens`` is none."""
_TELLING = re.compile(r"\w+://[^/@\s]*:[^/@\s]+@\S*|(authorization|cookie|x-api-key)\s*:.+", re.IGNORECASE)
"""Texts that are secrets under any name: a URL with its password, a header."""
HIDDEN = "(a secret)"
"""What reports, journals and messages hold in place of a secret. A changed secret is no other setting."""
_REFERENCE = re.compile(r"env:([A-Za-z_][A-Za-z0-9_]*)")


def without(secrets: Iterable[str], text: str) -> str:
    """A text without the values of secrets."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


def is_secret(name: str) -> bool:
    """Whether a setting of this name is a secret."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    return "column" not in words and any(
        word in WORDS or word.removesuffix("s") in WORDS or _JOINED.fullmatch(word) for word in words
    )


def is_reference(value: Any) -> bool:
    """Whether a value is ``env:NAME``."""
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def redacted(settings: Any, annotation: Any = None) -> Any:
    """Settings with HIDDEN in place of secrets at any depth: texts under names of secrets, and values of secret types.

    ``annotation`` is the type of the settings, whose models, dataclasses and typed dictionaries say the types within.
    Values of the form ``env:NAME`` tell no secret, and stay.
    """
    return _redacted(settings, list(_parts(annotation)))


def _redacted(value: Any, types: list[Any]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _covered(item, str(key)) if is_secret(str(key)) else _redacted(item, [*types, *_types_of(types, key)])
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_redacted(item, types) for item in value]
    secret = any(isinstance(each, type) and issubclass(each, SecretStr | SecretBytes | Secret) for each in types)
    told = secret and value is not None and not is_reference(value)
    return HIDDEN if told or (isinstance(value, str) and _TELLING.fullmatch(value)) else value


def _parts(annotation: Any) -> Iterator[Any]:
    """A type and all types that it is written of: ``X`` of ``list[X]``, ``X | None`` and ``Annotated[X, ...]``."""
    yield annotation
    alias = (getattr(annotation, name, None) for name in ("__supertype__", "__value__"))
    for part in (typing.get_origin(annotation), *alias, *typing.get_args(annotation)):
        if part is not None:
            yield from _parts(part)


def _types_of(types: list[Any], key: str) -> Iterator[Any]:
    """The types of a key in those of ``types`` that have fields."""
    for kind in types:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            for name, field in kind.model_fields.items():
                if key in {name, field.alias, str(field.validation_alias)}:
                    yield from _parts(field.annotation)
        elif isinstance(kind, type):
            try:
                hints = typing.get_type_hints(kind)
            except (NameError, TypeError):  # imported for type checkers alone
                continue
            yield from _parts(hints.get(key))


def _covered(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _covered(item, name) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_covered(item, name) for item in value]
    number = isinstance(value, int | float) and not isinstance(value, bool) and _NUMBERS.search(name.lower())
    return HIDDEN if number or (isinstance(value, str) and value and not is_reference(value)) else value


def with_environment(settings: Any) -> Any:
    """Settings with this host's environment variable NAME for each ``env:NAME``. Raises LookupError without one."""
    if isinstance(settings, Mapping):
        return {key: with_environment(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple):
        return [with_environment(value) for value in settings]
    if isinstance(settings, str) and (match := _REFERENCE.fullmatch(settings)):
        if match[1] not in os.environ:
            raise LookupError(f"the environment variable {match[1]} is not set on this host; export it first")
        return os.environ[match[1]]
    return settings

"""Markup as nested calls that escape: every string that was not made as markup here appears as text."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_BIDI = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_INVISIBLE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def visible(value: str) -> str:
    """``value`` with invisible characters, and those that change the direction of reading, replaced by visible ones.

    Control characters become their pictures. Characters that reorder text, and surrogates, become their numbers.
    """
    return _INVISIBLE.sub(_picture, value)


def text(value: str) -> Markup:
    """Untrusted text as an element's text, or as an attribute's value. Markup stays as it is."""
    return value if isinstance(value, Markup) else escape(visible(value))


def join(*parts: str | None) -> Markup:
    """Concatenate the parts; those that are not markup become text."""
    return Markup("").join(text(part) for part in parts if part)


def tag(name: str, /, *content: str | None, **attributes: str | float | None) -> Markup:
    """An element. ``class_`` becomes ``class``, ``stroke_width`` becomes ``stroke-width``; None omits an attribute."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value) if isinstance(value, str) else number(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{join(*content)}</{name}>")  # noqa: S704 - every part is escaped


def number(value: float) -> str:
    """A coordinate: one decimal is a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


def _picture(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"\u27e8U+{code:04X}\u27e9"

"""What self-contained pages share: templates that escape, and a policy that lets nothing else than the page act."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from agent_rl.observe.charts.markup import visible
from agent_rl.observe.charts.scales import compact, percent


def source(package: str, name: str) -> str:
    """A file of the folder ``templates`` of a package."""
    return files(package).joinpath("templates", name).read_text(encoding="utf-8")


def templates(package: str) -> Environment:
    """A package's templates, in which line ends, with the spaces around them, are dropped. Other spaces are kept.

    Every value is escaped, with hidden characters made visible.
    """
    environment = Environment(
        loader=FunctionLoader(lambda name: "".join(line.strip() for line in source(package, name).splitlines())),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.filters |= {
        "commas": lambda count: f"{count:,}",
        "compact": compact,
        "count_of": lambda count, what: f"{count:,} {what}" + ("" if count == 1 else "s"),
        "percent": percent,
    }
    return environment


def content_policy(style: str, script: str = "") -> str:
    """A content security policy that names the hashes of the page's style and script, and permits nothing else."""
    scripts = f"script-src '{_hash(script)}'; " if script else ""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; {scripts}img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""Chat templates, compiled and tried with jinja2 alone."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


def compiled(template: str) -> Template:
    """A chat template with the functions and blocks that transformers gives it. Raises jinja2.TemplateSyntaxError."""
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block that transformers adds to Jinja's own."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refuse(message: object) -> None:
        raise jinja2.TemplateError(str(message))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)  # Jinja's own escapes HTML
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment.from_string(template)


def template_fault(template: str) -> str:
    """Why a chat template cannot be compiled, or why it refuses a conversation with tools; empty for a valid one."""
    import jinja2

    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": role} for role in roles]
    try:
        ready = compiled(template)
    except jinja2.TemplateSyntaxError as error:
        return f"cannot be compiled: line {error.lineno}: {error.message}"
    except (RecursionError, MemoryError, ValueError) as error:
        return f"cannot be compiled: {error}"
    try:
        ready.render(messages=messages, add_generation_prompt=True, bos_token="", eos_token="")
    except Exception as error:  # noqa: BLE001 - a template may need what only transformers has; the start tries it
        refused = type(error) is jinja2.TemplateError
        return f"refuses a conversation of system, user, assistant and user: {error}" if refused else ""
    return ""

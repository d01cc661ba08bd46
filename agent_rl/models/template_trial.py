"""Chat templates, compiled and tried with jinja2 alone; as a command, the fault of the template on standard input."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template

TRIAL_SECONDS = 20.0
"""A trial takes 0.3 s. Jinja's sandbox bounds each ``range``, and neither loops within loops nor recursion."""
TRIAL_BYTES = 2 << 30
"""Address space of a trial."""


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


@cache
def template_fault(template: str) -> str:
    """Why a chat template cannot be compiled, or why it refuses a conversation with tools; empty for a valid one.

    It is tried in a process of its own, since a template may never end, or take all memory.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        tried = subprocess.run(
            [sys.executable, "-m", __name__],
            input=template.encode(errors="surrogatepass"),
            env=environment,
            capture_output=True,
            timeout=TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not render four short messages within {TRIAL_SECONDS:g} s: a loop or a macro in it does not end"
    if tried.returncode:
        last = (tried.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        return f"ended the process that tried it, with exit code {tried.returncode}: {last}"
    return tried.stdout.decode()


def _tried(template: str) -> str:
    """The fault, found in this process."""
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
    except MemoryError:
        return f"takes more than {TRIAL_BYTES >> 30} GiB of memory to render four short messages"
    except Exception as error:  # noqa: BLE001 - a template may need what only transformers has; the start tries it
        refused = type(error) is jinja2.TemplateError
        return f"refuses a conversation of system, user, assistant and user: {error}" if refused else ""
    return ""


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))
    sys.stdout.buffer.write(_tried(sys.stdin.buffer.read().decode(errors="surrogatepass")).encode(errors="replace"))

"""How a benchmark is called: its options are the fields of its dataclass ``Options``, its help is its docstring.

``python -m benchmarks.command SUBJECT ...`` is ``agent-rl bench SUBJECT ...``.
"""

import importlib
import inspect
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from agent_rl.config.user_modules import look_in_working_directory

Overrides = Annotated[tuple[str, ...], Parameter(name="--set")]
"""As for ``agent-rl run``: ``dotted.key=value``, any number of times."""
Hidden = Annotated[tuple[str, ...], Parameter(show=False)]
"""Arguments of a process that the benchmark itself starts."""


ENDING_SECONDS = 10.0


class Failure(Exception):  # noqa: N818  (named for what it is)
    """The benchmark ends with this message on stderr and exit code 1."""

    code = 1


class WrongOptions(Failure):
    """The options ask for something that cannot be measured; the exit code is 2."""

    code = 2


def call(subject: str, arguments: Sequence[str]) -> int:
    """Call ``benchmarks.bench_SUBJECT.main`` with its options; returns the exit code."""
    module: Any = importlib.import_module(f"benchmarks.bench_{subject}")
    app = App(
        f"agent-rl bench {subject}",
        help=inspect.cleandoc(module.__doc__),
        help_format="plaintext",
        version_flags=(),
        default_parameter=Parameter(negative=(), consume_multiple=True),
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )

    def main(options: Annotated[module.Options, Parameter(name="*")]) -> int:
        return int(module.main(options))

    if all(field.default is not MISSING for field in fields(module.Options)):  # cyclopts then asks for a default
        main.__defaults__ = (module.Options(),)
    app.default(main)
    try:
        return app(arguments) or 0
    except CycloptsError as error:
        failure: Failure = WrongOptions(f"{' '.join(str(error).split())} (--help lists the options)")
    except Failure as raised:
        failure = raised
    print(f"agent-rl bench {subject}: {failure}", file=sys.stderr)
    return failure.code


@contextmanager
def helper(subject: str, *arguments: object) -> Iterator[None]:
    """A process that runs the subject with these arguments until the block ends."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.command", subject, *map(str, arguments)])
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    look_in_working_directory()
    sys.exit(importlib.import_module("benchmarks.command").call(sys.argv[1], sys.argv[2:]))  # whose Failure is raised

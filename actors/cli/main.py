"""The command line, ``agent-rl``.

A command is a function in a module of this package, and one row of `COMMANDS`. Parameters of the function before ``/``
are positional, those after ``*`` are options; `actors.cli.parameters` has those that several commands share. The
function returns the exit code, or None for 0. It raises `Mistake` for a mistake of the user, which becomes one message
on stderr and exit code 2, without a traceback. The module is imported when its command is called.
"""

from __future__ import annotations

import errno
import importlib.metadata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from cyclopts import App, CycloptsError, Group, Parameter

from actors.cli.output import MISTAKE, Mistake, complain, drop_output, hold_standard_files, say
from actors.runtime.interrupts import INTERRUPTED, raise_from_now_on
from agent_rl.config.user_modules import look_in_working_directory

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

REFUSED_PATHS = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EROFS}
"""What the system answers where a path that the user named cannot be used, whoever comes to ask first."""
IN_ORDER = {"run", "eval", "serve", "up", "up-host", "serve-tools", "view"}
"""Commands with something to end in order at an interrupt. They say themselves from when on."""

NAME_WIDTH = 30
"""Of the left column of help; longer names take a second line."""


class Command(NamedTuple):
    """A row of `COMMANDS`."""

    name: str
    function: str
    """``module:function`` below ``actors.cli``, or ``module:app`` for commands with commands of their own."""
    help: str
    own_flags: bool = False
    """Whether ``--help`` and ``--version`` are arguments like others, which the function looks at."""
    hidden: bool = False
    """Whether only this program calls it."""


COMMANDS = {
    "Runs": (
        Command("new", "new:new", "Write a folder with a topology, an environment and its test."),
        Command("check", "topologies:check", "Find all faults of a topology file, or call it sound."),
        Command("run", "topologies:run", "Run a topology file, or continue its run."),
        Command("status", "status:status", "Say which processes of a run are wanted, and which are there."),
        Command("swap", "changes:swap", "Give an actor of a run under way another class or other settings."),
        Command("scale", "changes:scale", "Give a role of a run under way another number of processes."),
        Command("drain", "changes:drain", "Stop the actors of a host; the run goes on without them."),
        Command("stop", "changes:stop", "Stop a run under way in order, with a checkpoint."),
        Command("view", "view:view", "Show runs on a live page in the browser; several beside each other."),
        Command("report", "records:report", "Make report.html from a run directory; every run ends with it."),
        Command("audit", "records:audit", "Check that no group of a run was lost, trained twice or trained too late."),
        Command("export", "records:export", "Write the trajectories of a run as JSON lines or Parquet."),
        Command("compare", "compare:compare", "Compare runs: settings, success with intervals, whether they differ."),
    ),
    "Models and data": (
        Command("eval", "evaluation:evaluate", "Evaluate a model on problems, or compare two results."),
        Command(
            "audit-reward", "audit_reward:audit_reward", "Ask a reward function a thousand answers; print its errors."
        ),
        Command("mismatch", "mismatch:mismatch", "Compare the log-probabilities of rollouts with their model's."),
        Command("chat", "chat:chat", "Talk to a model with its tools in the terminal."),
        Command("serve", "serving:serve", "Serve a model with its tools over HTTP, as OpenAI and Anthropic do."),
        Command("model", "models:app", "Import a model from a GGUF file; give tokens rows."),
        Command("mcp", "mcp:mcp", "Ask the MCP servers of a topology for their tools, and keep the lists in files."),
        Command("data", "data:app", "Prepare data: fetch problems, make conversations."),
    ),
    "Machines": (
        Command("bench", "bench:bench", "Measure: transport, rollout, overlap, throughput, ...", own_flags=True),
        Command("up", "up:up", "Start all hosts of a topology over ssh, show one table, and stop them all."),
        Command("up-host", "up:up_host", "Start one host as `up` orders it.", hidden=True),
        Command("conformance", "conformance:conformance", "Check a gateway by its URL against the traps of training."),
        Command("serve-tools", "serve_tools:serve_tools", "Serve the sandbox over HTTP to trainers of other projects."),
        Command("doctor", "doctor:doctor", "Look at this machine, and try an engine and a step on each device."),
        Command("keys", "keys:keys", "Make the key that hosts of one run share."),
    ),
}
"""By the heading under which ``agent-rl --help`` shows them, in its order."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``agent-rl``; returns the exit code."""
    hold_standard_files()
    look_in_working_directory()
    try:
        return _called(arguments)
    except CycloptsError as error:
        called = " ".join(["agent-rl", *(error.command_chain or ())])
        return _told([f"{called}: {' '.join(str(error).split())} ({called} --help tells what there is)"])
    except Mistake as mistake:
        return _told(mistake.lines)
    except (KeyboardInterrupt, BaseExceptionGroup) as error:  # a nursery makes a group of an interrupt
        if isinstance(error, BaseExceptionGroup) and error.split(KeyboardInterrupt)[1] is not None:
            raise
        complain("agent-rl: interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        drop_output()
        return 1
    except OSError as error:
        if error.filename is None or error.errno not in REFUSED_PATHS:
            raise
        return _told(
            [f"agent-rl: {error.filename}: {error.strerror}; name another path, or get the right to use this one"]
        )


def _called(arguments: Sequence[str] | None) -> int:
    app = command_line()
    names, path, rest = app.parse_commands(arguments)
    if path[-1].default_command is None and not rest:
        commands = ", ".join(name for name in path[-1] if not name.startswith("-"))
        raise Mistake(f"name a command: {commands}; {' '.join(['agent-rl', *names])} --help describes them")
    if not IN_ORDER.intersection(names):
        raise_from_now_on()
    return app(arguments) or 0


def _told(lines: Sequence[str]) -> int:
    for line in lines:
        complain(line)
    return MISTAKE


def command_line() -> App:
    """The parser of the command line, with all commands."""
    app = App(
        "agent-rl",
        help="Train language models to use tools by reinforcement learning.",
        help_format="plaintext",
        help_formatter=_Columns(),
        version=_version,
        default_parameter=Parameter(negative=(), show_default=_default_shown),
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    headings = [Group(heading, sort_key=place) for place, heading in enumerate((*COMMANDS, "Other"))]
    for heading, commands in zip(headings, COMMANDS.values(), strict=False):
        for place, command in enumerate(commands):
            flags = {"help_flags": (), "version_flags": ()} if command.own_flags else {}
            function = f"actors.cli.{command.function}"
            shown = not command.hidden
            app.command(
                function, name=command.name, help=command.help, group=heading, sort_key=place, show=shown, **flags
            )
    app.command(_install_completion, name="--install-completion", group=headings[-1])
    for flag in ("--help", "--version"):
        app[flag].group = headings[-1]
    return app


def _install_completion(
    *, shell: Annotated[Literal["bash", "zsh", "fish"] | None, Parameter(help="left out: the one you are in")] = None
) -> None:
    """Install completion for bash, zsh or fish."""
    from cyclopts.completion.detect import ShellDetectionError

    try:
        place = command_line().install_completion(shell=shell)
    except ShellDetectionError as error:
        raise Mistake("the shell is not known; name it, as in --shell bash") from error
    say(f"wrote {place}; new shells complete agent-rl")


class _Columns:
    """Help in two columns below headings, without boxes: the same on a terminal and in a pipe."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Show a list of commands or parameters."""
        from cyclopts.help.specs import DescriptionRenderer, NameRenderer
        from rich.padding import Padding
        from rich.table import Table

        del options
        if panel.entries:
            table = Table.grid(padding=(0, 2))
            for entry in panel.entries:
                table.add_row(NameRenderer(NAME_WIDTH)(entry), DescriptionRenderer()(entry))
            console.print(f"{panel.title}:", Padding(table, (0, 0, 1, 2), expand=False), sep="\n")

    def render_usage(self, console: Console, options: ConsoleOptions, usage: object) -> None:
        """Show the first line."""
        del options
        console.print(f"Usage: {usage}", markup=False, highlight=False)


def _default_shown(value: object) -> str | None:
    """A default as help shows it; none where it only says that a value is left out."""
    return None if value is None or value is False or value in ("", ()) else str(value)


def _version() -> str:
    try:
        return f"agent-rl {importlib.metadata.version('agent-rl')}"
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return "agent-rl (not installed)"

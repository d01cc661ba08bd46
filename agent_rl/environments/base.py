"""The parts of a task: its problems, its tools, its judgement of a rollout, and its answers to turns without a tool
call.

::

    TaskSource --Problem--> Environment.prompt --messages--> the model's turns
      |  a turn calls a tool --> Tool.call --ToolOutput--> Tool.render --text--> next turn
      |  a turn calls none   --> Environment.observe --Observation--> next turn
      `  the rollout ends    --> judge_at_once, or judge in an executor --> Judgement

An environment is made in scheduler, generators, executors and learner alike, without side effects; ``seed`` and
``base`` (the topology file's folder) and its settings are keywords of its constructor. Nothing of it may depend on the
process it is asked in: the state of a rollout is a function of problem, seed and transcript, or a snapshot that travels
with the rollout.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from agent_rl.config.topology import Harness
    from agent_rl.environments.harness import HarnessOutcome

from agent_rl.messages import Judgement, Problem, ToolOutcome, Transcript

T = TypeVar("T")

ChatMessages: TypeAlias = Sequence[Mapping[str, str]]
"""Dictionaries with ``role`` (``system``, ``user`` or ``assistant``) and ``content``."""
SNAPSHOT_BYTES = 64 * 1024
"""The most that the state of a rollout may take."""


class TaskError(Exception):
    """Tasks cannot be read as asked; the message says what is wrong, where, and what to do.

    ``key`` is the setting at fault, by its keys and indices, where there is one. ``missing`` is the file that does not
    exist. ``environment`` is the name of the environment, where it is known. ``parts`` are the errors that this one
    joins.
    """

    def __init__(
        self,
        message: str,
        key: tuple[str | int, ...] = (),
        *,
        missing: str = "",
        environment: str = "",
        parts: Sequence[TaskError] = (),
    ) -> None:
        super().__init__(message)
        self.key, self.missing, self.environment = key, missing, environment
        self._parts = parts

    @property
    def parts(self) -> Sequence[TaskError]:
        """The errors that this one joins, or this one alone."""
        return self._parts or (self,)


def joined(errors: Sequence[TaskError]) -> TaskError:
    """Several errors as one."""
    parts = [part for error in errors for part in error.parts]
    return parts[0] if len(parts) == 1 else TaskError("; ".join(map(str, parts)), parts=parts)


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A problem and a conversation about it, without a system message, for supervised training.

    ``messages`` are dictionaries with ``role`` and ``content``; the assistant's turns are what is trained on, tool
    responses stand in the user role.
    """

    problem: Problem
    messages: tuple[dict[str, str], ...]


class TaskSource(Protocol):
    """A source of tasks for the scheduler and the learner. Methods are pure functions of their arguments and the
    seed.
    """

    def problem(self, stage: int, number: int) -> Problem:
        """Training problem ``number`` (from 0, without end) of ``stage``."""

    def evaluation(self, number: int) -> Problem:
        """Held-out problem ``number``, from 0. Raises TaskError when there are none, or no more."""

    @property
    def evaluation_count(self) -> int | None:
        """How many held-out problems there are; None when they do not run out."""

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:
        """Demonstrations without end. Raises TaskError, at the call, when the source has none."""


class Context(Protocol):
    """The services of an executor for the code of tools and environments that it runs."""

    seed: int
    """The seed of the rollout."""
    rollout: str
    """Its name: where a sandbox keeps a session, it is this rollout's."""
    problem: Problem

    @property
    def log(self) -> Any:
        """The executor's structlog logger, with the rollout."""

    @property
    def deadline(self) -> float:
        """Seconds of the code's own work that are left; the executor cancels what takes longer.

        Runs in the sandbox, which have limits of their own, and waiting for a place there are not counted.
        """

    async def execute(self, code: str, stdin: str = "", *, seconds: float | None = None) -> ToolOutput:
        """Run untrusted Python in a fresh child of the sandbox."""

    async def run_cell(self, code: str, earlier: Sequence[str], *, seconds: float | None = None) -> ToolOutput:
        """Run untrusted Python after the cells ``earlier``; ``kept`` says whether it became one of them."""

    async def call(self, function: str, *arguments: str) -> ToolOutput:
        """Call ``module:name`` with texts in a fresh child of the sandbox, which sees that module of the user's and
        what it imports; ``value`` is the text that it returned. It may run what a model wrote.
        """

    async def check(self, function: str, *arguments: str) -> str:
        """The text that ``module:name``, trusted code, returns of untrusted texts, in a child of a checker, which never
        runs what a model wrote. Raises CheckError when the child dies of them, CheckUnavailableError when there was no
        checker.
        """

    async def ask_server(
        self, server: str, tool: str, arguments: Mapping[str, Any], *, again: bool = False
    ) -> ToolOutput:
        """Call a tool of an MCP server of the environment. ``again``: the rollout's own server has served it before.

        Raises BadArgumentError for arguments that the server refuses, and CheckUnavailableError where a judgement needs
        a server that does not start.
        """

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work in a thread of the executor. Work that goes on beyond the deadline keeps its thread."""


class CheckError(Exception):
    """A check died of the text it was given, or took too long: the text's doing, not the checker's.

    The message is one word: ``timeout``, ``memory_limit``, ``output_limit`` or ``crashed``.
    """


class CheckUnavailableError(Exception):
    """There was no checker, or it died of something other than the text: the check may be tried again."""


class BlockedError(BaseException):
    """Raised in code of users that blocks an actor's event loop. ``except Exception`` does not catch it.

    The message says for how long the code blocked the loop, where, and what to write.
    """


class BadArgumentError(Exception):
    """The arguments of a tool call are wrong; the message tells the model why."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """How a tool call ended. A tool's ``call`` may as well return a plain text, which is a success with that value.

    ``value`` of code is the representation of the last expression's value, empty for None; a traceback stands at the
    end of ``stderr``. ``state`` is the snapshot to come back with the rollout's next call of this tool, at most
    ``SNAPSHOT_BYTES``; None leaves it as it was. ``note`` is what the model is told of that state in any case.
    ``kept``: it was a cell, and the session has its state. ``run_seconds`` is the wall time of a child of the sandbox,
    ``queue_seconds`` all else between asking and getting its result.
    """

    outcome: ToolOutcome
    stdout: str = ""
    stderr: str = ""
    value: str = ""
    note: str = ""
    kept: bool = False
    state: bytes | None = None
    run_seconds: float = 0.0
    queue_seconds: float = 0.0


class Tool(Protocol):
    """A tool that the model may call. ``environments.tools.tool`` makes one of a typed Python function."""

    name: str
    schema: Mapping[str, Any]
    """The JSON schema of the function, as chat templates take it: ``{"type": "function", "function": {...}}``."""
    runs: Literal["sandbox", "host"]
    """Where its code runs: trusted code may run in the executor itself, with a deadline."""
    stateful: bool
    """Whether calls of one rollout build on each other: they run one after the other then, and carry the snapshot."""
    seconds: float | None
    """Deadline of a call, as of `Context.deadline`; None: the executor's."""

    async def call(self, arguments: Mapping[str, Any], state: bytes, context: Context) -> ToolOutput | str:
        """Run one call in an executor.

        What it raises is told to the model as an error of the tool, and BadArgumentError as a malformed call.
        """

    def render(self, output: ToolOutput) -> str:
        """The text that the model reads; runs in the generator, pure."""


@dataclass(frozen=True, slots=True)
class Observation:
    """An environment's answer to a turn without a tool call: what the model reads next.

    ``state`` is the snapshot to come back with the next turn, at most ``SNAPSHOT_BYTES``; None leaves it as it was.
    ``done`` ends the rollout: its ``messages`` stand in the transcript, and no model reads them.
    """

    messages: Sequence[Mapping[str, str]] = ()
    state: bytes | None = None
    done: bool = False


class Model(Protocol):
    """The model of a loop of the user's own."""

    async def __call__(self, messages: ChatMessages, *, max_tokens: int | None = None) -> str:
        """The next turn: the conversation so far in, the text that the model writes out, of at most so many tokens."""

    def branch(self) -> Model:
        """A conversation of its own beside this one, of the same rollout."""


Tools: TypeAlias = Mapping[str, Callable[..., Awaitable[str]]]
"""The environment's tools by name: arguments in, as keywords, the text that a model would read out."""
Rollout: TypeAlias = Callable[[Problem, Model, Tools], Awaitable[None]]
"""A loop of the user's own: it writes a rollout by awaiting the model, and may call tools. The rollout ends when it
returns.

Messages that go on from those of an earlier call, and the turn that it returned, as it was, continue its tokens; others
begin a branch. So every token is trained where it was sampled. See `agent_rl.rollout.conversation`. """


class Environment(Protocol):
    """A task. A class that derives from this one has all of it but ``problems``, ``prompt`` and a way to judge."""

    tools: Sequence[Tool] = ()
    """The tools that the model may call."""
    lists_tools: bool | Literal["template"] = True
    """Whether the prompt lists the tools; False for models that learn them from demonstrations. "template": the model's
    own chat template lists them, and also renders calls and results (`agent_rl.rollout.template`)."""
    checks: Sequence[str] = ()
    """The functions ``module:name`` that ``judge`` has checked: executors load their modules once, before any check. A
    module with a function ``warm_up`` has it called then, perhaps several times, without arguments."""
    observes: bool = False
    """Whether ``observe`` is asked about turns without a tool call; False where they end the rollout."""
    rollout: Rollout | None = None
    """A loop of its own in place of the agent loop, as a method: ``async def rollout(self, problem, model, tools)``."""
    harness: Harness | None = None
    """A program in place of the agent loop, from the topology."""

    @property
    def own_loop(self) -> bool:
        """Whether something else than the agent loop writes rollouts."""
        return self.rollout is not None or self.harness is not None

    def problems(self) -> TaskSource:
        """Training and held-out problems, and demonstrations. Problem ids are unique within the environment."""

    def files(self, problem: Problem) -> Mapping[str, str]:
        """The files, by path, with which a harness's folder begins: texts, or what `harness.packed` makes of bytes."""
        del problem
        return {}

    def check_files(self, problem: Problem) -> Mapping[str, str]:
        """The files, by path, of a harness's check, which come once the program has ended."""
        del problem
        return {}

    def check_fault(self, outcome: HarnessOutcome) -> str:
        """Why the check of a harness has decided nothing; "" where it has decided.

        The check is then tried on the problem's own files. If it decides nothing of these, its task is at fault, and
        the rollout is not judged. Else the program is at fault, and ``judge`` says what that costs.
        """
        del outcome
        return ""

    def image_folder(self, problem: Problem) -> str:
        """The folder of a Dockerfile that makes the image of a harness's container; "": the topology names one."""
        del problem
        return ""

    def prompt(self, problem: Problem) -> ChatMessages:
        """The conversation that the model's first turn continues; the chat format adds the tools."""

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement | None:
        """Judge where the rollout ends, in the generator: pure, within microseconds. None leaves it to ``judge``."""
        del problem, transcript
        return None

    async def judge(self, problem: Problem, transcript: Transcript, context: Context) -> Judgement:
        """Judge in an executor. What it raises is the environment's fault, not the model's."""
        del problem, transcript, context
        raise NotImplementedError(f"{type(self).__name__}.judge_at_once returned None, and there is no judge")

    async def observe(
        self, problem: Problem, transcript: Transcript, state: bytes, context: Context
    ) -> Observation | None:
        """Answer the last turn, which called no tool, in an executor; None ends the rollout."""
        del problem, transcript, state, context
        return None

    def control(self) -> tuple[Problem, Transcript] | None:
        """A rollout that ``judge`` must find successful, to test the checkers with; None where there is none."""
        return None

"""What becomes of the process of one actor: one table of states, pure. `actors.runtime.processes` carries it out.

`TABLE` has the states, and where each event leads.

::

    a death:  a mistake of the user, or code that blocks again and again --> the run fails
              it ended with those that it works with (`TOGETHER`) ---------> starting
              restarts are left -------------------------------------------> starting
              none is left, soon after a swap -----------------------------> waiting, until its role is swapped back
              none is left ------------------------------------------------> the run fails

    A process that the kernel killed for lack of memory, as the one before it, has none left.

    too late: draining --> killed      starting, on trial --> killed      successor --> killed, and nothing is replaced

A process is *on trial* from its start until it is ready where it takes the place of one by another plan, or was added
to a run under way. Every state waits for something that has a deadline, but for ``up``, ``waiting`` and the start of a
process that is not on trial, which the supervisor watches for silence.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, Literal, NamedTuple, ParamSpec, TypeAlias

from actors.exits import TOGETHER
from agent_rl.config.processes import ActorEntry
from agent_rl.groups.outages import FAULTS

USER_MISTAKE = 3
"""Exit status of an actor that a restart would not help. The actor leaves a message that says why."""
EARLY_SECONDS = 5.0
"""A process that ends by itself within this many seconds after it was ready has done no work."""
WALL_SECONDS = 3600.0
"""A process that the kernel kills for lack of memory, like the one before it, within this time would always be."""
ENDING = "the run is ending"

State: TypeAlias = Literal["idle", "starting", "up", "draining", "waiting", "gone"]
Event: TypeAlias = Literal[
    "start", "stop", "kill for good", "replace", "replace beside", "ready", "prepared", "ended", "late", "given up"
]
TABLE: Mapping[State, Mapping[Event, tuple[State, ...]]] = {
    "idle": {"start": ("starting",), "stop": ("gone",), "kill for good": ("gone",)},
    "starting": {
        "stop": ("draining",), "kill for good": ("draining",), "replace": ("draining",), "prepared": ("draining",),
        "ready": ("up",), "ended": ("starting", "waiting", "gone"),
    },
    "up": {
        "stop": ("draining",), "kill for good": ("draining",), "replace": ("draining",), "prepared": ("draining",),
        "ended": ("starting", "waiting", "gone"),
    },
    "draining": {"ended": ("starting", "gone")},
    "waiting": {
        "stop": ("gone",), "kill for good": ("gone",), "given up": ("gone",),
        "replace": ("starting",), "replace beside": ("starting",),
    },
    "gone": {},
}  # fmt: skip
"""Where an event leads from a state; any other leaves the process in its state, or may, as
`ProcessLifecycle` knows."""


@dataclass(frozen=True)
class Plan:
    """What the processes of a role are started with, apart from the topology file."""

    entry: ActorEntry
    drain_seconds: float
    environment: Mapping[str, str]
    since: int = 0
    """The generation of the swap that made it; 0: none did."""


@dataclass
class RestartBudget:
    """Limits restarts within a time window, and restarts in a row of a process that dies before it does any work.

    The second limit is needed for a process that loads a model for minutes and then dies. Such a process would never
    exceed the first limit.
    """

    restarts: int
    seconds: float
    within: str = ""
    """Part of the message when no restart is left: what the restarts are counted in."""
    _spent: deque[float] = field(default_factory=deque)
    _early: int = 0

    def spend(self, now: float, *, early: bool = False) -> bool:
        """Take a restart at time ``now``; False when none is left. ``early``: the process died before any work."""
        self._early = self._early + 1 if early else 0
        while self._spent and self._spent[0] <= now - self.seconds:
            self._spent.popleft()
        if len(self._spent) >= self.restarts:
            self.within = f"in {self.seconds:g} s"
            return False
        if self._early > self.restarts:
            self.within = "in a row, before it did anything,"
            return False
        self._spent.append(now)
        return True


class Ending(NamedTuple):
    """How a process ended."""

    status: int
    """The exit status; negative: the signal."""
    how: str
    """The status in words."""
    words: tuple[str, ...] = ()
    """The last lines that it wrote."""
    message: str = ""
    """Its last message to the user."""
    blocked_at: str = ""
    """The code of users in which its event loop stood when it was killed; empty if it did not."""
    lacked_memory: bool = False
    """Whether the kernel killed it for lack of memory."""

    @property
    def why(self) -> str:
        """The reason that it gave for a mistake of the user."""
        return self.message or (self.words[-1] if self.words else "cannot run as it is configured")


class Replaced(NamedTuple):
    """How a process was replaced."""

    fault: str
    """Why the new process does not run; empty: it runs."""
    seconds: float = 0.0
    """The time without a process that was ready."""


class Start(NamedTuple):
    """Start a process. ``beside``: as the successor of the present one. ``restarted``: one has died before it."""

    plan: Plan
    incarnation: int
    beside: bool = False
    restarted: bool = False


class Word(NamedTuple):
    """What the process does now: starting, restarting, stopping or stopped."""

    word: str


class Say(NamedTuple):
    """A line for the user."""

    text: str


class Fail(NamedTuple):
    """The run cannot go on."""

    reason: str
    exit_code: int


Signal: TypeAlias = Literal["terminate", "kill", "promote", "kill successor", "drop successor"]
"""What is done to the process, or to its successor. ``drop``: nobody waits for its end any more."""
Action: TypeAlias = Start | Word | Say | Fail | Replaced | Signal

P = ParamSpec("P")


def _listed(
    method: Callable[Concatenate[ProcessLifecycle, P], Iterator[Action]],
) -> Callable[Concatenate[ProcessLifecycle, P], list[Action]]:
    @wraps(method)
    def whole(self: ProcessLifecycle, /, *args: P.args, **kwargs: P.kwargs) -> list[Action]:
        return list(method(self, *args, **kwargs))

    return whole


class ProcessLifecycle:
    """The process of one actor, from the first to the last. Times are seconds of one clock.

    Every event returns what is to be done, in order.
    """

    def __init__(self, name: str, role: str, plan: Plan, incarnation: int, stderr: str, *, added: bool = False) -> None:
        """``stderr``: the file that messages name. ``added``: to a run that goes on without it, if it cannot start."""
        self.name, self.role = name, role
        self.state: State = "idle"
        self.incarnation = incarnation
        """That of the present process, or of the next one."""
        self.deadline = math.inf
        """When `elapsed` is due."""
        self.failure = ""
        """The last failure that the process reported in its status."""
        self.spent = ""
        """Why it waits until its role is swapped back; empty: it does not wait."""
        self._stderr = stderr
        self._use(plan)
        self._trial = added
        self._former: Plan | None = None
        """Where the process is on trial: the plan that holds if it cannot start; None: it is not started again."""
        self._adopted: Plan | None = None
        """By which the next process starts, whatever the present one ends of."""
        self._next: Plan | None = None
        """By which a process follows the one that drains, or by which the successor was started."""
        self._successor: Literal["", "preparing", "late", "prepared"] = ""
        self.killed_for = ""
        """Why the supervisor killed the process; empty: it did not, or for no reason that is worth a line."""
        self._blocked = 0
        """How many processes in a row were killed because code of users blocked them."""
        self._lacked = False
        """Whether the process before was killed for lack of memory."""
        self._died_at: float | None = None
        self._ready_at: float | None = None
        self._left_at = 0.0
        """When the process before the one on trial had ended."""

    def _use(self, plan: Plan) -> None:
        self.plan = plan
        self._budget = RestartBudget(plan.entry.restarts, plan.entry.restart_window_seconds)

    @property
    def stops(self) -> bool:
        """Whether no process follows the present one."""
        return self.state == "gone" or (self.state == "draining" and self._next is None)

    @property
    def _pending(self) -> bool:
        """Whether somebody waits for a `Replaced`."""
        return self._trial or self._next is not None

    # What is wanted.

    @_listed
    def start(self, now: float) -> Iterator[Action]:
        """Start the first process."""
        yield from self._begin(now, "starting")

    @_listed
    def stop(self, now: float, seconds: float) -> Iterator[Action]:
        """No process is wanted any more. The present one has so many ``seconds`` to stop in order."""
        if self.state in {"idle", "waiting"}:
            yield from self._over()
        elif self.state != "gone":
            due = self.deadline
            yield from self._give_up(Replaced("the run ended meanwhile"))
            yield Word("stopping")
            if self.state == "draining":  # a second SIGTERM would end it before it has drained
                self.deadline = min(due, now + seconds)
            else:
                self.state, self.deadline = "draining", now + seconds
                yield "terminate"

    @_listed
    def kill(self, reason: str = "", *, last: bool = False) -> Iterator[Action]:
        """Kill the process now. ``reason`` is in the notice of the restart. ``last``: no other one follows."""
        self.killed_for = reason
        if last and self.state in {"idle", "waiting"}:
            yield from self._over()
        elif self.state in {"starting", "up", "draining"}:
            if last:
                yield from self._give_up(Replaced("the run ended meanwhile"))
                self.state, self.deadline = "draining", math.inf
            yield "kill"

    @_listed
    def replace(self, plan: Plan, now: float, *, beside: bool) -> Iterator[Action]:
        """Let a process by another plan take the place of the present one; one `Replaced` says how that went.

        ``beside``: the new one gets ready first; if it cannot, the former one never stops. Unless the run ends, a
        process of the former plan is started again where the former one has stopped, and the new one does not run.
        """
        if self.state in {"idle", "draining", "gone"} or self._pending:
            yield Replaced(ENDING)
            return
        self._next = plan
        if self.state == "waiting":
            yield from self._succeed(now)
        elif beside:
            self._successor, self.deadline = "preparing", now + plan.entry.start_seconds
            yield Start(plan, self.incarnation + 1, beside=True)
        else:
            yield from self._drain(now)

    def adopt(self, plan: Plan) -> None:
        """Let the next process be one by this plan; the present one goes on."""
        self._adopted = plan

    @_listed
    def given_up(self) -> Iterator[Action]:
        """Its role is not swapped back."""
        if self.state == "waiting":
            yield Fail(self.spent, 1)
            yield from self._over()

    # What happens.

    @_listed
    def ready(self, now: float) -> Iterator[Action]:
        """The process of the present incarnation says that it has started."""
        if self.state != "starting":
            return
        self.state, self._ready_at = "up", now
        if self._trial:
            self._trial, self.deadline = False, math.inf
            yield Replaced("", now - self._left_at)
        if self._died_at is not None:
            yield Say(f"{self.name} runs again, {now - self._died_at:.1f} s after it ended")
            self._died_at = None

    @_listed
    def ended(self, ending: Ending, now: float, *, swapped_lately: bool = False) -> Iterator[Action]:
        """The process has ended. ``swapped_lately``: its role was swapped a short time ago, and can be swapped back."""
        if self.state == "draining":
            if self._next is not None or ending.status != USER_MISTAKE:
                yield from self._tell_stopped(ending)
            else:
                yield Fail(f"{self.name}: {ending.why}", 2)
            yield from self._over() if self._next is None else self._succeed(now)
            return
        if self._trial:
            yield from self._fall_back(ending, now)
        else:  # the successor has the incarnation of the process that follows now
            yield from self._give_up(Replaced(f"{self.name} ended while its successor was getting ready; ask again"))
            yield from self._die(ending, now, swapped_lately=swapped_lately)

    @_listed
    def prepared(self, now: float) -> Iterator[Action]:
        """The successor is prepared."""
        if self._successor == "preparing":
            self._successor = "prepared"
            yield from self._drain(now)

    @_listed
    def successor_ended(self, ending: Ending) -> Iterator[Action]:
        """The successor has ended before its turn. One that was prepared is started once more when its turn comes."""
        was, self._successor = self._successor, ""
        if was in {"preparing", "late"}:
            fault = f"the new {self.name} {ending.how} before it was ready: {ending.why}"
            assert self._next is not None
            late = "\n  ".join([self._too_late(self._next), *ending.words])
            self._next, self.deadline = None, math.inf
            yield Replaced(late if was == "late" else fault)

    @_listed
    def elapsed(self, now: float) -> Iterator[Action]:
        """The time is over for what the state waits for, if the `deadline` has passed."""
        if now < self.deadline:
            return
        self.deadline = math.inf
        if self._successor == "preparing":
            self._successor = "late"
            yield "kill successor"
        elif self.state == "draining":
            yield Say(f"{self.name} did not stop in time and is killed")
            yield "kill"
        else:
            self.killed_for = self._too_late(self.plan)
            yield "kill"

    # How states follow each other.

    def _begin(self, now: float, word: str) -> Iterator[Action]:
        self.state = "starting"
        if self._adopted is not None and not self._successor:  # which was started by its own plan
            self._use(self._adopted)
            self._adopted = None
        self.failure = self.killed_for = self.spent = ""
        self._ready_at = None
        self.deadline = now + self.plan.entry.start_seconds if self._trial else math.inf
        yield Word(word)
        if self._successor:
            self._successor = ""
            yield "promote"
        else:
            yield Start(self.plan, self.incarnation, restarted=self._died_at is not None)

    def _drain(self, now: float) -> Iterator[Action]:
        """Stop the process, so that another can follow."""
        self.state, self.deadline = "draining", now + self.plan.drain_seconds
        yield Word("stopping")
        yield "terminate"

    def _succeed(self, now: float) -> Iterator[Action]:
        """The former process has ended: one by the next plan follows, on trial."""
        assert self._next is not None
        self._trial, self._former, self._left_at = True, self.plan, now
        self._use(self._next)
        self._next = None
        yield from self._another(now)

    def _fall_back(self, ending: Ending, now: float) -> Iterator[Action]:
        """The process on trial does not run."""
        why = ending.why if ending.status == USER_MISTAKE else self.failure or ending.why
        fault = self.killed_for or f"{self.name} {ending.how} before it was ready: {why}"
        self._trial = False
        yield Replaced(fault)
        if self._former is None:
            yield from self._over()
        else:
            self._use(self._former)
            yield from self._another(now)

    def _another(self, now: float) -> Iterator[Action]:
        """A process by another plan follows: what the former one did is not held against it."""
        self.incarnation += 1
        self._blocked, self._died_at, self._lacked = 0, None, False
        yield from self._begin(now, "restarting")

    def _die(self, ending: Ending, now: float, *, swapped_lately: bool) -> Iterator[Action]:
        """The process has ended, and nobody had asked it to."""
        ended = self.killed_for or f"{self.name} {ending.how}"
        self._blocked = self._blocked + 1 if ending.blocked_at else 0
        lived = 0.0 if self._ready_at is None else now - self._ready_at
        lacked = self._lacked and ending.lacked_memory and lived < WALL_SECONDS
        self._lacked = ending.lacked_memory
        blocked = f"its event loop stood still in {ending.blocked_at}" if ending.blocked_at else ""
        if ending.status == USER_MISTAKE:
            yield Fail(f"{self.name}: {ending.why}", 2)
            yield from self._over()
        elif self._blocked >= FAULTS:
            times = f"{self.name} was killed {FAULTS} times in a row, since {blocked}"
            yield Fail(f"{times}; mend that code and run again: the run goes on", 2)
            yield from self._over()
        elif ending.status == TOGETHER:
            self.incarnation += 1
            yield from self._begin(now, "restarting")
        elif not lacked and self._budget.spend(now, early=self._died_early(ending.status, now)):
            self.incarnation += 1
            self._died_at = now
            # SIGKILL leaves no word: what stands last on stderr is about something else.
            said = ending.words[-1] if ending.words and ending.status != -signal.SIGKILL else ""
            reason = blocked or self.failure or ending.message or said
            yield Say(f"{ended}; starting it again" + (f" ({reason})" if reason else ""))
            yield from self._begin(now, "restarting")
        else:
            budget = f"its {self.plan.entry.restarts} restarts {self._budget.within} are spent"
            if lacked:
                budget = "so was the one before it: take what `agent-rl check` names, or give the host more memory"
            failure = [f"it said: {self.failure}"] if self.failure else []
            why = "\n  ".join([f"{ended}, and {budget}", *failure, *ending.words, f"more in {self._stderr}"])
            if not swapped_lately:
                yield Fail(why, 2 if lacked else 1)
                yield from self._over()
                return
            self.state, self.spent = "waiting", why
            yield Say(f"{why}\n  the class and settings that {self.role} had before it was swapped come back")
            yield Word("stopped")

    def _died_early(self, status: int, now: float) -> bool:
        """Whether the process ended by itself (no SIGKILL) before it was ready, or soon after."""
        return status != -signal.SIGKILL and (self._ready_at is None or now - self._ready_at < EARLY_SECONDS)

    def _give_up(self, outcome: Replaced) -> Iterator[Action]:
        """Nothing takes the place of the present process any more."""
        if self._successor:
            self._successor = ""
            yield "drop successor"
        if self._pending:
            self._trial, self._next, self.deadline = False, None, math.inf
            yield outcome

    def _over(self) -> Iterator[Action]:
        """No process follows."""
        yield from self._give_up(Replaced("the run ended meanwhile"))
        self.state, self.deadline, self.spent = "gone", math.inf, ""
        yield Word("stopped")

    def _tell_stopped(self, ending: Ending) -> Iterator[Action]:
        """Say how a process ended that was asked to, unless it did so in order."""
        if ending.status not in {0, TOGETHER, -signal.SIGTERM, -signal.SIGKILL}:
            yield Say("\n  ".join([f"{self.name} {ending.how} while stopping", *ending.words]))

    def _too_late(self, plan: Plan) -> str:
        limit = f"{plan.entry.start_seconds:g} s (actors.{self.role}.start_seconds)"
        where = f"see `prepare` and `start` of {plan.entry.class_path}, and {self._stderr}"
        return f"{self.name} was not ready after {limit} and is killed: {where}"

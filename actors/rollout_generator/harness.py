"""A rollout by a program of its own, the harness: it asks the gateway for turns, with the rollout's key.

::

    generator --> zygote (one for each environment) --fork--> warden, process 1 of a jail --fork--> the program
        ^                                                        | how it ended, files, check
        `------------------------- control ----------------------'
    program --127.0.0.1:port of the jail--> relay (here) --> gateway, and addresses that `network` names

Where there are no jails the program is a plain process of the generator's user, in a folder of its own. It sees no
variable of the generator's environment but ``PATH`` and what the topology gives it. When the rollout or the generator
ends, the program and all that it started are killed: in a jail all, else what stayed in its session.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from os.path import normpath, realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import trio

from actors.rollout_generator.agent_loop import AgentLoop, EnvironmentFaultError, TaskFaultError
from actors.rollout_generator.tool_calls import ToolsUnavailableError, first_of
from actors.sandbox.isolation.control_groups import ControlGroups, control_groups
from actors.sandbox.isolation.levels import outer_users, visible
from actors.sandbox.owner.containers import MAKE_SECONDS, Containers, Docker, Limits
from actors.sandbox.owner.programs import START_SECONDS, WARDEN_LOST, Program, StartError, Zygote, installation
from actors.sandbox.owner.relay import relay
from actors.sandbox.programs.jail import WORK, Jail
from agent_rl.config.hidden import is_reference, with_environment, without
from agent_rl.config.plugins import called
from agent_rl.environments.harness import HarnessOutcome, told_of, whose_fault
from agent_rl.environments.load import sound_files, sound_prompt
from agent_rl.files.leftovers import temporary_directory
from agent_rl.groups.outages import TASK_FAULT
from agent_rl.messages import EnvironmentMessage, Problem
from agent_rl.rollout.keys import MODEL

if TYPE_CHECKING:
    from actors.rollout_generator.served import ServedRollouts
    from actors.rollout_generator.turns import Written
    from agent_rl.config.topology import Container, Harness
    from agent_rl.environments.base import Environment
    from agent_rl.rollout.episode import Episode

LEAVE_SECONDS = 5.0
"""How long a program may go on once it was told that its rollout has ended."""
TRIES = 3
"""Rollouts of a task whose own check is broken. Then the task is left out."""
STARTS = 4
"""Of the program of a rollout, as gateways are lost while they answer it."""
WORD_SECONDS = 1.0
"""How long after a program that failed the word may come that a gateway was lost."""
SILENT_SECONDS = 7.0
"""Likewise where a reply was cut: a gateway that is silent for 5 s is lost. A program can cut a reply by itself."""
GATEWAY_SECONDS = 30.0
"""How long a program is not started while no gateway is heard."""
SECRET_CHARS = 8
"""Of a value that is removed from what a program left: shorter ones stand in any text."""
MOST_WORD = 131_071
"""Bytes of an argument that the kernel takes."""
MIB = 1024 * 1024
MOST_TASKS = 32768
"""Processes and threads of all programs of a generator."""
MOST_REFUSED, ADDRESS_CHARS = 32, 256
"""Of addresses that a program did not get: how many are told, and how much of each."""
STARVED = (
    "the kernel ended a program for memory that other programs took; lower `memory_mib` of harnesses, or run fewer "
    "rollouts at once"
)
_JAILED = (WORK, "/tests", "/logs")
_PLAIN = ("{folder}/app", "{folder}/tests", "{folder}/logs")
"""The folders of a program, of its check and of what that writes."""
_MEND = "mend the program, or correct `environments.harness`"
_LESS = 'isolation = "host" or "off" in `environments.harness`'


class Harnesses:
    """Runs the programs of a generator's rollouts."""

    def __init__(
        self,
        agent: AgentLoop,
        served: ServedRollouts,
        nursery: trio.Nursery,
        *,
        url: str,
        base: Path,
        log: structlog.typing.FilteringBoundLogger,
        owner: str = "",
        hidden: Sequence[str] = (),
    ) -> None:
        """``url``: the gateway's; ``base``: the topology file's folder; ``nursery``: for programs that are forked.
        ``owner``: a name for containers, the same in the next process of this generator. ``hidden``: what no jail shows
        unless it is named itself, wherever it lies.
        """
        self._owner, self._hidden = owner, hidden
        self._agent, self._served, self._nursery = agent, served, nursery
        self._url, self._base, self._log = url, base, log
        self._zygotes: dict[str, Zygote | Containers] = {}
        self._groups: ControlGroups | None = None
        self._starting = trio.Lock()
        self._refused: set[tuple[str, str]] = set()
        self._broken: dict[tuple[str, str], list[str]] = {}
        """What was said of checks that are broken themselves, by environment and problem."""

    async def run(
        self, environment: Environment, episode: Episode, written: Callable[[Written], None] | None = None
    ) -> None:
        """Run the program of a rollout to its end; ``written`` is told of each turn.

        Raises EngineError, ContractError, EnvironmentFaultError for the program's faults, TaskFaultError, and
        ToolsUnavailableError for faults of the infrastructure.
        """
        name = episode.request.problem.environment
        self._refuse_broken(episode.request.problem, TRIES)
        outcome = HarnessOutcome("")
        secrets = self._secrets(environment)
        async with self._served.serving(self._agent, episode, written, secrets=secrets) as (key, rollout):
            for _ in range(STARTS):
                await self._served.gateways_heard(GATEWAY_SECONDS)
                with temporary_directory("harness") as folder:
                    try:
                        outcome = await self._run(environment, episode, key, folder, rollout.over)
                    except* (StartError, OSError) as errors:
                        outcome = HarnessOutcome(str(first_of(errors)), lost=bool(episode.turns))
                well = episode.turns and not outcome.failed
                if not well:  # a connection breaks before anybody says why
                    with trio.move_on_after(SILENT_SECONDS if rollout.cut else WORD_SECONDS):
                        await rollout.disturbed.wait()
                if not (disturbed := rollout.replay_cut_replies()) or well:
                    break
                why = "a gateway was lost meanwhile, and it ended with " + outcome.status
                self._log.warning("a program is started again", rollout=episode.request.rollout, why=why)
        for address in outcome.refused:
            self._told_refused(name, address)
        if rollout.failure is not None:
            raise rollout.failure
        fault = whose_fault(outcome, turns=episode.turns, overflowed=rollout.overflowed, disturbed=disturbed)
        if fault == "infrastructure":
            raise ToolsUnavailableError(f"a program came to no end of its own: {outcome.status}")
        if fault == "model":
            episode.ended = "prompt_too_long"
            return
        if fault == "program":
            said = outcome.output.strip()[-2000:] or "nothing"
            why = f"its harness asked for no turn; it ended with {outcome.status}, and wrote: {said}; {_MEND}"
            raise EnvironmentFaultError(f"environment {name!r}: {why}")
        await self._try_check(environment, episode, outcome)
        episode.record_messages([EnvironmentMessage(episode.turns, role, text) for role, text in told_of(outcome)])
        episode.finish()

    async def _try_check(self, environment: Environment, episode: Episode, outcome: HarnessOutcome) -> None:
        """Where a check decided nothing, find out whose fault it is. Raises TaskFaultError if it is not the program's.

        The check runs once more, on files that no program has changed: a program must not get rid of its judgement.
        """
        problem = episode.request.problem

        def fault() -> str:
            name = f"{type(environment).__name__}.check_fault"
            return called(name, lambda: environment.check_fault(outcome), f"for the problem {problem.id!r}")

        if not (environment.harness and environment.harness.check and fault()):
            return
        with temporary_directory("harness") as folder:
            try:
                outcome = await self._run(environment, episode, "", folder, None)
            except* (StartError, OSError) as errors:
                outcome = HarnessOutcome("", check_status=str(first_of(errors)))
        if outcome.lost:
            raise ToolsUnavailableError(outcome.status)
        if found := fault():
            wrote = outcome.check_output.strip()[-1000:] or "nothing"
            said = self._broken.setdefault((problem.environment, problem.id), [])
            said.append(f"{found}, also where no program has run; they wrote: {wrote}")
            self._refuse_broken(problem, 1)

    def _refuse_broken(self, problem: Problem, count: int) -> None:
        """Raises TaskFaultError if the task's own check was broken so often."""
        said = self._broken.get((problem.environment, problem.id), [])
        if len(said) >= count:
            left = "left out for the rest of the run" if len(said) >= TRIES else "not judged"
            where = f"task {problem.id!r} of environment {problem.environment!r}"
            if count < TRIES:
                self._log.warning(f"the check of a task is broken: {left}", task=where, why=said[-1])
            raise TaskFaultError(f"{TASK_FAULT}{where} is {left}: {said[-1]}; mend its tests")

    def _told_refused(self, name: str, address: str) -> None:
        """Say once for each environment and address that programs cannot reach it."""
        if (name, address) not in self._refused and len(self._refused) < MOST_REFUSED:
            self._refused.add((name, address))
            remedy = "name it in `network` of `environments.harness` if they should"
            self._log.warning("programs ask for an address", environment=name, address=address, remedy=remedy)

    async def _run(
        self, environment: Environment, episode: Episode, key: str, folder: Path, over: trio.Event | None
    ) -> HarnessOutcome:
        """How it ended, and what is left of it. ``over`` None: run the check alone. Raises StartError."""
        harness, problem = environment.harness, episode.request.problem
        assert harness is not None
        zygote = await self._zygote(problem.environment, harness)
        at = _PLAIN if not zygote.jailed else _JAILED
        work, tests, logs = (part.replace("{folder}", str(folder)) for part in at)
        values = {
            "{prompt}": sound_prompt(environment, problem)[-1]["content"],
            "{id}": problem.id,
            "{model}": MODEL,
            "{seed}": str(episode.request.seed),
            **self._folders,
            "{tests}": tests,
            "{logs}": logs,
        }
        command, check = ([_filled(part, values) for part in parts] for parts in (harness.command, harness.check))
        for part in (*command, *check):
            if "\0" in part or len(part.encode(errors="replace")) > MOST_WORD:
                why = f"a word of its command has a NUL, or more than {MOST_WORD} bytes: {part[:60]!r}"
                raise StartError(f"{why}; give such texts in a file")
        relayed = zygote.jailed and harness.network != "host"
        url = f"http://127.0.0.1:{self._port}" if relayed else self._url
        variables = self._variables(harness, key, work, url) | (_by_proxy(url) if relayed and harness.named else {})
        if harness.container is not None and "PATH" not in harness.environment:
            del variables["PATH"]  # the image has its own
        asked = {
            "url": url,
            "image": harness.container.image if harness.container else "",
            "build": environment.image_folder(problem) if harness.container else "",
            "argv": command[2:] if harness.fork else command,
            "env": variables,
            "jailed": zygote.jailed,
            "folder": work,
            "tests": tests,
            "logs": logs,
            "files": sound_files(environment, problem),
            "collect": harness.collect,
            "check": check,
            "check_files": sound_files(environment, problem, "check_files") if check else {},
            "check_seconds": harness.check_seconds,
            "seconds": 0.0 if over is None else harness.seconds,
        }
        secrets = [*self._secrets(environment), *filter(None, [key])]
        refused = _Refused()
        wanted = harness.seconds + (harness.check_seconds if check else 0.0) + START_SECONDS
        async with zygote.program(asked) as program, trio.open_nursery() as nursery:
            if program.listener is not None:
                nursery.start_soon(relay, self._url, program.listener, harness.named, refused.add)
            if over is not None:
                nursery.start_soon(_stops, program, over)
            nursery.start_soon(program.read, harness.output_mib * MIB)
            with trio.move_on_after(wanted):
                told = await program.result()
                with trio.move_on_after(0.1):  # what it wrote last; what it has started may hold the pipe
                    await program.written_all.wait()
                nursery.cancel_scope.cancel()
                if program.starved():
                    return HarnessOutcome(STARVED, lost=True)
                addresses = tuple(without(secrets, each) for each in refused)
                return replace(_outcome(told, program, secrets), refused=addresses)
            nursery.cancel_scope.cancel()
        text = without(secrets, program.text)
        addresses = tuple(without(secrets, each) for each in refused)
        return HarnessOutcome(f"no word of it within {wanted:g} s", text, refused=addresses)

    @staticmethod
    def _secrets(environment: Environment) -> list[str]:
        """What an environment's programs have of this host's variables."""
        assert environment.harness is not None
        given = environment.harness.environment.values()
        return [each for each in map(with_environment, filter(is_reference, given)) if len(each) >= SECRET_CHARS]

    async def _zygote(self, name: str, harness: Harness) -> Zygote | Containers:
        """What starts this environment's programs. Raises StartError."""
        if harness.fork and len(harness.command) < 2:
            raise StartError("fork = true needs a command of an interpreter, a Python script and its arguments")
        async with self._starting:
            zygote = self._zygotes.get(name)
            if zygote is None or zygote.ended:
                zygote = self._zygotes[name] = await self._new_zygote(name, harness)
            await zygote.loaded()
        return zygote

    def _containers(self, name: str, harness: Harness, container: Container) -> Containers:
        docker = Docker(own_network=harness.network != "host")
        seconds = MAKE_SECONDS + STARTS * (harness.seconds + harness.check_seconds + START_SECONDS)
        limits = Limits(harness.memory_mib, harness.processes, container.cpus, seconds)
        return Containers(docker, f"{self._owner}.{blake2b(name.encode(), digest_size=4).hexdigest()}", limits)

    async def _new_zygote(self, name: str, harness: Harness) -> Zygote | Containers:
        if harness.container is not None:
            return self._containers(name, harness, harness.container)
        command = [_filled(part, self._folders) for part in harness.command]
        interpreter, script = command[:2] if harness.fork else (sys.executable, "")
        jail = None if harness.isolation == "off" else self._jail(harness, command)
        if self._groups is None:
            self._groups = await self._nursery.start(_held_groups)
        zygote = Zygote(interpreter, script, jail, self._groups)
        self._nursery.start_soon(zygote.run, self._variables(harness, "", "", self._url))
        await zygote.loaded()
        if zygote.why_plain and harness.isolation == "strong":
            zygote.refused = f"no jail can be made here: {zygote.why_plain}; allow it, or write {_LESS}"
        elif zygote.why_plain:
            self._log.warning("programs are not isolated", environment=name, why=zygote.why_plain)
        return zygote

    def _jail(self, harness: Harness, command: Sequence[str]) -> Jail:
        shown = [str(Path(part)) for part in command if Path(part).is_absolute() and Path(part).exists()]
        shown += [str((self._base / each).absolute()) for each in harness.shows]
        for each in installation(command[0]):
            whole = realpath(each) not in map(realpath, self._hidden)  # else a project that is a prefix, too
            shown += [each] if whole else [f"{each}/{part}" for part in ("bin", "lib", "lib64")]
        if harness.network != "gateway":
            shown += ["/etc/ssl", "/etc/ca-certificates"]
        if harness.network == "host":
            shown += ["/etc/resolv.conf"]
        first, users, blocks = outer_users() if os.geteuid() == 0 else (0, 1, 1)
        return Jail(
            plan=[list(step) for step in visible(shown, self._hidden).plan],
            port=0 if harness.network == "host" else self._port,
            memory=harness.memory_mib * MIB,
            disk=harness.disk_mib * MIB,
            processes=harness.processes,
            first_user=first,
            users=users * blocks,
        )

    @property
    def _folders(self) -> dict[str, str]:
        return {"{base}": str(self._base.absolute())}

    @property
    def _port(self) -> int:
        return int(self._url.rpartition(":")[2])

    @staticmethod
    def _variables(harness: Harness, key: str, folder: str, url: str) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": folder,
            "LANG": "C.UTF-8",
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_BASE": f"{url}/v1",
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": key,
            "AGENT_RL_MODEL": MODEL,
            **dict(with_environment(harness.environment)),
        }


async def _held_groups(*, task_status: trio.TaskStatus[ControlGroups] = trio.TASK_STATUS_IGNORED) -> None:
    """Control groups of all programs and of each, as the host permits: memory, tasks, a share of processor time."""
    async with control_groups("host", None, MOST_TASKS, programs=True) as groups:
        task_status.started(groups)
        await trio.sleep_forever()


class _Refused(set[str]):
    """Addresses that a program asked for and did not get; a number of them at most."""

    def add(self, address: str) -> None:
        """Note one."""
        if len(self) < MOST_REFUSED:
            super().add(address[:ADDRESS_CHARS])


def _by_proxy(url: str) -> dict[str, str]:
    """Variables by which clients of HTTP ask the relay, but for the gateway itself."""
    found = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": "127.0.0.1,localhost"}
    return found | {name.lower(): value for name, value in found.items()}


def _filled(part: str, values: Mapping[str, str]) -> str:
    """A part of a command with the values of its names; a value is not searched for names again."""
    if part in values:
        return values[part]
    below = part.startswith("{base}/")
    for name, value in values.items():
        if name != "{prompt}":
            part = part.replace(name, value)
    part = normpath(part) if below else part  # a jail has no folders that lie between
    return part.replace("{prompt}", values.get("{prompt}", "{prompt}"))


def _outcome(told: Mapping[str, Any], program: Program, secrets: Sequence[str]) -> HarnessOutcome:
    status = str(told.get("status") or told.get("fault"))
    if program.flooded:
        status = "more output than `output_mib` allows"
    check: dict[str, Any] = {
        name: text if name == "reward" else without(secrets, text) for name, text in told.get("check", {}).items()
    }
    files = {without(secrets, name): without(secrets, text) for name, text in told.get("files", {}).items()}
    checked = {f"check_{name}": text for name, text in check.items()}
    lost = told.get("fault") == WARDEN_LOST  # other faults of the warden are the program's doing
    return HarnessOutcome(status, without(secrets, program.text), files, **checked, lost=lost)


async def _stops(program: Program, over: trio.Event) -> None:
    """The rollout has ended: the program is given up after a while."""
    await over.wait()
    await trio.sleep(LEAVE_SECONDS)
    await program.stop()

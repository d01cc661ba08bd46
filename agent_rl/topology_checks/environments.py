"""Whether the environments of a topology can be made, have enough problems, and keep their promises."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from agent_rl.config.load import validation_faults
from agent_rl.config.plugins import ContractError
from agent_rl.config.selection import SelectStage
from agent_rl.config.source import Fault, Source
from agent_rl.config.toml_lines import KeyPath
from agent_rl.config.topology import EvaluateStage, RlStage, SftStage, Topology
from agent_rl.data.conversations import try_conversations
from agent_rl.environments.base import BlockedError, Environment, TaskError, TaskSource
from agent_rl.environments.judging import OUTPUTS, fault_of, made_up_transcripts, sound_judgement, tried_judge
from agent_rl.environments.load import Environments, asked, for_each, found_class, settings_model, sound_prompt
from agent_rl.messages import Judgement, Problem
from agent_rl.topology_checks.files import fetching
from agent_rl.topology_checks.prompts import prompt_faults

_METHOD = "one of its methods"
AT_ONCE_SECONDS = 3.0
"""How long ``judge_at_once`` and ``judge`` may hold the process, as in a run."""
CONVERSATIONS, DEMONSTRATIONS = 1000, 64
"""How many of a supervised stage's are read before anything starts."""


def class_faults(topology: Topology, source: Source) -> list[Fault]:
    """Classes that cannot be imported, and settings that they do not accept."""
    faults = []
    for index, entry in enumerate(topology.environments):
        place: KeyPath = ("environments", index)
        try:
            model = settings_model(found_class(entry))
        except ContractError as error:
            faults.append(source.fault((*place, "class"), str(error)))
            continue
        try:
            model.model_validate(entry.settings)
        except ValidationError as error:
            faults += validation_faults(error, model, source, entry.settings, (*place, "settings"))
    return faults


def environment_faults(topology: Topology, path: Path, source: Source) -> list[Fault]:
    """Faults of environments with valid classes and settings, found by calling them as the actors do."""
    base = path.absolute().parent
    faults: list[Fault] = []
    try:
        environments = Environments(topology, base)
        _ = environments.toolboxes
        tasks = environments.tasks()
        made, sources = environments, tasks.sources
        for_each(made, lambda name: asked(name, _METHOD, partial(_try, topology, made[name], sources[name])))
        faults += prompt_faults(topology, base, source, environments, tasks)
    except TaskError as error:
        return [_fault(part, topology, base, source) for part in error.parts]
    known = tasks.evaluation_count
    for index, stage in enumerate(topology.stages):
        key: KeyPath = ("stages", index, "problems")
        wanted = 0
        match stage:
            case SftStage(data=()):
                try:
                    for _ in islice(tasks.demonstrations(random.Random(0)), DEMONSTRATIONS):
                        pass
                except TaskError as error:
                    of_environment = _fault(error, topology, base, source)
                    faults.append(of_environment if error.environment else source.fault(("stages", index), str(error)))
            case SftStage(data=data):
                faults += _raised(
                    source, ("stages", index, "data"), partial(try_conversations, data, base, CONVERSATIONS)
                )
            case EvaluateStage():
                wanted = stage.problems
            case SelectStage():
                faults += _raised(source, ("stages", index), partial(tasks.listed, index))
            case RlStage() if stage.evaluate is not None:
                wanted, key = stage.evaluate.problems, ("stages", index, "evaluate", "problems")
        if known is not None and known < wanted:
            message = f"asks for {wanted} held-out problems, and there are {known}"
            remedy = f"write at most {known}" if known else "give an environment some, as `evaluation_files` of maths"
            faults.append(source.fault(key, message, remedy))
    return faults


def _fault(error: TaskError, topology: Topology, base: Path, source: Source) -> Fault:
    names = [entry.name for entry in topology.environments]
    index = names.index(error.environment or names[0])
    key: KeyPath = ("settings", *error.key) if error.key else ("class",)
    missing = topology.environments[index].base / error.missing
    remedy = fetching(topology, str(missing), base) if error.missing else ""
    return source.fault(("environments", index, *key), str(error), remedy)


def _raised(source: Source, place: KeyPath, call: Callable[[], object]) -> list[Fault]:
    try:
        call()
    except TaskError as error:
        return [source.fault(place, str(error))]
    return []


def _try(topology: Topology, environment: Environment, problems: TaskSource) -> None:
    """Put a problem of each kind that the stages ask for. Raises whatever the environment raises."""
    trained = [index for index, stage in enumerate(topology.stages) if isinstance(stage, RlStage | SelectStage)]
    found = [problems.problem(stage, 0) for stage in trained]
    if problems.evaluation_count != 0:
        found.append(problems.evaluation(0))
    if not found:
        raise TaskError("there are no problems")
    for problem in found:
        if not isinstance(problem, Problem):
            raise TaskError(f"it gave {problem!r:.100} as a problem; make it an agent_rl.messages.Problem")
        if not _is_json(problem.payload):
            raise TaskError(
                f"the payload of problem {problem.id!r} is {problem.payload!r:.80}, which is no JSON; make it of "
                "dictionaries with texts as keys, lists (no tuples), texts, numbers, booleans and None"
            )
        sound_prompt(environment, problem)
        for transcript in made_up_transcripts():
            judge = partial(environment.judge_at_once, problem, transcript)
            judgement = _judged(environment, "judge_at_once", judge, transcript)
            for output in OUTPUTS if judgement is None else ():
                judge = partial(tried_judge, environment, problem, transcript, output)
                _judged(environment, "judge", judge, transcript, output)


def _judged(environment: Environment, method: str, judge: Callable[[], Judgement | None], *given: object) -> object:
    """What the method returns. Raises TaskError for what it raises, or is no sound judgement."""
    longer = "leave to `judge`" if method == "judge_at_once" else "hand to `context.in_thread`"
    try:
        with _interrupted(longer):
            judgement = judge()
        return None if judgement is None else sound_judgement(judgement)
    except (Exception, BlockedError) as error:
        where = " and ".join(f"{each!r:.120}" for each in given)
        raise TaskError(f"{fault_of(environment, method, error)}, tried with {where}") from error


@contextmanager
def _interrupted(longer: str) -> Iterator[None]:
    """Raise BlockedError in the block after ``AT_ONCE_SECONDS``. Python delivers signals to its main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise BlockedError(f"it did not return within {AT_ONCE_SECONDS:g} s; {longer} what takes long")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, AT_ONCE_SECONDS, AT_ONCE_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _is_json(value: object) -> bool:
    """Whether a value travels as it is."""
    match value:
        case None | bool() | int() | str():
            return True
        case float():
            return isfinite(value)
        case list():
            return all(map(_is_json, value))
        case dict():
            return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return False

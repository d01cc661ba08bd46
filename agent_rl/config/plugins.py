"""Load plug-ins: the only loader of ``module:Name``, the short names of built-in plug-ins, and messages about failures.

A plug-in is a function or a class that satisfies the `Protocol` of its kind. A topology names it as ``module:Name`` or
by a short name of ``ALIASES``. `resolve` imports it. `find` looks for it without an import, since its module may load
torch. Each plug-in is tried on made-up input before the run starts (``Actor.probe``), and every result is checked. A
run with invalid results stops with the reason and the file and line of the user's code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from agent_rl.config.suggestions import suggest
from agent_rl.files.reading_json import sound_text

T = TypeVar("T")

Kind: TypeAlias = Literal[
    "actor",
    "advantage",
    "chat_format",
    "curriculum",
    "engine",
    "environment",
    "loss",
    "reward",
    "rollout",
    "scheduling_policy",
    "selection",
    "tool",
    "tracker",
]
"""What can be plugged in."""

ALIASES: Mapping[Kind, Mapping[str, str]] = {
    "actor": {
        "kv_scheduler": "actors.kv_scheduler:KVScheduler",
        "rollout_generator": "actors.rollout_generator:RolloutGenerator",
        "tool_executor": "actors.tool_executor:ToolExecutor",
        "roc_filter": "actors.roc_filter:RoCFilter",
        "learner": "actors.learner:Learner",
        "gateway": "actors.gateway:Gateway",
    },
    "advantage": {"group": "agent_rl.learning.advantages:group_advantages"},
    "chat_format": {"tags": "agent_rl.rollout.prompts:ChatFormat", "fenced": "agent_rl.rollout.fenced:FencedFormat"},
    "curriculum": {
        "in_order": "agent_rl.scheduling.curriculum:InOrder",
        "frontier": "agent_rl.scheduling.curriculum:Frontier",
    },
    "engine": {
        "torch": "actors.engines.torch:TorchEngine",
        "vllm": "actors.engines.vllm:VllmEngine",
    },
    "environment": {
        "maths": "agent_rl.environments.maths:Maths",
        "rows": "agent_rl.environments.rows:Rows",
        "harbor": "agent_rl.environments.harbor:Harbor",
        "live": "agent_rl.environments.live:Live",
    },
    "loss": {
        "grpo": "agent_rl.learning.losses.grpo:grpo",
        "sequence_mean": "agent_rl.learning.losses.sequence_mean:sequence_mean",
        "dr_grpo": "agent_rl.learning.losses.dr_grpo:dr_grpo",
        "gspo": "agent_rl.learning.losses.gspo:gspo",
        "cispo": "agent_rl.learning.losses.cispo:cispo",
    },
    "reward": {},
    "rollout": {},
    "scheduling_policy": {
        "sticky": "agent_rl.scheduling.policies.sticky:Sticky",
        "worst_case": "agent_rl.scheduling.policies.worst_case:WorstCase",
    },
    "selection": {
        "paper": "agent_rl.groups.resampling:select_paper",
        "release": "agent_rl.groups.resampling:select_release",
        "none": "agent_rl.groups.resampling:select_uniform",
    },
    "tool": {
        "python": "agent_rl.environments.python_tools:python",
        "notebook": "agent_rl.environments.python_tools:notebook",
    },
    "tracker": {
        "mlflow": "agent_rl.observe.trackers.mlflow:MlflowTracker",
        "tensorboard": "agent_rl.observe.trackers.tensorboard:TensorBoardTracker",
        "trackio": "agent_rl.observe.trackers.trackio:TrackioTracker",
        "wandb": "agent_rl.observe.trackers.wandb:WandbTracker",
    },
}
"""The short names of what is built in, by kind. Those of actors are the roles, each with its standard class."""

FUNCTIONS: frozenset[Kind] = frozenset({"advantage", "loss", "reward", "rollout", "selection"})

_ROOT = Path(__file__).parents[2]
_ELSEWHERE = (sysconfig.get_paths()["stdlib"], *(str(_ROOT / name) for name in ("agent_rl", "actors", "transport")))
_LOOKED_FOR = "modules are looked for in the working directory, beside the topology file and among what is installed"


class ContractError(Exception):
    """A user's code breaks its contract; the message says what the code did, and with which input."""

    key: tuple[str, ...] = ()
    """The key of the topology that names the code, where it is known."""


class PluginError(ContractError):
    """A ``module:Name`` of a topology cannot be loaded; ``message`` says why, ``remedy`` what to do."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message}; {remedy}" if remedy else message)
        self.message, self.remedy = message, remedy


@contextmanager
def naming(*key: str) -> Iterator[None]:
    """Within this block, a ContractError is about the code that ``key`` of the topology names."""
    try:
        yield
    except ContractError as error:
        error.key = key
        raise


def path_of(kind: Kind, name: str) -> str:
    """The ``module:Name`` that a name stands for. Raises PluginError for neither such a path nor a short name."""
    path = ALIASES[kind].get(name, name)
    module, colon, attribute = path.partition(":")
    if not (module and colon and attribute):
        built_in = f", or a built-in one: {suggest(name, ALIASES[kind])}" if ALIASES[kind] else ""
        remedy = f"write module:Name of a {_noun(kind)}{built_in}"
        raise PluginError(f"{name!r} is no {kind.replace('_', ' ')}", remedy)
    return path


def resolve(kind: Kind, name: str) -> Any:
    """The object that a name of the topology stands for. Raises PluginError when it is not importable or not there."""
    module_name, _, attribute = path_of(kind, name).partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise PluginError(f"there is no module {error.name!r}", _LOOKED_FOR) from error
        needs = f"{module_name} needs {error.name!r}, which is not installed{_at(place_of(error))}"
        package = (error.name or module_name).partition(".")[0]
        raise PluginError(needs, f"install it: pip install {package}") from error
    except (Exception, SystemExit) as error:
        raise PluginError(f"importing {module_name} fails with {described(error)}") from error
    found = getattr(module, attribute, None)
    if found is None:
        noun = _noun(kind)
        kinds: dict[str, Callable[[Any], bool]] = {"tool": lambda it: hasattr(it, "schema"), "class": inspect.isclass}
        fits = kinds.get(noun, inspect.isroutine)
        names = [key for key, value in vars(module).items() if fits(value) and not key.startswith("_")]
        own = [key for key in names if getattr(vars(module)[key], "__module__", module_name) == module_name]
        raise PluginError(f"{module_name} has no {noun} {attribute!r}", suggest(attribute, own or names))
    return found


def find(kind: Kind, name: str) -> None:
    """Look for what a name stands for, and import nothing: its module may load torch or vLLM. Raises PluginError."""
    if name in ALIASES[kind]:
        return
    module, _, attribute = path_of(kind, name).partition(":")
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise PluginError(f"there is no module {module!r}", _LOOKED_FOR)
    if spec.origin is None or not spec.origin.endswith(".py"):
        return
    try:
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise PluginError(f"{spec.origin} cannot be read ({error})", "mend it") from error
    names = {defined for node in tree.body for defined in _defined(node)}
    if attribute not in names and not names & {"*", "__getattr__"}:
        public = [defined for defined in names if not defined.startswith("_")]
        raise PluginError(f"{module} has no {_noun(kind)} {attribute!r}", suggest(attribute, public))


def _defined(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module gives it."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (each.asname or each.name for each in names)
        case ast.Assign() | ast.AnnAssign():
            yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
        case ast.If() | ast.Try():
            yield from (name for each in node.body for name in _defined(each))


def _noun(kind: Kind) -> str:
    return "tool" if kind == "tool" else "function" if kind in FUNCTIONS else "class"


def called(name: str, call: Callable[[], T], given: str, code: object = None) -> T:
    """What ``call`` returns. Raises ContractError when it raises: ``name`` is what was called, ``given`` on what.

    ``code`` is the function or class called; where it cannot be called so, the message says where it is defined.
    """
    try:
        made = call()
    except ContractError:
        raise
    except (Exception, SystemExit) as error:
        place = "" if place_of(error) else defined_at(code)
        raise ContractError(f"{name} fails {given} with {described(error)}{_at(place)}") from error
    if inspect.iscoroutine(made):
        made.close()
        raise ContractError(f"{name} is asynchronous, and it is not awaited; write def{_at(defined_at(code))}")
    return made


def _at(place: str) -> str:
    return f" ({place})" if place else ""


def defined_at(code: object) -> str:
    """``file, line n`` where a function or class of the user's own is defined; empty for anything else."""
    try:
        file, (_, line) = inspect.getsourcefile(code) or "<", inspect.getsourcelines(code)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
    return f"{Path(file).name}, line {line}" if _is_own(file) else ""


def needs_start(error: BaseException, actor: object) -> bool:
    """Whether code fails because an attribute of ``actor`` is missing, which its ``start`` would make."""
    cause = error.__cause__
    return isinstance(cause, AttributeError) and cause.obj is actor


def described(error: BaseException) -> str:
    """An exception's type and message, and where in the user's own code it was raised."""
    place = place_of(error)
    message = sound_text(f"{type(error).__name__}: {error}")
    return message if place in message else message + _at(place)


def place_of(error: BaseException) -> str:
    """``file, line n`` of the innermost frame in the user's own code; empty when there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}, line {error.lineno}"
    return place_in(traceback.extract_tb(error.__traceback__))


def place_in(frames: Iterable[traceback.FrameSummary]) -> str:
    """The same of these frames, the innermost last."""
    own = [frame for frame in frames if _is_own(frame.filename)]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""


def _is_own(file: str) -> bool:
    return not file.startswith(("<", *_ELSEWHERE)) and "site-packages" not in file

"""A substitute that breaks its role's contract is refused before anything starts, with the reason and the remedy."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest

from agent_rl.config.load import load_topology
from agent_rl.config.plugins import ContractError
from agent_rl.config.source import Fault
from agent_rl.groups.resampling import made_up_groups, select_paper, sound_selection
from agent_rl.topology_checks.topology import check_topology

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart" / "quickstart.toml"
ROLES = {
    "filter": ("roc_filter", "from actors.roc_filter import RoCFilter as Base"),
    "scheduler": ("kv_scheduler", "from actors.kv_scheduler import KVScheduler as Base"),
    "generator": ("rollout_generator", "from actors.rollout_generator import RolloutGenerator as Base"),
    "executor": ("tool_executor", "from actors.tool_executor import ToolExecutor as Base"),
    "learner": ("learner", "from actors.learner import Learner as Base"),
}
BESIDE = """
from abc import ABC, abstractmethod
from dataclasses import dataclass
from actors.base import Push
from agent_rl.messages import PolicyPublished, Trajectory
from agent_rl.rollout.parsing import ParsedCall
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.scheduling.policies.base import Placement
from agent_rl.scheduling.policies.worst_case import WorstCase

@dataclass
class Hint: text: str

class Started(Base):
    async def start(self):
        await super().start()
        self.k = 1

    def select(self, group, rng): return super().select(group, rng)[: 99 * self.k]

class Looking(Base):
    def __init__(self, context):
        context.link("training")
        super().__init__(context)

class Anywhere(WorstCase):
    def decide(self, now): return [Placement(each.rollout, "rollout_generator.77") for each in super().decide(now)]

class Raising(ChatFormat):
    @classmethod
    def calls(cls, text): return (text.split()[0],)

class Endless(ChatFormat):
    @classmethod
    def calls(cls, text): return (ParsedCall("x", {}),)

"""
"""What stands in a substitute's module, before its class."""
_numbers = count()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def check(folder: Path, role: str, body: str) -> list[Fault]:
    """The faults of the quickstart where the class of a role has this body, or is this ``class Mine`` or ``def Mine``."""
    role_name, base = ROLES[role]
    module = f"substitute_{next(_numbers)}"
    source = body if body.startswith(("class Mine", "def Mine")) else f"class Mine(Base):\n    {body}"
    (folder / f"{module}.py").write_text(f"{base}\n{BESIDE}{source}\n")
    overrides = [f"actors.{role_name}.class={module}:Mine", f"run.directory={folder / 'run'}"]
    return check_topology(load_topology(QUICKSTART, overrides), QUICKSTART, overrides)


SELECT = "def select(self, group, rng): return"
OPTIONS = "@classmethod\n    def link_options(cls, link, settings): return"
REFUSED = [
    # What it is.
    ("filter", "class Mine: pass", "is no actor class, it lacks receives, links, Settings, handle ... derive it from"),
    ("filter", "def Mine(): pass", "is no actor class ... derive it from"),
    (
        "filter",
        "class Mine(Base, ABC):\n    @abstractmethod\n    def score(self, rollout): ...",
        "Mine fails with a context with TypeError: Can't instantiate abstract class Mine",
    ),
    ("filter", "class Settings: pass", "Settings is the class Settings, no pydantic ... Settings"),
    ("executor", "concurrency = 0", "concurrency is 0 ... 1 or more"),
    ("executor", "concurrency = '8'", "concurrency is '8' ... 1 or more"),
    ("filter", "def __init__(self, context, k): pass", "missing 1 required positional argument: 'k' (substitute_"),
    # What it declares.
    ("filter", "links = ()", "links is tuple () ... write a dictionary"),
    ("filter", "receives = 7", "receives is int 7 ... write a tuple"),
    ("filter", "receives = (int,)", "<class 'int'>, no kind of link ... Push(...)"),
    ("filter", "receives = (*Base.receives, Push(Hint))", "carries Hint, which is no message ... agent_rl.messages"),
    (
        "filter",
        "receives = tuple(each for each in Base.receives if each != Push(Trajectory))",
        "does not receive Trajectory by push ... lead it to a role that does",
    ),
    (
        "filter",
        "receives = (*Base.receives, Push(PolicyPublished))",
        "receives PolicyPublished by push, and nobody sends it ... required=False",
    ),
    ("filter", "links = {**Base.links, 'x': Push(PolicyPublished)}", "the link 'x' leads nowhere ... x = "),
    # How it can be called.
    ("filter", "def handle(self, message): pass", "handle is not asynchronous ... async def handle"),
    (
        "filter",
        "async def status(self): pass",
        "Mine.status is asynchronous, and it is not awaited; write def (substitute_",
    ),
    (
        "learner",
        "def detail(self): return 1 / 0",
        "Mine.detail fails before the start with ZeroDivisionError: division by",
    ),
    (
        "filter",
        "def select(self, group): return (0,)",
        "Mine.select() takes 2 positional arguments but 3 were given (subst",
    ),
    (
        "filter",
        "select = 3",
        "select fails for a made-up group of 15 rollouts with TypeError: 'int' object is not callable",
    ),
    ("filter", f"async {SELECT} ()", "Mine.select is asynchronous, and it is not awaited; write def (substitute_"),
    (
        "filter",
        f"{OPTIONS} {{'windows': 3}}",
        "returned {'windows': 3} ... of a call link it may say {outstanding, timeout}",
    ),
    ("filter", f"{OPTIONS} settings.nothing", "fails with AttributeError"),
    # What it does when it is tried.
    ("filter", f"{SELECT} (0, 0)", "Mine.select returned (0, 0) for a made-up group of"),
    ("filter", f"{SELECT} (len(group),)", "positions go from 0"),
    ("filter", f"{SELECT} (-1, 0)", "positions go from 0"),
    ("filter", f"{SELECT} None", "returned None"),
    ("filter", f"{SELECT} [True]", "must return positions"),
    ("filter", f"{SELECT} group", "must return positions"),
    ("filter", f"{SELECT} [i for i, r in enumerate(group) if r.reward]", "kept only rollouts with the reward 1"),
    ("filter", f"{SELECT} group[99]", "rollouts with IndexError: list index out of range (substitute_"),
    ("scheduler", "def policy(self): return 7", "7 is no scheduling policy"),
    (
        "scheduler",
        "def policy(self): return Anywhere()",
        "Anywhere: s0-g000000/0/0 is placed on 'rollout_generator.77'; here: rollout_generator.0 (engine_unknown; subst",
    ),
    ("scheduler", "def policy(self): return 1 / 0", "ZeroDivisionError: division by zero"),
    ("generator", "chat_format = dict", "derived from agent_rl.rollout.prompts.ChatFormat"),
    ("generator", "chat_format = Raising", "Raising.calls fails for the turn '' with IndexError"),
    ("generator", "chat_format = Endless", "an episode would never end"),
]


@pytest.mark.parametrize(("role", "body", "told"), REFUSED)
def test_what_breaks_the_contract_is_refused(folder: Path, role: str, body: str, told: str) -> None:
    said = [fault.render("quickstart.toml") for fault in check(folder, role, body)]
    assert any(all(part in each for part in told.split(" ... ")) for each in said), said
    assert any(ROLES[role][0] in each for each in said)


@pytest.mark.parametrize(
    ("role", "body"),
    [
        ("filter", f"{SELECT} ()"),
        ("filter", "@staticmethod\n    def select(group, rng, extra=1): return ()"),
        ("filter", "def select(self, *args): return super().select(*args)"),
        ("filter", "class Mine(Started): pass"),
        ("filter", "class Mine(Looking): pass"),
        ("scheduler", "pass"),
        ("learner", "pass"),
    ],
)
def test_what_keeps_it_is_not(folder: Path, role: str, body: str) -> None:
    assert check(folder, role, body) == []


def test_an_executor_for_tools_and_one_for_answers_are_sound(folder: Path) -> None:
    path = folder / "two.toml"
    more = '[actors.tool_executor]\n[actors.checker]\nclass = "actors.tool_executor:ToolExecutor"\n[actors.roc_filter]\nlinks = { checks = "checker" }\n'
    path.write_text(QUICKSTART.read_text() + more)
    assert check_topology(load_topology(path), path) == []


def test_selections_of_the_package_are_sound_on_every_made_up_group() -> None:
    for samples, minimum in ((2, 2), (4, 2), (16, 9)):
        for group in made_up_groups(samples, minimum):
            kept = sound_selection(
                lambda group, rng: select_paper(group, rng, keep=2), group, random.Random(0), "a made-up group"
            )
            assert len(kept) == 2


def test_a_selection_may_come_in_any_order_and_of_any_integers() -> None:
    import numpy as np

    group = next(made_up_groups(4, 4))
    right = next(index for index, each in enumerate(group) if each.reward)
    wrong = next(index for index, each in enumerate(group) if not each.reward)
    chosen = np.array(sorted((right, wrong), reverse=True))
    assert sound_selection(lambda *_: chosen, group, random.Random(0), "g") == tuple(sorted((right, wrong)))  # type: ignore[arg-type, return-value]
    with pytest.raises(ContractError, match="must return positions"):
        sound_selection(lambda *_: (0.5,), group, random.Random(0), "g")  # type: ignore[arg-type, return-value]

"""The one loader of ``module:Name``: what it finds, and what it says of what it does not find."""

from __future__ import annotations

import random
import re
import sys
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from actors.kv_scheduler import KVScheduler
from actors.roc_filter import RoCFilter
from agent_rl.config.algorithm import Algorithm
from agent_rl.config.load import load_topology
from agent_rl.config.plugins import ALIASES, ContractError, PluginError, called, find, path_of, resolve
from agent_rl.config.topology import Topology
from agent_rl.groups.resampling import made_up_groups
from agent_rl.learning.advantages import named_advantage
from agent_rl.learning.losses.base import named_loss
from agent_rl.learning.losses.check_loss import check_loss
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.topology_checks.contracts import declared_format
from agent_rl.topology_checks.topology import check_topology
from tests.agent_rl.config.test_standard import FIRST

_numbers = count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module of the user's own; returns its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(source: str) -> str:
        name = f"plugged_{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


@pytest.mark.parametrize(("kind", "alias"), [(kind, alias) for kind, names in ALIASES.items() for alias in names])
def test_every_short_name_leads_to_what_is_there(kind, alias) -> None:
    module, _, name = path_of(kind, alias).partition(":")
    find(kind, f"{module}:{name}")  # as if it were a user's: nothing is imported, so that vLLM need not be installed
    if kind not in {"engine", "loss", "tracker"}:
        assert resolve(kind, alias) is resolve(kind, f"{module}:{name}")


def test_a_module_of_the_users_own_is_imported(module) -> None:
    name = module("def mine(): return 7")
    assert resolve("selection", f"{name}:mine")() == 7


@pytest.mark.parametrize(
    ("kind", "source", "name", "said"),
    [
        ("loss", None, "grppo", "'grppo' is no loss; write module:Name of a function, or a built-in one: did you mea"),
        ("tracker", None, "x", "'x' is no tracker; write module:Name of a class"),
        ("actor", None, ":X", "':X' is no actor; write module:Name of a class, or a built-in one: there is kv_sched"),
        ("loss", None, "not_there:x", "there is no module 'not_there'; modules are looked for in the working dir"),
        ("loss", None, "agent_rl.not_there:x", "there is no module 'agent_rl.not_there'; "),
        ("loss", "import missing_thing", "{}:x", "needs 'missing_thing', which is not installed (plugged_"),
        ("loss", "\n\nraise ValueError('oh')", "{}:x", ".py, line 3)"),
        ("loss", "\nimport json\njson.loads('{')", "{}:x", ".py, line 3)"),
        ("loss", "def f(:", "{}:x", "SyntaxError: "),
        ("loss", "raise SystemExit(3)", "{}:x", "fails with SystemExit: 3 (plugged_"),
        ("loss", "def losss(): pass\nclass Loss: pass", "{}:loss", "has no function 'loss'; did you mean 'losss'?"),
        ("actor", "def Mine(): pass", "{}:Mine2", "has no class 'Mine2'; there are none"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(module, kind, source, name, said) -> None:
    name = name.format(module(source)) if source is not None else name
    with pytest.raises(PluginError) as caught:
        resolve(kind, name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ContractError)


@pytest.mark.parametrize(
    "source",
    [
        "def mine(): pass",
        "async def mine(): pass",
        "class mine: pass",
        "mine = 3",
        "from json import loads as mine",
        "from json import *",
        "try:\n    import json\n    mine = json\nexcept ImportError:\n    pass",
        "def __getattr__(name): return 3",
    ],
)
def test_a_name_is_found_without_an_import(module, source) -> None:
    name = module(f"import not_there_at_all\n{source}")
    find("loss", f"{name}:mine")
    assert name not in sys.modules


def test_what_is_not_there_is_missed_without_an_import(module) -> None:
    name = module("import not_there_at_all\ndef mine(): pass")
    with pytest.raises(PluginError, match=r"has no function 'mime'; did you mean 'mine'\?"):
        find("loss", f"{name}:mime")
    with pytest.raises(PluginError, match="there is no module 'not_there'"):
        find("loss", "not_there:mine")
    with pytest.raises(PluginError, match="cannot be read"):
        find("loss", f"{module('def f(:')}:f")


def test_a_failure_names_the_line_that_raised_or_else_the_definition(module) -> None:
    name = module(
        "def raises(x):\n    return 1 / x\ndef none():\n    pass\nclass Made:\n    def __init__(self, a): pass\n"
    )
    raises, none, made = (resolve("selection", f"{name}:{each}") for each in ("raises", "none", "Made"))
    with pytest.raises(ContractError, match=rf"raises fails for 0 with ZeroDivisionError: .* \({name}.py, line 2\)"):
        called("raises", partial(raises, 0), "for 0", raises)
    with pytest.raises(ContractError, match=rf"none fails for 0 with TypeError: .* \({name}.py, line 3\)"):
        called("none", partial(none, 0), "for 0", none)
    with pytest.raises(ContractError, match=rf"\({name}.py, line 5\)"):
        called("Made", made, "before the start", made)
    with pytest.raises(ContractError, match=r"len fails for 0 with TypeError: .* has no len\(\)$"):
        called("len", partial(len, 0), "for 0", len)


# What a topology names ------------------------------------------------------------------------------------------------

MINE = """
import numpy as np

def select(group, rng, *, keep):
    right = [i for i, each in enumerate(group) if each.reward]
    wrong = [i for i, each in enumerate(group) if not each.reward]
    return (right[0], wrong[0])

def nothing(group): return ()

def twice(group, rng, *, keep): return (0, 0)

def ranked(rewards, *, divide_by_std): return rewards - np.median(rewards)

def not_finite(rewards, *, divide_by_std): return rewards / 0.0 if rewards[0] > 1 else [float("nan")] * len(rewards)

def loss(batch, settings):
    from agent_rl.learning.losses.grpo import grpo
    print("tried")
    return grpo(batch, settings)

def backwards(batch, settings):
    from dataclasses import replace
    terms = loss(batch, settings)
    return replace(terms, objective=-terms.objective)

def short(logprobs): pass

def ends(batch, settings): __import__("os")._exit(3)


from agent_rl.scheduling.policies.base import Placement
from agent_rl.scheduling.policies.worst_case import WorstCase

class Own(WorstCase): pass

class Nowhere(WorstCase):
    def decide(self, now): return [Placement(each.rollout, "nowhere") for each in super().decide(now)]

class Needs:
    def __init__(self, more): pass


from agent_rl.scheduling.curriculum import InOrder

class Minus(InOrder):
    def choose(self, fresh, rng): return fresh - 1

class Undecided(InOrder):
    def admits(self, solved): return None

class Divides(InOrder):
    def observe(self, problem, solved): self.odds = solved.right / (solved.samples - solved.right)

def huge(rewards, *, divide_by_std): return np.full(len(rewards), 1e300)
"""


def checked(tmp_path: Path, *overrides: str) -> tuple[Topology, list[str]]:
    """The first topology, and what check says of it."""
    path = tmp_path / "first.toml"
    path.write_text(FIRST.format(directory=tmp_path / "run"))
    topology = load_topology(path, overrides)
    return topology, [fault.render("first.toml") for fault in check_topology(topology, path, overrides)]


def test_a_selection_advantage_loss_and_policy_of_ones_own_take_their_places(tmp_path: Path, module) -> None:
    name = module(MINE)
    topology, said = checked(
        tmp_path,
        f"algorithm.resampling={name}:select",
        f"algorithm.advantage={name}:ranked",
        f"actors.kv_scheduler.settings.policy={name}:Own",
        "algorithm.curriculum=frontier",
    )
    assert said == []
    group = next(made_up_groups(8, 8))
    select = RoCFilter.on_trial(topology, RoCFilter.Settings()).selection()
    assert sorted(group[each].reward for each in select(group, random.Random(0))) == [0.0, 1.0]
    rewards = np.array([1, 0, 0], dtype=np.float32)
    assert named_advantage(f"{name}:ranked")(rewards, divide_by_std=True).tolist() == [1.0, 0.0, 0.0]
    algorithm = topology.algorithm.model_copy(update={"loss": f"{name}:loss"})
    assert named_loss(algorithm)[0] is resolve("loss", f"{name}:loss")
    check_loss(algorithm)
    settings = KVScheduler.Settings(policy=f"{name}:Own")
    assert type(KVScheduler.on_trial(topology, settings).policy()).__name__ == "Own"


POLICY, FORMAT = "actors.kv_scheduler.settings.policy", "actors.rollout_generator.settings.chat_format"
LINE = r"plugged_\d+.py, line"
REFUSED = [
    # the key of the topology, the name in the module of the user's own, and the message
    ("algorithm.resampling", "nothing", rf":nothing \({LINE} 9\) fails for a made-up group of .* with TypeError"),
    ("algorithm.resampling", "twice", rf":twice \({LINE} 11\) returned \(0, 0\) for a made-up group of"),
    ("algorithm.advantage", "not_finite", rf"returned \[nan, nan\] for the rewards \[1.0, 0.0\]; .*{LINE} 15"),
    ("algorithm.advantage", "huge", rf":huge returned .*; it must return as many finite numbers .*{LINE} 55"),
    ("algorithm.advantage", "nothing", rf"nothing fails for the rewards .* with TypeError: .*{LINE} 9"),
    ("algorithm.advantage", "rank", "algorithm.advantage: plugged_.* has no function 'rank'"),
    ("algorithm.loss", "lost", "algorithm.loss: plugged_.* has no function 'lost'"),
    ("algorithm.curriculum", "Minu", "plugged_.* has no class 'Minu' .*did you mean 'Minus'"),
    ("algorithm.curriculum", "Minus", r"Minus.choose returned -1 with fresh = 0: return a number of 0 or more"),
    ("algorithm.curriculum", "Undecided", r"Undecided.admits returned None with Solved\(right=0, samples=\d+\)"),
    ("algorithm.curriculum", "Divides", r"Divides.observe fails with problem .* ZeroDivisionError.*line 53"),
    (POLICY, "Nowhere", rf"Nowhere: s0-g000000/0/0 is placed on 'nowhere'; here: .*engine_unknown; {LINE} 37"),
    (POLICY, "Needs", rf"Needs fails before the start with TypeError: .*{LINE} 40"),
    (POLICY, "Owm", "policy: plugged_.* has no class 'Owm'; did you mean 'Own'"),
    (FORMAT, "Tag", "chat_format: plugged_.* has no class 'Tag'"),
    (FORMAT, "Own", "chat_format is <class .*; it must be a class derived"),
]


@pytest.mark.parametrize(("key", "function", "said"), REFUSED)
def test_one_that_does_not_fit_is_refused_with_file_and_line(tmp_path: Path, module, key, function, said) -> None:
    name = module(MINE)
    _, (fault,) = checked(tmp_path, f"{key}={name}:{function}")
    assert re.search(said, fault), fault


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        ("backwards", rf":backwards does not fall when .* \({LINE} 22\)"),
        ("short", rf":short fails on a made-up micro-batch with TypeError: .* \({LINE} 27\)"),
    ],
)
def test_a_loss_that_does_not_fit_is_named_with_file_and_line(module, function: str, fault: str) -> None:
    with pytest.raises(ContractError, match=fault):
        check_loss(Algorithm(loss=f"{module(MINE)}:{function}"))


@pytest.mark.slow
def test_a_loss_that_ends_the_process_that_tries_it_is_named(tmp_path: Path, module) -> None:
    _, (fault,) = checked(tmp_path, f"algorithm.loss={module(MINE)}:ends")
    assert re.search("algorithm.loss: the process that tried .*:ends ended with exit code 3", fault), fault


def test_a_format_that_settings_name_is_everybodys(tmp_path: Path, module) -> None:
    name = module("from agent_rl.rollout.prompts import ChatFormat\nclass Mine(ChatFormat): pass\n")
    topology, said = checked(tmp_path, f"actors.rollout_generator.settings.chat_format={name}:Mine")
    assert said == []
    assert declared_format(topology).__name__ == "Mine"
    assert declared_format(checked(tmp_path, "actors.rollout_generator.settings.chat_format=tags")[0]) is ChatFormat

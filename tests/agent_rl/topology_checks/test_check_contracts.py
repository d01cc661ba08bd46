"""What users bring is looked at before anything starts: substitutes of actors, and the programs that environments name."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from agent_rl.config.load import load_topology
from agent_rl.config.source import Fault, Finding
from agent_rl.topology_checks.facts import Facts
from agent_rl.topology_checks.programs import program_findings
from agent_rl.topology_checks.topology import check_topology
from tests.end_to_end.topologies import write_micro

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
        "Mine fails with a context with TypeError: Can't instantiate abstract class",
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
        "receives = (*Base.receives, Push(PolicyPublished))",
        "PolicyPublished by push, and nobody ... required=False",
    ),
    ("filter", "links = {**Base.links, 'x': Push(PolicyPublished)}", "the link 'x' leads nowhere ... x = "),
    # How it can be called.
    ("filter", "def handle(self, message): pass", "handle is not asynchronous ... async def handle"),
    ("filter", "async def status(self): pass", "Mine.status is asynchronous, and it is not awaited; write def"),
    ("learner", "def detail(self): return 1 / 0", "Mine.detail fails before the start with ZeroDivisionError"),
    ("filter", "def select(self, group): return (0,)", "takes 2 positional arguments but 3 were given (substitute_"),
    ("filter", "select = 3", "select fails for a made-up group of 15 rollouts with TypeError"),
    ("filter", f"async {SELECT} ()", "Mine.select is asynchronous, and it is not awaited; write def (substitute_"),
    ("filter", f"{OPTIONS} {{'windows': 3}}", "{'windows': 3} ... of a call link it may say {outstanding, timeout}"),
    ("filter", f"{OPTIONS} settings.nothing", "fails with AttributeError"),
    # What it does when it is tried.
    ("filter", f"{SELECT} (0, 0)", "Mine.select returned (0, 0) for a made-up group of"),
    ("filter", f"{SELECT} group[99]", "rollouts with IndexError: list index out of range (substitute_"),
    ("scheduler", "def policy(self): return 7", "7 is no scheduling policy"),
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


# Programs -------------------------------------------------------------------------------------------------------------


def findings(folder: Path, *overrides: str, started: str | None = None) -> list[Finding]:
    path, _ = write_micro(folder)
    topology = load_topology(path, [f"environments.0.{each}" for each in overrides])
    return list(program_findings(topology, Facts(folder, started)))


@pytest.mark.parametrize(
    ("given", "key", "said"),
    [
        ('harness={command=["no-agent"]}', "command", "environment 'arithmetic': there is no 'no-agent', its harness"),
        ('harness={command=["{base}/no/agent"]}', "command", "no/agent', its harness"),
        ('mcp={s={command=["./no-server"]}}', "command", "there is no './no-server', its MCP server 's'"),
        ('mcp={s={command=["no-server"]}}', "command", "there is no 'no-server', its MCP server 's'"),
    ],
)
def test_a_missing_program_is_named(tmp_path: Path, given: str, key: str, said: str) -> None:
    ((place, message, remedy),) = findings(tmp_path, given)
    assert (place[:2], place[-1], remedy) == (("environments", 0), key, "install it, or correct the path")
    assert said in message


@pytest.mark.parametrize(
    "given",
    [
        'harness={command=["sh", "{prompt}"]}',
        'harness={command=["{base}/agent"]}',
        'harness={command=["./of-the-task"]}',
        'harness={command=["no-agent"], environment={PATH="/somewhere"}}',
        'harness={source="live"}',
        'mcp={s={command=["./agent"]}}',
        'mcp={s={url="http://127.0.0.1:1"}}',
        'harness={command=["of-the-image"], container={image="i"}}',
    ],
)
def test_what_is_here_or_is_not_this_hosts_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    for name, text in (("agent", ""), ("docker", "echo 28")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert findings(tmp_path, given) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("", "there is no `docker`"),
        ("echo Is the docker daemon running? >&2; exit 1", "Is the docker daemon running?"),
        ("echo no; exit 1", "says: no"),
        ("exit 1", "says: nothing"),
    ],
)
def test_containers_that_cannot_be_made_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, said: str
) -> None:
    if command:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{command}\n")
        (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    given = 'harness={command=["a"], container={image="i"}}'
    ((place, message, remedy),) = findings(tmp_path, given)
    assert place == ("environments", 0, "harness", "container")
    assert message.startswith("environment 'arithmetic': no container can be made: ")
    assert said in message
    assert "leave out `container`" in remedy
    assert findings(tmp_path, given, started="another") == []

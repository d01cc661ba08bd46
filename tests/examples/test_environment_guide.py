"""The guides to writing an environment and a tool: their code does what they say."""

import importlib
import random
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent_rl.config.topology import EnvironmentEntry
from agent_rl.environments.base import BadArgumentError, ToolOutput
from agent_rl.environments.load import mixed_tasks
from agent_rl.environments.tools import FunctionTool
from agent_rl.messages import Transcript
from agent_rl_contract import EnvironmentContract

DOCS = Path(__file__).parent.parent.parent / "docs"
GUIDE = (DOCS / "write_an_environment.md").read_text()
OF_TOOLS = (DOCS / "write_a_tool.md").read_text()
FILES = dict(re.findall(r"^```python\n# (\S+)\.py\n(.*?)^```$", GUIDE + OF_TOOLS, re.MULTILINE | re.DOTALL))
TABLES = re.findall(r"^```toml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """The guides' files, importable."""
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module
    for name in FILES:
        sys.modules.pop(name, None)


class Here:
    async def in_thread(self, work: Any) -> Any:
        return work()

    async def execute(self, code: str) -> ToolOutput:
        return ToolOutput("success", stdout=code)


async def test_the_guides_environments_judge(modules):
    assert set(FILES) == {"capitals", "lookups", "sums", "test_capitals", "distances", "ledger", "doubled"}
    capitals = modules("capitals").Capitals(seed=0, base=Path())
    problem = capitals.problems().evaluation(0)
    assert capitals.judge_at_once(problem, Transcript(("It is Paris.",))).reward == 1.0
    assert not capitals.judge_at_once(problem, Transcript(("Paris?", "It is Rome."))).success
    lookups = modules("lookups").Lookups(seed=0, base=Path())
    found = await lookups.judge(problem, Transcript(("Paris",)), Here())
    assert (found.success, found.parts) == (True, {"calls": 0.0})
    assert lookups.tools[0].call_here({"country": "Italy"}, b"").value == "Rome"


def test_the_guides_test_passes_for_each_environment(modules, tmp_path):
    derived = modules("test_capitals").TestCapitals
    assert derived.environment is modules("capitals").Capitals

    class TestSums(EnvironmentContract):
        environment = modules("sums").Sums

    names = [name for name in dir(EnvironmentContract) if name.startswith("test_")]
    assert names
    for name in names:
        for each in (derived, TestSums):
            getattr(each(), name)(tmp_path)


def test_the_guides_demonstrations_are_right(modules):
    sums = modules("sums").Sums(seed=0, base=Path())
    shown = next(iter(sums.problems().demonstrations(random.Random(0))))
    assert [message["role"] for message in shown.messages] == ["user", "assistant"]
    assert sums.judge_at_once(shown.problem, Transcript((shown.messages[-1]["content"],))).success


def test_the_guides_tables_are_entries(modules):
    one, several = (
        [EnvironmentEntry.model_validate(each) for each in tomllib.loads(text)["environments"]] for text in TABLES
    )
    assert mixed_tasks(one, seed=0, base=Path()).evaluation_count == 2
    tasks = mixed_tasks(several, seed=0, base=Path())
    assert [tasks.problem(0, number).environment for number in range(8)].count("with_tool") == 2


async def test_the_guides_tools_work(modules):
    distance: FunctionTool = modules("distances").distance
    assert distance.call_here({"start": "Bern", "end": "Basel", "unit": "miles"}, b"").value == "59.0"
    parameters = distance.schema["function"]["parameters"]["properties"]
    assert parameters["start"]["description"] == "Where the journey begins."
    with pytest.raises(BadArgumentError, match="end: Field required"):
        distance.call_here({"start": "Bern"}, b"")
    book: FunctionTool = modules("ledger").book
    first = book.call_here({"account": "rent", "amount": 3}, b"")
    assert book.call_here({"account": "rent", "amount": 4}, first.state or b"").value == "7"
    twice: FunctionTool = modules("doubled").run_twice
    assert (await twice.call({"code": "print(1)"}, b"", Here())).value == "same: True"
    assert (twice.seconds, twice.stateful) == (2.0, False)

"""The guide to writing a tool: its code does what it says."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from agent_rl.environments.base import BadArgumentError, ToolOutput
from agent_rl.environments.tools import FunctionTool

GUIDE = Path(__file__).parent.parent.parent / "docs" / "write_a_tool.md"
FILES = dict(re.findall(r"^```python\n# (\S+)\.py\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL))


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The guide's files, importable."""
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module
    for name in FILES:
        sys.modules.pop(name, None)


class TwiceContext:
    async def execute(self, code: str) -> ToolOutput:
        return ToolOutput("success", stdout=code)


def test_the_guides_tools_work(modules: Any) -> None:
    assert set(FILES) == {"distances", "ledger", "doubled"}
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
    context: Any = TwiceContext()
    assert trio.run(twice.call, {"code": "print(1)"}, b"", context).value == "same: True"
    assert (twice.seconds, twice.stateful) == (2.0, False)

"""Tools of typed functions: what the model is told, what is checked, what is returned, and what the model reads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import pytest
import structlog
import trio

from agent_rl.config.load import load_topology
from agent_rl.environments.base import SNAPSHOT_BYTES, BadArgumentError, ToolOutput
from agent_rl.environments.python_tools import notebook, python
from agent_rl.environments.schemas import ToolError
from agent_rl.environments.tools import FunctionTool, bounded, by_name, call_apart, tool
from agent_rl.messages import Problem
from agent_rl.topology_checks.topology import check_topology

T = TypeVar("T")


class FakeContext:
    """Runs cells and threads in place."""

    log = structlog.get_logger()
    problem = Problem("p", "How many?", payload={"rows": [3, 4]})

    def __init__(self) -> None:
        self.cells: list[tuple[str, tuple[str, ...]]] = []

    async def in_thread(self, work: Callable[[], T]) -> T:
        return work()

    async def execute(self, code: str, stdin: str = "", *, seconds: float | None = None) -> ToolOutput:
        return ToolOutput("success", stdout=f"{code}|{stdin}|{seconds}")

    async def run_cell(self, code: str, earlier: tuple[str, ...], *, seconds: float | None = None) -> ToolOutput:
        self.cells.append((code, earlier))
        return ToolOutput("success", kept="fail" not in code)

    async def call(self, function: str, *arguments: str) -> ToolOutput:
        return ToolOutput("success", stdout="printed\n", value=call_apart(*arguments), run_seconds=0.5)


def call(made: FunctionTool, arguments: Mapping[str, Any], state: bytes = b"", context: Any = None) -> ToolOutput:
    return trio.run(made.call, arguments, state, context or FakeContext())


@tool
def distance(start: str, end: str, via: list[str] | None = None, unit: Literal["km", "miles"] = "km") -> float:
    """The distance between two cities.

    By road, not by air.

    Args:
        start: Where the journey begins.
        end: Where it ends,
            if it ends.
    """
    return len(start + end) / 2 + len(via or ()) + (unit == "km")


def test_the_schema_comes_from_signature_hints_and_docstring() -> None:
    assert distance.schema == {
        "type": "function",
        "function": {
            "name": "distance",
            "description": "The distance between two cities.\n\nBy road, not by air.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "start": {"type": "string", "description": "Where the journey begins."},
                    "end": {"type": "string", "description": "Where it ends, if it ends."},
                    "via": {
                        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                        "default": None,
                    },
                    "unit": {"type": "string", "enum": ["km", "miles"], "default": "km"},
                },
                "required": ["start", "end"],
            },
        },
    }
    assert (distance.name, distance.runs, distance.stateful) == ("distance", "host", False)


def test_a_tool_can_be_called_as_the_function_that_it_was() -> None:
    @tool
    def double(number: int) -> int:
        """Twice the number."""
        return 2 * number

    assert double(4) == double(number=4) == 8


def test_a_call_gets_its_arguments_and_returns_json() -> None:
    assert call(distance, {"start": "a", "end": "bcd", "unit": "miles"}).value == "2.0"

    @tool
    async def listed(pairs: dict[str, tuple[int, ...]]) -> list[Any]:
        """Lists."""
        return [{"ä": pairs["x"]}, None, {3}]

    assert call(listed, {"pairs": {"x": [1, 2]}}).value == '[{"ä": [1, 2]}, null, [3]]'  # JSON knows no tuples and sets


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "start: Field required; end: Field required"),
        ({"start": 1, "end": "b"}, "start: Input should be a valid string"),
        ({"start": "a", "end": "b", "unit": "inch"}, "unit: Input should be 'km' or 'miles'"),
        ({"start": "a", "end": "b", "via": ["c", 4]}, "via.1: Input should be a valid string"),
        ({"start": "a", "end": "b", "speed": 4}, "speed: Extra inputs are not permitted"),
        ({"start": "a", "end": "b", "context": 4}, "context: Extra inputs are not permitted"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_words_for_the_model(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(BadArgumentError, match=r"^the arguments do not fit: ") as caught:
        call(distance, arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize("given", ["3", 3.5, True, None, [3]])
def test_numbers_are_not_made_of_what_is_none(given: Any) -> None:
    @tool
    def half(number: int) -> float:
        """Half of a number."""
        return number / 2

    assert call(half, {"number": 3}).value == "1.5"
    with pytest.raises(BadArgumentError, match="number: Input should be a valid integer"):
        call(half, {"number": given})


@tool
def count(word: str, *, state: dict[str, int]) -> int:
    """Counts words."""
    state[word] = state.get(word, 0) + 1
    if word == "bad":
        raise RuntimeError("no")
    return state[word]


def test_a_state_is_a_value_that_is_changed_and_comes_back_as_json() -> None:
    first = call(count, {"word": "ä"})
    assert (first.value, first.state) == ("1", '{"ä": 1}'.encode())
    second = call(count, {"word": "ä"}, first.state or b"")
    assert (second.value, second.state) == ("2", '{"ä": 2}'.encode())
    assert count.stateful
    assert "state" not in str(count.schema)
    with pytest.raises(RuntimeError):
        call(count, {"word": "bad"}, first.state or b"")


def test_a_state_that_is_unchanged_does_not_travel_and_one_that_is_no_json_is_an_error() -> None:
    @tool
    def keep(number: float, *, state: list[float]) -> str:
        """Keeps numbers."""
        if number:
            state.append(number if number > 0 else float("nan"))
        return "kept"

    assert call(keep, {"number": 0.0}, b"[1.0]").state is None
    assert call(keep, {"number": 2.0}, b"[1.0]").state == b"[1.0, 2.0]"
    with pytest.raises(ValueError, match="the state of the tool cannot be written as JSON: Out of range"):
        call(keep, {"number": -1.0}, b"[1.0]")


@pytest.mark.parametrize("returned", [None, float("nan"), float("inf"), {"x": float("nan")}, object()])
def test_what_cannot_be_used_is_an_error_of_the_tool(returned: Any) -> None:
    @tool
    def bad() -> Any:
        """Returns anything."""
        return returned

    with pytest.raises((TypeError, ValueError)):
        call(bad, {})


@pytest.mark.parametrize("field", ["stdout", "stderr", "value", "note"])
def test_a_huge_text_is_cut_and_is_an_outcome(field: str) -> None:
    cut = bounded(ToolOutput("success", **{field: "é" * 5000}), 2000, stateful=False)
    assert cut.outcome == "output_limit"
    assert getattr(cut, field) == "é" * 1000 + "\n[cut after 2000 bytes]\n"
    assert bounded(ToolOutput("success", value="\ud800"), 2000, stateful=False).value == "?"


def test_too_large_a_state_is_an_outcome_and_leaves_the_state() -> None:
    most = bounded(ToolOutput("success", state=bytes(SNAPSHOT_BYTES)), 2000, stateful=True)
    assert (most.outcome, len(most.state or b"")) == ("success", SNAPSHOT_BYTES)
    over = bounded(ToolOutput("success", state=bytes(SNAPSHOT_BYTES + 1)), 2000, stateful=True)
    assert (over.outcome, over.state) == ("error", None)
    assert (
        over.stderr
        == "The state of the tool would take 65537 bytes, and may take 65536: the call has had no effect on it.\n"
    )


@pytest.mark.parametrize(
    "fields", [{"stdout": None}, {"value": 7}, {"outcome": "fine"}, {"state": "text"}, {"note": b"x"}], ids=str
)
def test_an_output_with_wrong_fields_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="the tool returned"):
        bounded(ToolOutput(**{"outcome": "success", **fields}), 2000, stateful=True)
    with pytest.raises(TypeError, match="not stateful"):
        bounded(ToolOutput("success", state=b""), 2000, stateful=False)


def untyped(word) -> str:
    """A word."""
    return word


def undescribed(word: str) -> str:
    return word


def collecting(*words: str) -> str:
    """Words."""
    return ""


def bytes_of_state(word: str, *, state: bytes) -> str:
    """A word."""
    return word


def unknown(word: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821
    """A word."""
    return word


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (untyped, "its parameter 'word' has no type"),
        (undescribed, "has no description: write a docstring"),
        (collecting, "its parameter 'words' cannot be given by name"),
        (bytes_of_state, "give `state` the type of its value"),
        (unknown, "name 'Missing' is not defined"),
    ],
)
def test_a_function_that_makes_no_tool_is_refused_with_its_line(function: Callable[..., Any], said: str) -> None:
    with pytest.raises(ToolError) as caught:
        tool(function)
    assert said in str(caught.value)
    assert f"{__file__}, line {function.__code__.co_firstlineno}" in str(caught.value)


def test_a_function_that_the_sandbox_could_not_find_is_refused() -> None:
    with pytest.raises(ToolError, match=r'write it at the top level of a module .* or with runs = "host"'):

        @tool(runs="sandbox")
        def inner(word: str) -> str:
            """A word."""
            return word


@tool(runs="sandbox")
def apart(word: str, *, state: list[str]) -> str:
    """A word."""
    state.append(word)
    return word[int(word == "bad") * 9]


def test_a_sandboxed_function_is_called_apart_with_its_state() -> None:
    first = call(apart, {"word": "good"})
    assert (first.outcome, first.value, first.stdout, first.state) == ("success", "g", "printed\n", b'["good"]')
    assert first.run_seconds == 0.5
    assert call(apart, {"word": "no"}, b'["good"]').state == b'["good", "no"]'
    failed = call(apart, {"word": "bad"}, b'["good"]')
    assert (failed.outcome, failed.state) == ("error", None)
    assert failed.stderr == "IndexError: string index out of range\n"
    with pytest.raises(BadArgumentError, match="word: Input should be a valid string"):
        call(apart, {"word": 1})


@tool
def counted(at: int, *, problem: dict[str, Any]) -> int:
    """A row of the problem's."""
    return int(problem["rows"].pop(at))


@tool(runs="sandbox")
def counted_apart(at: int, *, problem: dict[str, Any]) -> int:
    """A row of the problem's."""
    return int(problem["rows"].pop(at))


@pytest.mark.parametrize("made", [counted, counted_apart])
def test_a_tool_is_given_the_payload_of_the_problem_and_the_model_is_told_nothing_of_it(made: FunctionTool) -> None:
    assert [call(made, {"at": 1}).value for _ in range(2)] == ["4", "4"]
    assert list(made.schema["function"]["parameters"]["properties"]) == ["at"]
    with pytest.raises(BadArgumentError, match="problem: Extra inputs are not permitted"):
        call(made, {"at": 1, "problem": {"rows": [5, 6]}})


def test_the_notebooks_state_is_its_cells_and_is_bounded_before_a_cell_runs() -> None:
    context = FakeContext()
    first = call(notebook, {"code": "x = 1"}, b"", context)
    assert first.state == b'["x = 1"]'
    assert call(notebook, {"code": "fail"}, first.state or b"", context).state is None
    full = call(notebook, {"code": "y" * SNAPSHOT_BYTES}, first.state or b"", context)
    assert (full.outcome, full.state) == ("error", None)
    assert "The notebook is full: its cells would take 65549 bytes" in full.stderr
    assert context.cells == [("x = 1", ()), ("fail", ("x = 1",))]


def test_python_passes_its_input_and_its_time_on() -> None:
    assert call(python, {"code": "c", "input": "i", "timeout": 2, "language": "python"}).stdout == "c|i|2.0"
    with pytest.raises(BadArgumentError, match="language: Input should be 'python'"):
        call(python, {"code": "c", "language": "cobol"})


def test_tools_of_one_name_are_one_unless_their_schemas_differ() -> None:
    assert list(by_name([python, notebook, python], "environment maths")) == [python.name, notebook.name]

    @tool(name=python.name)
    def other(text: str) -> str:
        """Another one."""
        return text

    line = other.function.__code__.co_firstlineno
    both = rf"agent_rl.environments.python_tools:python and test_tools.py, line {line}; rename one"
    with pytest.raises(
        ToolError, match=rf"^environment maths: two tools are named '{python.name}' and have .*: {both}"
    ):
        by_name([python, other], "environment maths")


class NoTool:
    name = "x"


class BadSchema(NoTool):
    schema: ClassVar[Any] = {"function": {"name": "x", "parameters": {"type": "object", "properties": {}}}}
    runs, stateful, seconds, call, render = "host", False, None, None, None


def changed(**fields: Any) -> Any:
    return type("Changed", (BadSchema,), fields)()


OBJECT: dict[str, Any] = {"type": "object", "properties": {}}


def parameters(schema: object) -> Any:
    return changed(schema={"function": {"name": "x", "parameters": schema}})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (NoTool(), "is no tool, it lacks schema, runs, stateful, seconds, call, render; write a function with @tool"),
        (len, "is no tool"),
        (changed(schema="text"), "its schema is 'text'; write it as"),
        (changed(schema={"function": {"name": "x"}}), "its schema is {'function'"),
        (changed(name="y"), "the tool 'y' (tests.agent_rl.environments.test_tools:Changed)"),
        (changed(name="y"), "): its schema is for 'x'; give both one name"),
        (parameters({}), 'the parameters of its schema are {}; write {"type": "object", "properties": {...}}'),
        (parameters({"type": "string"}), "the parameters of its schema are {'type': 'string'}"),
        (parameters({**OBJECT, "x": object()}), "cannot be written as JSON"),
        (parameters({**OBJECT, "properties": ["a"]}), "its schema has the properties ['a'] at parameters"),
        (parameters({**OBJECT, "properties": {"a": "text"}}), "its schema has 'text' at parameters.a"),
        (
            parameters({**OBJECT, "properties": {"a": {"type": "text"}}}),
            "the type 'text' at parameters.a; write one of",
        ),
        (parameters({**OBJECT, "properties": {"a": {"type": "array", "items": 3}}}), "has 3 at parameters.a.items"),
        (parameters({**OBJECT, "required": ["b"]}), "its schema requires 'b' at parameters, which is none of"),
        (changed(runs="cloud"), 'it runs in \'cloud\'; write "sandbox" or "host"'),
    ],
)
def test_what_is_no_tool_is_refused(found: Any, said: str) -> None:
    with pytest.raises(ToolError) as caught:
        by_name([found], "here")
    assert str(caught.value).startswith("here: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"a": {"type": "text"}}, "its schema has the type 'text' at parameters.a"),
        ({"a": {}, "b": {}}, "its schema has the property 'b', which the function does not take"),
        ({}, "its schema lacks the parameter 'a' of the function"),
    ],
)
def test_a_schema_that_does_not_fit_its_function_is_refused_with_the_place(schema: Any, said: str) -> None:
    def echo(a: str) -> str:
        return a

    parameters = {"type": "object", "properties": schema}
    with pytest.raises(ToolError, match=rf"^the tool echo: {said}.*test_tools.py, line \d+"):
        tool(schema={"type": "function", "function": {"name": "echo", "parameters": parameters}})(echo)


def test_a_tool_renders_its_results() -> None:
    @tool(render=lambda output: f"<{output.value}>")
    def echo(text: str) -> str:
        """Says it again."""
        return text

    assert echo.render(call(echo, {"text": "a"})) == "<a>"
    assert distance.render(ToolOutput("success", value="2.0")) == "2.0"


# Tools that a topology names ------------------------------------------------------------------------------------------

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart" / "quickstart.toml"
ENTRY = 'name = "arithmetic"\n'
MODULE = """
from agent_rl.environments.tools import tool

@tool
def sound(text: str) -> str:
    \'\'\'Says it again.\'\'\'
    return text

@tool(name="sound")
def same_name(number: int) -> str:
    \'\'\'Another one.\'\'\'
    return ""

def plain(text: str) -> str:
    return text
"""
BROKEN = {
    "raises": ("\n\nraise ValueError('on purpose')\n", "ValueError: on purpose (raises.py, line 3)"),
    "syntax": ("\ndef broken(:\n", "(syntax.py, line 2)"),
    "untyped": (
        "from agent_rl.environments.tools import tool\n\n@tool\ndef sound(text):\n    '''Says.'''\n",
        "its parameter 'text' has no type",
    ),
}


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[str]]]:
    """What `agent-rl check` says of a quickstart whose environments have these lines more."""
    (tmp_path / "named_tools.py").write_text(MODULE)
    for name, (text, _) in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(QUICKSTART.parents[1] / "substitutes")

    def check(lines: str) -> list[str]:
        text = QUICKSTART.read_text()
        assert ENTRY in text
        path = tmp_path / "mine.toml"
        path.write_text(text.replace(ENTRY, ENTRY + lines))
        return [fault.render("mine.toml") for fault in check_topology(load_topology(path), path)]

    yield check
    for name in ("named_tools", *BROKEN):
        sys.modules.pop(name, None)


def test_a_topologys_tools_are_had_by_name_and_by_short_name(faults: Callable[[str], list[str]]) -> None:
    assert faults('tools = ["named_tools:sound", "notebook", "python", "calculator:calculator"]\n') == []


SECOND = '[[environments]]\nclass = "maths"\nname = "second"\ntools = ["named_tools:same_name"]\n'


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        *((f'tools = ["{name}:sound"]\n', said) for name, (_, said) in BROKEN.items()),
        ('tools = ["named_tools:sound", "named_tools:same_name"]\n', "two tools are named 'sound' and have different"),
        (f'tools = ["named_tools:sound"]\n{SECOND}', "environment 'second': tools of all environments: two tools are"),
        ('tools = ["named_tools:plain"]\n', "the tool plain has no description: write a docstring"),
        ('tools = ["named_tools:missing"]\n', "missing"),
        ('tools = ["nowhere_at_all:x"]\n', "nowhere_at_all"),
    ],
)
def test_what_is_no_tool_of_a_topology_is_one_error(
    lines: str, wanted: str, faults: Callable[[str], list[str]]
) -> None:
    (said,) = faults(lines)
    assert wanted in said
    assert said.startswith("mine.toml:")
    assert "Traceback" not in said

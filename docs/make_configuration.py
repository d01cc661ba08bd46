"""Make docs/configuration.md from the schema: ``python docs/make_configuration.py``; a test notices when it is out of
date.

What is written below a field in its class is the field's meaning.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from actors.engines.checking import TorchEngineSettings, VllmEngineSettings
from actors.evaluator import EvaluatorSettings
from agent_rl.config.plugins import ALIASES, resolve
from agent_rl.config.processes import Part
from agent_rl.config.topology import Topology

OUTPUT = Path(__file__).with_name("configuration.md")
HEAD = """\
# Configuration

Made from the schema by `python docs/make_configuration.py`.

A topology is one TOML file, or several: `agent-rl run base.toml mine.toml --set algorithm.keep=4`. Later files win
table by table, an array of tables (`[[stages]]`) is replaced whole, and `--set` comes last. Relative paths start from
the folder of the first file, `run.directory` and `model.path` from the working directory.

`agent-rl check --full FILE` prints a topology with every default. Numbers are above 0 where the tables show no other
lower limit, and a key without a default is empty. A role without `class` has its standard class. A link that the file
does not write leads to every role that receives its messages. Standard roles are added where a role of the file needs
them.

Where a field takes code of your own, write `module:Name` ([interfaces](write_an_actor.md#without-a-class)), or one of
the short names below.
"""
TABLES: dict[str, str] = {
    "Run": "[run]",
    "Model": "[model]",
    "InitialiseModel": "[model.initialise]",
    "Lora": "[model.lora]",
    "Parallel": "[model.parallel]",
    "EnvironmentEntry": "[[environments]]",
    "Harness": "harness = { ... } of [[environments]]",
    "Container": "container = { ... } of a harness",
    "McpServer": "[environments.mcp.NAME]",
    "Algorithm": "[algorithm]",
    "KlPenalty": "kl = { ... } of [algorithm]",
    "SftStage": '[[stages]] kind = "sft"',
    "RlStage": '[[stages]] kind = "rl"',
    "TaskFilter": "filter = { ... } of an rl or select stage",
    "Collapse": "collapse = { ... } of an rl stage",
    "Interim": "evaluate = { ... } of an rl stage",
    "EvaluateStage": '[[stages]] kind = "evaluate"',
    "SelectStage": '[[stages]] kind = "select"',
    "Difficulty": "keep = { ... } of a select stage",
    "Host": "[hosts.NAME]",
    "Security": "[security]",
    "ActorEntry": "[actors.ROLE]",
}
"""How a file writes each class of the schema."""


def page() -> str:
    """The whole page."""
    parts = [HEAD, "## Short names\n", "| of | names |", "|---|---|"]
    for kind, names in ALIASES.items():
        if short := [f"`{name}`" for name in names if ":" not in name]:
            parts.append(f"| {kind.replace('_', ' ')} | {', '.join(short)} |")
    parts.append("")
    tables = {model.__name__: model for model in Part.__subclasses__() if model is not Topology}
    assert tables.keys() == TABLES.keys(), "write a heading for each table of the schema"
    for name, heading in TABLES.items():
        parts += [f"## `{heading}`\n", *_section(tables[name])]
    for name, (annotation, meaning) in _written(Topology).items():
        if not any(re.match(rf"\[+{name}\W", heading) for heading in TABLES.values()):
            parts += [f"## `[{name}]`\n", textwrap.fill(f"`{annotation}`: {meaning}", 120) + "\n"]
    for role, path in ALIASES["actor"].items():
        parts += [f"## `[actors.{role}]` settings\n", *_section(resolve("actor", path).Settings)]
    for heading, model in (
        ('engine_settings with engine = "torch"', TorchEngineSettings),
        ('engine_settings with engine = "vllm"', VllmEngineSettings),
        ("settings of the evaluator", EvaluatorSettings),
    ):
        parts += [f"## `{heading}`\n", *_section(model)]
    return "\n".join(parts).rstrip() + "\n"


def _section(model: type[BaseModel]) -> Iterator[str]:
    yield textwrap.fill(_text(inspect.getdoc(model) or ""), 120) + "\n"
    yield "| key | type, default | meaning |"
    yield "|---|---|---|"
    written = _written(model)
    for name, field in model.model_fields.items():
        annotation, meaning = written[name]
        if name == "kind":  # the heading says it
            continue
        yield f"| `{field.alias or name}` | {_type(annotation, field)}{_default(field)} | {meaning} |"
    yield ""


def _written(model: type[BaseModel]) -> dict[str, tuple[str, str]]:
    """The annotation of each field of a class and its bases, and the text below the field."""
    found: dict[str, tuple[str, str]] = {}
    for cls in reversed(model.__mro__):
        if not issubclass(cls, BaseModel) or cls is BaseModel:
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        for field, below in pairwise([*(node.body if isinstance(node, ast.ClassDef) else []), ast.Pass()]):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                    found[name] = ast.unparse(field.annotation), _text(text)
                case ast.AnnAssign(target=ast.Name(id=name)), _:
                    found[name] = ast.unparse(field.annotation), ""
    return found


def _text(docstring: str) -> str:
    return re.sub(r"`{1,2}([^`]+)`{1,2}", r"`\1`", " ".join(docstring.split())).replace("|", "\\|")


TYPES = {
    "SelectionName": "str",
    "AdvantageName": "str",
    "LossName": "str",
    "PositiveInt": "int",
    "PositiveFloat": "float",
    "NonNegativeInt": "int >= 0",
    "Isolation": "str",
    "TopP": "float <= 1",
    "Wanted": "str",
}


def _type(annotation: str, field: FieldInfo) -> str:
    shown = re.sub(r"Annotated\[(\w+), .*\]", r"\1", annotation).removesuffix(" | None")
    limits = re.findall(r"(Gt|Ge|Lt|Le)\(\w+=([-.\w]+)\)", str(field.metadata)) if shown not in TYPES else []
    signs = {"Gt": ">", "Ge": ">=", "Lt": "<", "Le": "<="}
    if shown in {"int", "float"} and not limits:
        shown = f"any {shown}"
    for name, limited in TYPES.items():
        shown = shown.replace(name, limited)
    bounds = [f"{signs[kind]} {limit}" for kind, limit in limits if (kind, float(limit)) != ("Gt", 0)]
    return f"`{' '.join([shown, ', '.join(bounds)]).rstrip()}`".replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ", required"
    if field.default is None:
        return ""
    if isinstance(field.default, BaseModel):
        return ", its defaults"
    default = str(field.default) if isinstance(field.default, Path) else field.default
    shown = str(default).lower() if isinstance(default, bool) else repr(default).replace("'", '"')
    return f", `{shown}`" if default not in ((), {}) else ""


if __name__ == "__main__":
    OUTPUT.write_text(page())

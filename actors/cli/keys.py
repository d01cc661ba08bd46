"""``agent-rl keys``: the key that the hosts of one run share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from actors.cli.output import Mistake, say
from transport import CurveKeys


def keys(file: Annotated[Path, Parameter(help="where to write it; it must not exist")], /) -> None:
    """Make a key, and say what to do with it."""
    if file.exists():
        raise Mistake(f"{file} exists; a key that hosts share is not written over")
    try:
        CurveKeys.generate().save(file)
    except OSError as error:
        raise Mistake(f"{file} cannot be written: {error.strerror}") from error
    say(f"wrote {file}: copy it to every host, readable by you alone, and name it in the topology file:")
    say(f'\n[security]\nkey_file = "{file}"')

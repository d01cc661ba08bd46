"""Parameters that several commands take."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

TopologyFile = Annotated[
    Path, Parameter(name="FILE", help="the topology file (TOML), or the name of an example: quickstart")
]
Overlays = Annotated[
    Path, Parameter(name="OVERLAY", help="files laid over the first one, table by table; the last one wins")
]
Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set", metavar="KEY=VALUE", help="use this value instead, as in --set stages.1.steps=5; may be repeated"
    ),
]
RunDirectory = Annotated[Path, Parameter(name="RUN", help="the run directory")]
Positive = Annotated[int, Parameter(validator=Number(gte=1))]
PositiveNumber = Annotated[float, Parameter(validator=Number(gt=0, lt=math.inf))]


def several(metavar: str, text: str) -> Parameter:
    """An option that takes all values up to the next option, at least one."""
    return Parameter(consume_multiple=1, metavar=metavar, help=text)


ModelNamed = Annotated[
    str,
    Parameter(
        help="a Hugging Face directory, a checkpoint, a run (its newest), or a name on the hub (organisation/name)"
    ),
]
ActorsOf = Annotated[
    tuple[Path, ...],
    several("FILE", "take actors, hosts and model settings from this file, or files as of agent-rl run"),
]
TopP = Annotated[float, Parameter(help="share of probability that is sampled from")]

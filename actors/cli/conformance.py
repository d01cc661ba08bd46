"""``agent-rl conformance``: the traps of training gateways as checks of one that is given as a URL."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from actors.cli.output import Mistake, say
from actors.cli.parameters import PositiveNumber, several


def conformance(
    url: Annotated[str, Parameter(name="URL", help="where the gateway listens, as http://127.0.0.1:8642")],
    /,
    *,
    key: Annotated[str, Parameter(help="of a rollout that is not over")],
    model: Annotated[str, Parameter(help="left out: the first that the gateway lists")] = "",
    context: Annotated[
        int, Parameter(help="tokens that the model reads at most, if not listed", validator=Number(gte=0))
    ] = 0,
    silence: Annotated[PositiveNumber, Parameter(help="seconds that a stream may send nothing")] = 10.0,
    only: Annotated[tuple[str, ...], several("CHECK", "these checks only: names, or numbers of traps")] = (),
    json: Annotated[bool, Parameter(negative="", help="print a JSON list in place of a table")] = False,
) -> int:
    """Check a gateway whose engine obeys the directive of docs/conformance.md, and print a table of the results.

    The exit code is 1 if a check failed.
    """
    from benchmarks.gateway_traps.kit import KitError, as_json, run, table

    try:
        results = run(url, key, model=model, context=context, silence=silence, only=only)
    except KitError as error:
        raise Mistake(str(error)) from error
    say(as_json(results) if json else table(results))
    return int(any(each.outcome == "failed" for each in results))

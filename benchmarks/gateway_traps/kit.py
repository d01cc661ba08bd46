"""Runs the checks against a gateway, and shows the results."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, TypeAlias

from agent_rl.observe.words import visible
from benchmarks.gateway_traps.client import DIALECTS, EXTRAS, Client, Dialect, Failed, Json, NotApplicable, Talk
from benchmarks.gateway_traps.traps import CHECKS, UNSEEN, Check

Outcome: TypeAlias = Literal["passed", "failed", "not applicable"]
SILENCE = 10.0
"""Seconds that a stream may send nothing."""
GREETING = "The kit is here."


class KitError(Exception):
    """The checks cannot be run: no gateway answers, or its engine does not obey the directive."""


@dataclass(frozen=True)
class Result:
    """The result of a check in a dialect. ``trap`` is 0 for none; ``dialect`` is empty where replies do not show it."""

    trap: int
    check: str
    title: str
    dialect: str
    outcome: Outcome
    reason: str = ""


def run(
    url: str,
    key: str = "",
    *,
    new_key: Callable[[], str] | None = None,
    end: Callable[[str], None] | None = None,
    model: str = "",
    context: int = 0,
    silence: float = SILENCE,
    only: Collection[str] = (),
    tell: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Run the checks. ``key`` is the key of one rollout for all of them; ``new_key`` makes one for each.

    ``end`` ends the rollout of a key that ``new_key`` made; it is called again for a rollout that has ended. ``model``:
    without it the first that the gateway lists. ``context``: tokens that the model reads at most, if the gateway does
    not list them. ``silence``: seconds that a stream may send nothing. ``only``: names of checks, or numbers of traps.
    ``tell`` gets each result at once. Raises KitError.
    """
    if unknown := set(only) - {each.name for each in CHECKS} - {str(trap) for trap in range(24)}:
        raise KitError(f"there is no check {', '.join(sorted(unknown))}; there are {', '.join(c.name for c in CHECKS)}")
    if not key and new_key is None:
        raise KitError("give the key of a rollout that is not over, or new_key")
    client = Client(url)
    found, listed = "", 0

    @contextmanager
    def talking(dialect: Dialect, extras: Json, thinks: bool) -> Iterator[Talk]:  # noqa: FBT001 - as the tuple has it
        own = new_key() if new_key else key
        close = partial(end, own) if end and new_key else None
        try:
            yield Talk(client, dialect, own, model or found, extras, thinks, silence, context or listed, close)
        finally:
            if close:
                close()

    results = []
    try:
        with talking(DIALECTS[0], {}, False) as talk:
            found, listed = _listed(talk)
        served = {each.name: _served(talking, each) for each in DIALECTS}
        if all(isinstance(each, str) for each in served.values()):
            raise KitError(f"no dialect is served: {'; '.join(map(str, served.values()))}")
        for check in sorted(CHECKS, key=lambda each: each.last):
            for dialect in DIALECTS:
                if dialect.name in check.dialects and _chosen(only, check.trap, check.name):
                    outcome, reason = _outcome(talking, check, dialect, served[dialect.name])
                    results.append(Result(check.trap, check.name, check.title, dialect.name, outcome, reason))
                    tell(results[-1])
    except (OSError, http.client.HTTPException) as error:
        raise KitError(f"{url} does not answer: {error or type(error).__name__}") from error
    for trap, look in UNSEEN.items():
        if _chosen(only, trap):
            results.append(Result(trap, "", "replies do not show it", "", "not applicable", look))
    return sorted(results, key=lambda each: each.trap or 99)


def _chosen(only: Collection[str], trap: int, name: str = "") -> bool:
    return not only or name in only or str(trap) in only


def _listed(talk: Talk) -> tuple[str, int]:
    """The model that the gateway lists, and the tokens that it reads at most; 0 if the list does not say."""
    body = talk.client.send("GET", "/v1/models", b"", talk.dialect.headers(talk.key)).body
    try:
        card = body["data"][0]
        return str(card["id"]), int(card.get("max_model_len") or card.get("max_input_tokens") or 0)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return "model", 0


_Served: TypeAlias = tuple[Json, bool] | str
"""How a dialect is served: `Talk.extras` and `Talk.thinks`; or why it is not."""
_Talking: TypeAlias = Callable[[Dialect, Json, bool], AbstractContextManager[Talk]]


def _served(talking: _Talking, dialect: Dialect) -> _Served:
    """Find out with one turn. Raises KitError."""
    for extras in EXTRAS:
        with talking(dialect, extras, False) as talk:
            answer = talk.send(talk.body(talk.user(GREETING)))
        if answer.status in {404, 405, 501}:
            return f"there is no {dialect.path} (status {answer.status})"
        if answer.status == 200:
            if GREETING not in answer.content:
                said = f"it was to say {GREETING!r}, and the reply is {answer.content:.300}"
                raise KitError(f"the engine behind {dialect.path} does not obey the directive: {said}")
            try:
                reply = dialect.read(answer.body)[0]
            except (Failed, KeyError, IndexError, TypeError, ValueError, AttributeError):
                return extras, False  # each check says what is wrong
            return extras, GREETING in reply.reasoning
    return f"POST {dialect.path} gives status {answer.status}: {answer.content:.300}"


def _outcome(talking: _Talking, check: Check, dialect: Dialect, served: _Served) -> tuple[Outcome, str]:
    if isinstance(served, str):
        return "not applicable", served
    try:
        with talking(dialect, *served) as talk:
            check.run(talk)
    except Failed as failed:
        return "failed", str(failed)
    except NotApplicable as reason:
        return "not applicable", str(reason)
    except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
        return "failed", f"the connection broke: {error or type(error).__name__}"
    return "passed", ""


def table(results: Sequence[Result]) -> str:
    """The results as a text: a line each, and how many there are of each outcome."""
    rows = [("trap", "check", "dialect", "result", "")]
    for each in results:
        what = f"{each.title}: {each.reason}" if each.reason else each.title
        rows.append((str(each.trap or "-"), each.check or "-", each.dialect or "-", each.outcome, what))
    widths = [*(max(len(row[column]) for row in rows) for column in range(4)), 0]
    lines = ["  ".join(part.ljust(width) for part, width in zip(row, widths, strict=True)) for row in rows]
    counts = Counter(each.outcome for each in results)
    names: tuple[Outcome, ...] = ("passed", "failed", "not applicable")
    return "\n".join([*lines, "", ", ".join(f"{counts[each]} {each}" for each in names)])


def as_json(results: Sequence[Result]) -> str:
    """The results as a JSON list."""
    return json.dumps([asdict(each) for each in results], indent=2, ensure_ascii=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a program; the exit code is 1 if a check failed, and 2 if none could be run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gateway_traps", description="Run the traps against a gateway."
    )
    parser.add_argument("url")
    parser.add_argument("--key", required=True, help="of a rollout that is not over")
    parser.add_argument("--model", default="", help="left out: the first that the gateway lists")
    parser.add_argument("--context", type=int, default=0, help="tokens that the model reads at most")
    parser.add_argument("--silence", type=float, default=SILENCE, help="seconds that a stream may send nothing")
    parser.add_argument("--only", nargs="+", default=(), help="names of checks, or numbers of traps")
    parser.add_argument("--json", action="store_true", help="print a JSON list in place of a table")
    given = vars(parser.parse_args(arguments))
    show = as_json if given.pop("json") else table
    try:
        results = run(**given)
    except KitError as error:
        sys.stderr.write(visible(f"{error}\n"))
        return 2
    sys.stdout.write(visible(show(results)) + "\n")
    return int(any(each.outcome == "failed" for each in results))

"""Runs the checks against a gateway, and shows the results: ``python -m agent_rl.conformance.kit URL --key KEY``.

The folder of this file needs nothing but Python's standard library.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, TypeAlias

from agent_rl.conformance.client import DIALECTS, EXTRAS, Client, Dialect, Failed, Json, NotApplicable, Talk
from agent_rl.conformance.traps import CHECKS, UNSEEN, Check

Outcome: TypeAlias = Literal["passed", "failed", "not applicable"]
SILENCE = 10.0
"""Seconds that a stream may send nothing."""


class KitError(Exception):
    """The checks cannot be run: no gateway is there, or its engine does not obey the directive."""


@dataclass(frozen=True)
class Result:
    """Of one check in one dialect. ``trap`` 0: none. ``dialect`` is empty for what replies do not show."""

    trap: int
    check: str
    title: str
    dialect: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class _Gateway:
    client: Client
    model: str
    context: int
    silence: float
    new_key: Callable[[], str]
    end: Callable[[str], None] | None

    def talk(self, dialect: Dialect, extras: Json) -> tuple[Talk, Callable[[], None]]:
        """A talk with a key, and what ends its rollout if it has not ended yet."""
        key = self.new_key()
        ended: list[str] = []

        def end(by: Callable[[str], None]) -> None:
            if not ended:
                ended.append(key)
                by(key)

        close = partial(end, self.end or (lambda _: None))
        own = close if self.end else None
        return Talk(self.client, dialect, key, self.model, extras, self.silence, self.context, own), close


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
    tell: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Run the checks. ``key`` is the key of one rollout for all of them; ``new_key`` makes one for each.

    ``end`` ends the rollout of a key that ``new_key`` made. ``model``: its name; without it the first that the gateway
    lists. ``context``: tokens that the model reads at most, if the gateway does not list them. ``silence``: seconds
    that a stream may send nothing. ``only``: names of checks, or numbers of traps. ``tell`` gets each result at once.
    Raises KitError.
    """
    chosen = [each for each in CHECKS if not only or each.name in only or str(each.trap) in only]
    client = Client(url)
    make = new_key or (lambda: key)
    try:
        found, listed = _listed(client, make())
        gateway = _Gateway(client, model or found, context or listed, silence, make, end if new_key else None)
        results = list(_results(gateway, chosen, tell or (lambda _: None)))
    except (OSError, http.client.HTTPException) as error:
        raise KitError(f"{url} does not answer: {error or type(error).__name__}") from error
    unseen = [Result(trap, "", "", "", "not applicable", f"not seen in replies; {UNSEEN[trap]}") for trap in UNSEEN]
    results += [each for each in unseen if not only or str(each.trap) in only]
    return sorted(results, key=lambda each: each.trap or 99)


def _listed(client: Client, key: str) -> tuple[str, int]:
    """The model that the gateway lists, and the tokens that it reads at most; 0 if the list does not say."""
    body = client.send("GET", "/v1/models", b"", DIALECTS[0].headers(key)).body
    try:
        card = body["data"][0]
        context = next((card[name] for name in ("max_model_len", "max_input_tokens") if name in card), 0)
        return str(card["id"]), int(context)
    except (KeyError, IndexError, TypeError, ValueError):
        return "model", 0


def _results(gateway: _Gateway, chosen: Sequence[Check], tell: Callable[[Result], None]) -> Iterator[Result]:
    served = {each.name: _extras(gateway, each) for each in DIALECTS}
    for check in sorted(chosen, key=lambda each: each.last):
        for dialect in DIALECTS:
            if dialect.name in check.dialects:
                extras = served[dialect.name]
                outcome, reason = (
                    ("not applicable", extras) if isinstance(extras, str) else _outcome(gateway, check, dialect, extras)
                )
                result = Result(check.trap, check.name, check.title, dialect.name, outcome, reason)  # type: ignore[arg-type]
                tell(result)
                yield result


def _extras(gateway: _Gateway, dialect: Dialect) -> Json | str:
    """What requests of a dialect may have beside its own keys; or why it is not served. Raises KitError."""
    for extras in EXTRAS:
        talk, close = gateway.talk(dialect, extras)
        try:
            answer = talk.send(talk.body(talk.user("The kit is here.")))
        finally:
            close()
        if answer.status in {404, 405, 501}:
            return f"there is no {dialect.path} (status {answer.status})"
        if answer.status == 200:
            try:
                text = dialect.read(answer.body)[0].text
            except (KeyError, IndexError, TypeError, ValueError, AttributeError, Failed):
                return extras  # each check says what is wrong
            if text != "The kit is here.":
                raise KitError(f"the engine does not obey the directive: it said {text!r:.80}, not 'The kit is here.'")
            return extras
    raise KitError(f"POST {dialect.path} gives status {answer.status}: {answer.content:.300}")


def _outcome(gateway: _Gateway, check: Check, dialect: Dialect, extras: Json) -> tuple[Outcome, str]:
    talk, close = gateway.talk(dialect, extras)
    try:
        check.run(talk)
    except Failed as failed:
        return "failed", str(failed)
    except NotApplicable as reason:
        return "not applicable", str(reason)
    except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
        return "failed", f"the connection broke: {error or type(error).__name__}"
    finally:
        close()
    return "passed", ""


def table(results: Sequence[Result]) -> str:
    """The results as a text: a line each, and how many there are of each outcome."""
    rows = [("trap", "dialect", "result", "check")]
    for each in results:
        what = ": ".join(filter(None, (each.title, each.reason)))
        rows.append((str(each.trap or "-"), each.dialect or "-", each.outcome, what))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    widths.append(0)
    lines = ["  ".join(part.ljust(width) for part, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*lines, "", counted(results)])


def counted(results: Sequence[Result]) -> str:
    """How many results there are of each outcome."""
    counts = Counter(each.outcome for each in results)
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['not applicable']} not applicable"


def as_json(results: Sequence[Result]) -> str:
    """The results as a JSON list."""
    return json.dumps([asdict(each) for each in results], indent=2, ensure_ascii=False)


def main() -> int:
    """Run as a program; the exit code is 1 if a check failed, and 2 if none could be run."""
    parser = argparse.ArgumentParser(description="Run the traps of training gateways against a gateway.")
    parser.add_argument("url")
    parser.add_argument("--key", required=True)
    parser.add_argument("--model", default="")
    parser.add_argument("--context", type=int, default=0)
    parser.add_argument("--silence", type=float, default=SILENCE)
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        results = run(
            given.url, given.key, model=given.model, context=given.context, silence=given.silence, only=given.only
        )
    except KitError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write((as_json(results) if given.json else table(results)) + "\n")
    return int(any(each.outcome == "failed" for each in results))


if __name__ == "__main__":
    sys.exit(main())

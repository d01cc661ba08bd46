"""Answer checking: how often it is right on generated and on judged pairs, which golds it reads, checks a second.

    agent-rl bench checks
    agent-rl bench checks --data shared/data --misses

Generated pairs (``answer_pairs.jsonl``) are near-misses, of which none should be accepted, and equal pairs, of which
all should be. They go the way of a rollout: the prediction stands in a box, in answer tags. Their generator, last in
commit 180819cc, used no code of the checker. It left out what careful teachers could discuss: a unit or label on one
side only, rounding, tuples in other brackets, one name of a variable for another.

The judged pairs (`equivalence/pairs.jsonl`: `gold`, `pred`, `equal` a line) and the problems (`eval`, `train`) are not
part of the repository; without them these figures are unknown. Of the judged pairs those count that a box could hold:
see ``left_out``. `copied_accepted` counts the problems of which a part is taken for the answer. Speed is that of one
process, warmed up, on ``short_answers.jsonl``, each checker in turn, round by round; figures are medians, and for the
own checker also the best round by processor time. Math-Verify is called plainly, and with bare text in dollar signs.
"""

from __future__ import annotations

import gzip
import json
import logging
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from agent_rl.environments.maths.rewards import CLOSING, OPENING, answers_equal, exactly_equal, final_answer, is_read
from benchmarks.copied_answers import accepted_copies
from benchmarks.reporting import print_figures, print_table

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared/data"
GENERATED = Path(__file__).with_name("answer_pairs.jsonl")
"""Two thousand near-misses, then as many equal pairs. A line has the fields of `Pair`."""
SHORT_ANSWERS = Path(__file__).with_name("short_answers.jsonl")
"""Kinds in about the shares in which public training sets hold them, but for integers, which are most of those."""
ROUNDED = frozenset({"eq-133", "eq-398"})
"""Judged pairs in which a decimal of four or five digits is to be taken for an exact value."""
PARAGRAPH = 200
"""Characters of a text that is no answer."""
ROUNDS = 7
SHOWN = 3
"""Misjudged pairs that are shown of a kind and mutation."""
OURS = "agent_rl"
_NO_WORDS = re.compile(
    r"\$\$.*?\$\$|\$.*?\$|\\\(.*?\\\)|\\\[.*?\\\]|\\boxed\s*\{(?:[^{}]|\{[^{}]*\})*\}?|\\[A-Za-z]+", re.DOTALL
)
_WORD = re.compile(r"\b(?!(?:and|or|percent|pct)\b)[A-Za-z']{2,}")

Checker: TypeAlias = Callable[[str, str], bool]


class Pair(NamedTuple):
    """A gold answer and a prediction, their kind, and the mutation between them ("" if they are equal)."""

    kind: str
    mutation: str
    gold: str
    prediction: str


class Accuracy(NamedTuple):
    """Verdicts as the pairs' sources expect them, of how many; and pairs accepted that a source holds to be unequal."""

    right: int
    pairs: int
    false_positives: int


def read_rows(path: Path) -> list[Any]:
    """The rows of a file of JSON lines."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def is_sentence(text: str) -> bool:
    """Whether a text is long, or holds words outside of formulas, boxes and commands, but for and, or, percent."""
    return len(text) > PARAGRAPH or _WORD.search(_NO_WORDS.sub(" ", text)) is not None


def left_out(row: Mapping[str, Any]) -> str:
    """Why a judged pair is not about the content of a box; nothing if it is.

    Its source extracts the answer, and one side is a sentence; or a decimal is to be rounded.
    """
    if row.get("kind") == "extract" and (is_sentence(row["pred"]) or is_sentence(row["gold"])):
        return "sentence"
    return "rounding" if row.get("id") in ROUNDED else ""


def public_problems(data: Path) -> list[dict[str, Any]]:
    """The rows of the sets below ``data``: problems and their gold answers."""
    return [
        row for sets in ("eval/*.jsonl", "train/*.gz") for path in sorted(data.glob(sets)) for row in read_rows(path)
    ]


def unread_golds(golds: Sequence[str]) -> list[str]:
    """The golds of which no reading is found."""
    return [gold for gold in golds if not is_read(gold)]


def judge(pair: Pair) -> bool | None:
    """The verdict on a rollout that ends in the prediction; None if the checker raises, which it never should."""
    prediction = final_answer(f"{OPENING}\\boxed{{{pair.prediction}}}{CLOSING}")
    try:
        return prediction is not None and answers_equal(pair.gold, prediction)
    except Exception:  # noqa: BLE001  whatever it is, it is told as a fault of the checker
        return None


def math_verify(gold: str, prediction: str) -> bool:
    """Math-Verify alone, called plainly; without its alarms, as here nothing hangs."""
    from math_verify import parse, verify

    return bool(
        verify(parse(gold, parsing_timeout=None), parse(prediction, parsing_timeout=None), timeout_seconds=None)
    )


def math_verify_delimited(gold: str, prediction: str) -> bool:
    """Math-Verify on text that says where its formulas are."""
    return math_verify(*(text if "$" in text or r"\boxed" in text else f"${text}$" for text in (gold, prediction)))


def accuracy(check: Checker, pairs: Sequence[tuple[str, str, bool]]) -> tuple[Accuracy, list[int]]:
    """What a checker makes of the pairs, and the places of those it misses."""
    verdicts = [check(gold, prediction) for gold, prediction, _ in pairs]
    misses = [place for place, (verdict, pair) in enumerate(zip(verdicts, pairs, strict=True)) if verdict != pair[2]]
    return Accuracy(len(pairs) - len(misses), len(pairs), sum(verdicts[place] for place in misses)), misses


def checks_per_s(check: Checker, pairs: Sequence[tuple[str, str]], seconds: float) -> tuple[float, float]:
    """Checks a second, and a second of processor time, over as many passes over the pairs as fill the time."""
    done, started, processor = 0, time.perf_counter(), time.process_time()
    while (elapsed := time.perf_counter() - started) < seconds:
        for gold, prediction in pairs:
            check(gold, prediction)
        done += len(pairs)
    return done / elapsed, done / (time.process_time() - processor)


@dataclass(kw_only=True)
class Options:
    """The options."""

    data: Path = DEFAULT_DATA
    """The folder of judged pairs and public golds."""
    misses: bool = False
    """List the pairs that are judged otherwise than expected, and the golds that are not read."""
    quick: bool = False
    """A tenth of the time and of the generated pairs."""


def main(options: Options) -> int:
    """Measure and print. The exit code is 1 if the own checker misjudges one of the short answers."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it says that it sets no alarm
    checkers: dict[str, Checker] = {OURS: answers_equal, "Math-Verify": math_verify}
    checkers["Math-Verify, delimited"] = math_verify_delimited
    short = [(row["gold"], row["pred"], row["equal"]) for row in read_rows(SHORT_ANSWERS)]
    figures: dict[str, float | str | None] = {}
    _speed(checkers, short, figures, seconds=0.1 if options.quick else 1.0)
    _accuracy(checkers, figures, options.data / "equivalence/pairs.jsonl", list_misses=options.misses)
    share = 10 if options.quick else 1
    problems = public_problems(options.data)
    golds, unread = len(problems), unread_golds([row["answer"] for row in problems])
    figures["golds"], figures["golds_read"] = golds, 1 - len(unread) / golds if golds else None
    copied = [(row["answer"], found[0]) for row in problems[::share] if (found := accepted_copies(row, answers_equal))]
    figures["copied_accepted"] = len(copied) if golds else None
    if options.misses:
        print_table("Golds that are not read", ["gold"], [[gold[:100]] for gold in unread])
        print_table("Copies that are accepted", ["gold", "copied"], [[each[:100] for each in pair] for pair in copied])
    _generated([Pair(*row) for row in read_rows(GENERATED)[::share]], figures)
    _, misses = accuracy(answers_equal, short)
    for place in misses:
        print(f"misjudged: {short[place][0]!r} and {short[place][1]!r}", file=sys.stderr)
    print_figures(figures)
    return 1 if misses else 0


def _speed(
    checkers: dict[str, Checker],
    short: Sequence[tuple[str, str, bool]],
    figures: dict[str, float | str | None],
    *,
    seconds: float,
) -> None:
    mixes = {"all": short, "not settled exactly": [each for each in short if exactly_equal(*each[:2]) is None]}
    rates: dict[tuple[str, str], list[float]] = {}
    best = 0.0
    right = {
        (name, mix): accuracy(checkers[name], mixes[mix])[0].right for name in checkers for mix in mixes
    }  # warms up
    for _ in range(ROUNDS):
        for mix, answers in mixes.items():
            for name, check in checkers.items():
                wall, processor = checks_per_s(check, [each[:2] for each in answers], seconds)
                rates.setdefault((name, mix), []).append(wall)
                best = max(best, processor) if (name, mix) == (OURS, "all") else best
    medians = {key: statistics.median(values) for key, values in rates.items()}
    rows = [
        [name, mix, median, min(rates[name, mix]), f"{right[name, mix]} of {len(mixes[mix])}"]
        for (name, mix), median in medians.items()
    ]
    print_table("Short answers, one process", ["checker", "answers", "checks/s", "slowest round", "right"], rows)
    figures["checks_per_s"] = medians[OURS, "all"]
    figures["checks_per_s_symbolic"] = medians[OURS, "not settled exactly"]
    figures["checks_per_processor_s"] = best
    for name in checkers:
        if name != OURS:
            figures[f"{_prefix(name)}_checks_per_s"] = medians[name, "all"]


def _accuracy(
    checkers: dict[str, Checker], figures: dict[str, float | str | None], path: Path, *, list_misses: bool
) -> None:
    rows = read_rows(path) if path.exists() else []
    if not rows:
        print(f"no pairs at {path}: accuracy is not measured (--data FOLDER)")
        figures |= dict.fromkeys(
            f"{_prefix(name)}_{what}" for name in checkers for what in ("right", "false_positives")
        )
        return
    reasons = Counter(map(left_out, rows))
    print(f"left out: {', '.join(f'{count} ({reason})' for reason, count in reasons.items() if reason) or 'none'}")
    without = [row for row in rows if left_out(row) != "sentence"]
    for name, some in (("of_all", rows), ("without_sentences", without)):
        right = accuracy(answers_equal, [_triple(row) for row in some])[0].right
        figures[f"equivalence_right_{name}"] = right / len(some)
    rows = [row for row in rows if not left_out(row)]
    table: list[list[object]] = []
    for name, check in checkers.items():
        result, misses = accuracy(check, [_triple(row) for row in rows])
        table.append([name, result.right, result.pairs, result.right / result.pairs, result.false_positives])
        figures[f"{_prefix(name)}_right"] = result.right / result.pairs
        figures[f"{_prefix(name)}_false_positives"] = result.false_positives
        if list_misses and name == OURS:
            missed = [
                [rows[at].get("id", at), rows[at]["equal"], rows[at]["gold"][-60:], rows[at]["pred"][-60:]]
                for at in misses
            ]
            print_table("Judged otherwise than expected", ["pair", "expected equal", "gold", "prediction"], missed)
    figures["equivalence_pairs"] = len(rows)
    print_table("Judged pairs", ["checker", "right", "pairs", "share", "false positives"], table)


def _triple(row: Mapping[str, Any]) -> tuple[str, str, bool]:
    return row["gold"], row["pred"], bool(row["equal"])


def _generated(pairs: Sequence[Pair], figures: dict[str, float | str | None]) -> None:
    """Judge the generated pairs and tell which kinds and mutations are misjudged."""
    accepted, right, raised = Counter[str](), Counter[str](), Counter[str]()
    misses, equal = (Counter(pair.kind for pair in pairs if bool(pair.mutation) is wrong) for wrong in (True, False))
    totals = Counter((pair.kind, pair.mutation) for pair in pairs)
    wrong: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        verdict = judge(pair)
        raised[pair.kind] += verdict is None
        (accepted if pair.mutation else right)[pair.kind] += bool(verdict)
        if verdict is None or verdict == bool(pair.mutation):
            wrong.setdefault((pair.kind, pair.mutation), []).append(pair)
    rows = [
        [kind, misses[kind], accepted[kind], equal[kind], right[kind], raised[kind]] for kind in sorted(misses | equal)
    ]
    header = ["kind", "near-misses", "accepted", "equal pairs", "accepted", "checker raised"]
    print_table("Generated pairs", header, rows)
    if wrong:
        shown: list[list[object]] = []
        for (kind, mutation), examples in sorted(wrong.items(), key=lambda item: -len(item[1])):
            counts = len(examples), totals[kind, mutation]
            row = [kind, mutation or "none: equal", *counts]
            shown += [[*row, pair.gold.strip(), pair.prediction.strip()] for pair in examples[:SHOWN]]
        header = ["kind", "mutation", "misjudged", "of", "gold", "prediction"]
        print_table("Misjudged generated pairs, the first of each kind and mutation", header, shown)
    figures["near_misses"] = misses.total()
    figures["near_misses_accepted"] = accepted.total()
    figures["equal_pairs"] = equal.total()
    figures["equal_pairs_accepted"] = right.total() / equal.total()
    figures["checker_raised"] = raised.total()


def _prefix(checker: str) -> str:
    """How a checker's figures begin."""
    return "equivalence" if checker == OURS else checker.lower().replace(", ", "_").replace("-", "_")

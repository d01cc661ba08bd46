"""Answer checking: how often it is right on generated and on judged pairs, and how many checks it does a second.

    agent-rl bench checks
    agent-rl bench checks --pairs pairs.jsonl --misses
    agent-rl bench checks --seed 5 --near-misses 20000 --equal-pairs 20000

Generated pairs (``benchmarks/answer_pairs``) are near-misses, of which none should be accepted, and equal pairs, of
which all should be. They go the way of a rollout: the prediction stands in a box, in answer tags.

The judged pairs (`gold`, `pred`, `equal` a line) are not part of the repository; without them that share is unknown.
Speed is that of one process, warmed up, on the short answers below, each checker in turn, round by round; figures are
medians, beside the number of answers judged rightly, since giving up is fast. Math-Verify is called plainly, and once
more with bare text set in dollar signs, which it reads better.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from agent_rl.environments.maths.rewards import CLOSING, OPENING, answers_equal, exactly_equal, final_answer
from benchmarks.answer_pairs import Pair, equal_pair, near_miss, pairs
from benchmarks.reporting import print_figures, print_table

DEFAULT_PAIRS = Path(__file__).resolve().parents[2] / "shared/data/equivalence/pairs.jsonl"
EXCLUDED = Path(__file__).with_name("equivalence_excluded.json")
"""Ids of pairs that ask for another thing than equality, by the reason: see docs/answer_checking.md."""
ROUNDS = 7
SHOWN = 3
"""Misjudged pairs that are shown of a kind and mutation."""
OURS = "agent_rl"
EXACT = [("204", "204"), ("7425000", "7,425,000"), ("42", "43"), ("-3", "$-3$"), ("10", "10.0")]
SYMBOLIC = [
    (r"\frac{1}{2}", "0.5"),
    (r"\frac{14}{3}", r"4\frac{2}{3}"),
    (r"3\sqrt{2}", r"\sqrt{18}"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"),
    ("2+\\sqrt{3}", "\\frac{1}{2-\\sqrt{3}}"),
    (r"6 - 5i", r"-5i+6"),
    (r"288\pi", r"288 \pi"),
    (r"\frac{3}{56}", r"\frac{3}{55}"),
    ("x^2+2x+1", "(x+1)^2"),
    ("p - q", "q - p"),
    (r"\frac{n(n+1)}{2}", r"\binom{n+1}{2}"),
    (r"\ln 6", r"\ln 2 + \ln 3"),
    (r"\sin 2x", r"2 \sin x \cos x"),
    ("1,2,3", r"\{3, 2, 1\}"),
    ("(3, 4)", "(4, 3)"),
    (r"(-\sqrt{3}, \sqrt{3})", r"\left(-\sqrt 3, \sqrt 3\right)"),
    (r"[2, \infty)", r"x \ge 2"),
    (r"(-\infty, 0) \cup (0, \infty)", r"x \neq 0"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"),
    ("y = 3x - 2", "3x - y = 2"),
    ("5", r"5\text{ cm}"),
    (r"28\%", "0.28"),
    ("A", r"\text{(A)}"),
    (r"\text{even}", "even"),
]
"""Kinds in about the shares in which public training sets hold them, but for integers, which are most of those."""
RIGHT = dict.fromkeys(EXACT + SYMBOLIC, True) | dict.fromkeys(
    (("42", "43"), (r"\frac{3}{56}", r"\frac{3}{55}"), ("p - q", "q - p"), ("(3, 4)", "(4, 3)")), False
)

Checker: TypeAlias = Callable[[str, str], bool]


class Accuracy(NamedTuple):
    """Verdicts as the pairs' sources expect them, of how many; and pairs accepted that a source holds to be unequal."""

    right: int
    pairs: int
    false_positives: int


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


def checks_per_s(check: Checker, pairs: Sequence[tuple[str, str]], seconds: float) -> float:
    """Checks a second, over as many passes over the pairs as fill the time."""
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for gold, prediction in pairs:
            check(gold, prediction)
        done += len(pairs)
    return done / elapsed


@dataclass(kw_only=True)
class Options:
    """The options."""

    pairs: Path = DEFAULT_PAIRS
    """A file of judged pairs, JSON lines."""
    misses: bool = False
    """List the pairs that are judged otherwise than expected."""
    seed: int = 0
    """Of the generated pairs."""
    near_misses: int = 2000
    """How many are generated."""
    equal_pairs: int = 2000
    """How many are generated."""
    quick: bool = False
    """A tenth of the time and of the generated pairs."""


def main(options: Options) -> int:
    """Measure and print. The exit code is 1 if the own checker misjudges one of the short answers."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it says that it sets no alarm
    checkers: dict[str, Checker] = {
        OURS: answers_equal,
        "Math-Verify": math_verify,
        "Math-Verify, delimited": math_verify_delimited,
    }
    figures: dict[str, float | str | None] = {}
    _speed(checkers, figures, seconds=0.1 if options.quick else 1.0)
    _accuracy(checkers, figures, options.pairs, list_misses=options.misses)
    share = 10 if options.quick else 1
    _generated(
        list(pairs(equal_pair, options.equal_pairs // share, options.seed)),
        list(pairs(near_miss, options.near_misses // share, options.seed)),
        figures,
    )
    wrong = [pair for pair, equal in RIGHT.items() if answers_equal(*pair) != equal]
    for gold, prediction in wrong:
        print(f"misjudged: {gold!r} and {prediction!r}", file=sys.stderr)
    print_figures(figures)
    return 1 if wrong else 0


def _speed(checkers: dict[str, Checker], figures: dict[str, float | str | None], *, seconds: float) -> None:
    mixes = {
        "all": EXACT + SYMBOLIC,
        "not settled exactly": [pair for pair in SYMBOLIC if exactly_equal(*pair) is None],
    }
    rates: dict[tuple[str, str], list[float]] = {}
    for check in checkers.values():  # what is imported and built lazily
        checks_per_s(check, mixes["all"], 0.0)
        for pair in mixes["all"]:
            check(*pair)
    for _ in range(ROUNDS):
        for mix, answers in mixes.items():
            for name, check in checkers.items():
                rates.setdefault((name, mix), []).append(checks_per_s(check, answers, seconds))
    medians = {key: statistics.median(values) for key, values in rates.items()}
    rows = [
        [name, mix, median, min(rates[name, mix]), f"{right} of {len(mixes[mix])}"]
        for (name, mix), median in medians.items()
        for right in [sum(checkers[name](*pair) == RIGHT[pair] for pair in mixes[mix])]
    ]
    print_table("Short answers, one process", ["checker", "answers", "checks/s", "slowest round", "right"], rows)
    figures["checks_per_s"] = medians[OURS, "all"]
    figures["checks_per_s_symbolic"] = medians[OURS, "not settled exactly"]
    for name in checkers:
        if name != OURS:
            figures[f"{_prefix(name)}_checks_per_s"] = medians[name, "all"]


def _accuracy(
    checkers: dict[str, Checker], figures: dict[str, float | str | None], path: Path, *, list_misses: bool
) -> None:
    if not path.exists():
        print(f"no pairs at {path}: accuracy is not measured (--pairs FILE)")
        figures |= dict.fromkeys(
            f"{_prefix(name)}_{what}" for name in checkers for what in ("right", "false_positives")
        )
        return
    all_rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    reasons = {pair: reason for reason, ids in json.loads(EXCLUDED.read_text()).items() for pair in ids}
    rows = [row for row in all_rows if row.get("id") not in reasons]
    excluded = Counter(reasons[row["id"]] for row in all_rows if row.get("id") in reasons)
    print(f"excluded, by id: {', '.join(f'{count} ({reason})' for reason, count in excluded.items()) or 'none'}")
    in_all = sum(answers_equal(row["gold"], row["pred"]) == bool(row["equal"]) for row in all_rows)
    figures["equivalence_excluded"] = excluded.total()
    figures["equivalence_right_of_all"] = in_all / len(all_rows)
    judged = [(row["gold"], row["pred"], bool(row["equal"])) for row in rows]
    table: list[list[object]] = []
    for name, check in checkers.items():
        result, misses = accuracy(check, judged)
        table.append([name, result.right, result.pairs, result.right / result.pairs, result.false_positives])
        figures[f"{_prefix(name)}_right"] = result.right / result.pairs
        figures[f"{_prefix(name)}_false_positives"] = result.false_positives
        if list_misses and name == OURS:
            missed = [
                [rows[at].get("id", at), judged[at][2], judged[at][0][-60:], judged[at][1][-60:]] for at in misses
            ]
            print_table("Judged otherwise than expected", ["pair", "expected equal", "gold", "prediction"], missed)
    print_table("Judged pairs", ["checker", "right", "pairs", "share", "false positives"], table)


def _generated(equal: Sequence[Pair], misses: Sequence[Pair], figures: dict[str, float | str | None]) -> None:
    """Judge the generated pairs and tell which kinds and mutations are misjudged."""
    accepted, right, raised = Counter[str](), Counter[str](), Counter[str]()
    made = Counter(pair.kind for pair in misses), Counter(pair.kind for pair in equal)
    totals = Counter((pair.kind, pair.mutation) for pair in (*equal, *misses))
    wrong: dict[tuple[str, str], list[Pair]] = {}
    for pair in (*misses, *equal):
        verdict = judge(pair)
        raised[pair.kind] += verdict is None
        (accepted if pair.mutation else right)[pair.kind] += bool(verdict)
        if verdict is None or verdict == bool(pair.mutation):
            wrong.setdefault((pair.kind, pair.mutation), []).append(pair)
    rows = [
        [kind, made[0][kind], accepted[kind], made[1][kind], right[kind], raised[kind]]
        for kind in sorted(made[0] | made[1])
    ]
    header = ["kind", "near-misses", "accepted", "equal pairs", "accepted", "checker raised"]
    print_table("Generated pairs", header, rows)
    if wrong:
        shown = [
            [
                kind,
                mutation or "none: equal",
                len(examples),
                totals[kind, mutation],
                pair.gold.strip(),
                pair.prediction.strip(),
            ]
            for (kind, mutation), examples in sorted(wrong.items(), key=lambda item: -len(item[1]))
            for pair in examples[:SHOWN]
        ]
        header = ["kind", "mutation", "misjudged", "of", "gold", "prediction"]
        print_table("Misjudged generated pairs, the first of each kind and mutation", header, shown)
    figures["near_misses"] = len(misses)
    figures["near_misses_accepted"] = accepted.total() if misses else None
    figures["equal_pairs"] = len(equal)
    figures["equal_pairs_accepted"] = right.total() / len(equal) if equal else None
    figures["checker_raised"] = raised.total()


def _prefix(checker: str) -> str:
    """How a checker's figures begin."""
    return "equivalence" if checker == OURS else checker.lower().replace(", ", "_").replace("-", "_")

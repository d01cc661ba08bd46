"""The results of an evaluation: each problem's, from the journal, and the figures of all, by file and by subject."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from agent_rl.config.selection import Solved
from agent_rl.environments.maths.environment import BY_VALUE
from agent_rl.evaluation.measures import maj_at_k, pass_at_k, powers_of_two
from agent_rl.evaluation.problems import EvaluationError
from agent_rl.files.disk import whole
from agent_rl.files.reading_json import json_value, read_json
from agent_rl.groups.measures import mean_interval
from agent_rl.messages import LOST, Problem
from agent_rl.records.journal import JOURNAL, Stored, read_journal

FILE = "results.json"
GROUPINGS = {"environment": "by_environment", "file": "by_file", "subject": "by_subject", "level": "by_level"}
"""What problems are grouped by, where the rows say it, and the name of that part of the results."""


@dataclass(frozen=True, slots=True)
class ProblemResult:
    """The result of one problem. Lists have an entry for each rollout; a missing rollout has no answer and is wrong."""

    environment: str
    file: str
    id: str
    subject: str
    level: str
    problem: str
    answer: str
    correct: int
    samples: int
    answers: tuple[str | None, ...]
    rewards: tuple[float, ...]
    successes: tuple[bool, ...]
    tokens: tuple[int, ...]
    turns: tuple[int, ...]
    calls: tuple[int, ...]
    failed_calls: tuple[int, ...]
    truncated: int
    lost: int
    no_room: int = 0
    """Of the lost rollouts, those whose prompt left no room for an answer."""
    right_by_value: int = 0
    """Of the wrong rollouts, those whose answer only is not worked out."""

    @property
    def solved(self) -> Solved:
        """How many of the samples were right."""
        return Solved(self.correct, self.samples)

    @property
    def share(self) -> Fraction:
        """Of right answers."""
        return self.solved.share

    def votes(self) -> tuple[int, list[int], int]:
        """How many rollouts gave the right answer, each other one, and none.

        Wrong answers count as the same when their environment wrote them as the same text.
        """
        others: Counter[str] = Counter()
        unanswered = self.lost
        for answer, success in zip(self.answers, self.successes, strict=True):
            if success:
                continue
            if answer is None:
                unanswered += 1
            else:
                others[answer] += 1
        return self.correct, list(others.values()), unanswered


def read_results(directory: Path, asked: int, samples: int, decode: Callable[[bytes], Any]) -> list[ProblemResult]:
    """What the journal of an evaluation holds, one by one in the order asked.

    Raises EvaluationError when some are missing.
    """
    opened = read_journal(directory)
    try:
        results = [
            _problem_result(decode(row.opened).problem, opened.trajectories(row.id), samples, decode)
            for row in opened.groups(stage=0, states=("evaluated",))
        ]
    finally:
        opened.close()
    if len(results) != asked:
        raise EvaluationError(
            f"{directory / JOURNAL} holds {len(results)} of {asked} problems: the evaluation is not finished"
        )
    return results


def _problem_result(
    problem: Problem, rows: Iterable[Stored], samples: int, decode: Callable[[bytes], Any]
) -> ProblemResult:
    stored = list(rows)
    judged = [(decode(r.payload), r.judgement) for r in stored if r.status not in LOST and r.judgement is not None]
    rollouts = [rollout for rollout, _ in judged]
    return ProblemResult(
        environment=problem.environment,
        file=str(problem.payload.get("file", "")),
        id=problem.id,
        subject=str(problem.payload.get("subject", "")),
        level=str(problem.payload.get("level", "")),
        problem=problem.text,
        answer=problem.answer,
        correct=Solved.counted((judgement.success for _, judgement in judged), samples).right,
        samples=samples,
        answers=tuple(judgement.answer or None for _, judgement in judged),
        rewards=tuple(judgement.reward for _, judgement in judged),
        successes=tuple(judgement.success for _, judgement in judged),
        tokens=tuple(rollout.response_length for rollout in rollouts),
        turns=tuple(rollout.turns for rollout in rollouts),
        calls=tuple(len(rollout.transcript.calls) for rollout in rollouts),
        failed_calls=tuple(sum(call.outcome != "success" for call in rollout.transcript.calls) for rollout in rollouts),
        truncated=sum(rollout.status == "truncated" for rollout in rollouts),
        lost=samples - len(judged),
        no_room=sum(row.status == "prompt_too_long" for row in stored),
        right_by_value=sum(judgement.note == BY_VALUE for _, judgement in judged),
    )


def figures(results: Sequence[ProblemResult]) -> dict[str, float | None]:
    """The figures of problems with equal numbers of samples: shares, their 95 % intervals over problems, and means.

    The ends of an interval are named ``_low`` and ``_high``. Shares are in [0, 1], lengths in response tokens. A mean
    of nothing is None.
    """
    samples = results[0].samples
    ks = powers_of_two(samples)
    names = [f"pass@{k}" for k in ks] + [f"maj@{k}" for k in ks[1:]]
    asked = [(each.environment, each.problem, each.answer) for each in results]
    found: dict[str, float | None] = {"problems": float(len(results)), "samples": float(samples)}
    if (distinct := len(set(asked))) < len(results):
        found["distinct_problems"] = float(distinct)
    for name, k, values in zip(
        names, (*ks, *ks[1:]), zip(*(_shares(r, ks) for r in results), strict=True), strict=True
    ):
        low, high = mean_interval(values, samples // k, asked)
        found |= {name: math.fsum(values) / len(values), f"{name}_low": low, f"{name}_high": high}
    rollouts = sum(len(result.tokens) for result in results)
    calls = sum(sum(result.calls) for result in results)

    def share(total: float, of: float) -> float | None:
        return total / of if of else None

    return found | {
        "response_tokens": share(sum(sum(result.tokens) for result in results), rollouts),
        "turns": share(sum(sum(result.turns) for result in results), rollouts),
        "tool_calls": share(calls, rollouts),
        "tool_error_share": share(sum(sum(result.failed_calls) for result in results), calls),
        "truncated_share": share(sum(result.truncated for result in results), rollouts),
        "lost": float(sum(result.lost for result in results)),
        "no_room": float(sum(result.no_room for result in results)),
        "right_by_value": float(sum(result.right_by_value for result in results)),
    }


def _shares(result: ProblemResult, ks: Sequence[int]) -> list[float]:
    right, wrong, unanswered = result.votes()
    passed = [pass_at_k(result.samples, right, k) for k in ks]
    return passed + [maj_at_k(right, wrong, unanswered, k) for k in ks[1:]]


def all_figures(results: Sequence[ProblemResult]) -> dict[str, Any]:
    """The figures of all problems, and by file, subject and level where there are several."""
    found: dict[str, Any] = {"overall": figures(results)}
    for attribute, name in GROUPINGS.items():
        groups: dict[str, list[ProblemResult]] = {}
        for result in results:
            groups.setdefault(getattr(result, attribute), []).append(result)
        if len(groups) > 1:
            found[name] = {key or "(none)": figures(members) for key, members in sorted(groups.items())}
    return found


def write_results(path: Path, settings: Mapping[str, Any], results: Sequence[ProblemResult]) -> dict[str, Any]:
    """Write settings, figures and problems as JSON, whole or not at all; returns the figures."""
    found = all_figures(results)
    body = {"settings": dict(settings), **found, "problems": [asdict(result) for result in results]}
    with whole(path) as partial:
        partial.write_text(json.dumps(json_value(body), ensure_ascii=False, indent=1, allow_nan=False) + "\n", "utf-8")
    return found


def load_results(path: Path) -> list[ProblemResult]:
    """The problems of a results file, or of the directory it is in. Raises EvaluationError when that is none."""
    file = path / FILE if path.is_dir() else path
    try:
        body = read_json(file)
        results = [
            ProblemResult(**dict[str, Any]({k: tuple(v) if isinstance(v, list) else v for k, v in problem.items()}))
            for problem in body["problems"]
        ]
    except FileNotFoundError as error:
        raise EvaluationError(f"there is no {file}: name the directory of a finished evaluation") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EvaluationError(
            f"{file} is no results file of agent-rl eval ({type(error).__name__}: {error})"
        ) from error
    if not results:
        raise EvaluationError(f"{file} holds no problems")
    return results


def paired(a: Sequence[ProblemResult], b: Sequence[ProblemResult]) -> tuple[list[tuple[Fraction, Fraction]], int]:
    """The shares of right answers of the problems that are in both, and how many are in one alone.

    Problems are the same when text and answer are; copies of a problem are more answers to it.
    """
    of_a, of_b = map(_shares_of, (a, b))
    pairs = [(share, of_b[key]) for key, share in of_a.items() if key in of_b]
    return pairs, len(of_a) + len(of_b) - 2 * len(pairs)


def _shares_of(results: Sequence[ProblemResult]) -> dict[tuple[str, str], Fraction]:
    found: dict[tuple[str, str], list[Fraction]] = {}
    for result in results:
        found.setdefault((result.problem, result.answer), []).append(result.share)
    return {key: sum(shares, Fraction(0)) / len(shares) for key, shares in found.items()}

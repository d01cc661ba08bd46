"""Filters that keep a problem or drop it for a named reason. Each filter takes the rows one by one, in order.

Decontamination compares words: runs of letters and digits in lower case, and single Chinese, Japanese or Korean
characters. All other characters, also TeX's, separate words. De-duplication compares all characters except blanks,
dollar signs and case, since 3 + 4 is not 3 - 4.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Protocol

from agent_rl.config.selection import Difficulty, Solved
from agent_rl.data.review import NAMED
from agent_rl.environments.maths.rewards import is_integer
from agent_rl.messages import Problem

KEPT = ""
_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")


class Filter(Protocol):
    """Decides about rows in the order they come."""

    def reason(self, problem: Problem) -> str:
        """Why the problem is dropped; empty: it is kept."""


def words(text: str) -> list[str]:
    """The words of a text."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


class Decontaminate:
    """Drops problems that share n words in a row with an evaluation problem.

    ``share`` 0: one common n-gram is enough; else so large a share of the problem's n-grams must be common. Problems of
    fewer than n words are dropped when an evaluation problem has the very same words. Memory: the evaluation problems'
    n-grams.
    """

    def __init__(self, against: Iterable[Problem], n: int = 8, share: float = 0.0) -> None:
        self._n = n
        self._share = share
        self._grams: set[str] = set()
        self._short: set[str] = set()
        for problem in against:
            text_words = words(problem.text)
            self._grams.update(self._ngrams(text_words))
            if len(text_words) < n:
                self._short.add(" ".join(text_words))

    def reason(self, problem: Problem) -> str:
        """By the problem's text."""
        text_words = words(problem.text)
        if len(text_words) < self._n:
            return "same_as_evaluation" if " ".join(text_words) in self._short else KEPT
        grams = self._ngrams(text_words)
        common = sum(gram in self._grams for gram in grams)
        return f"{self._n}_gram_in_evaluation" if common and common >= self._share * len(grams) else KEPT

    def _ngrams(self, text_words: list[str]) -> list[str]:
        return [" ".join(text_words[start : start + self._n]) for start in range(len(text_words) - self._n + 1)]


class Deduplicate:
    """Keeps the first of the problems with the same text. Memory: 24 bytes of digests a problem kept, and their set."""

    def __init__(self) -> None:
        self._seen: dict[bytes, bytes] = {}

    def reason(self, problem: Problem) -> str:
        """By the problem's text; one that came with another answer is counted apart."""
        answer = _digest(" ".join(problem.answer.split()), 8)
        text = "".join(unicodedata.normalize("NFKC", problem.text).casefold().replace("$", "").split())
        first = self._seen.setdefault(_digest(text, 16), answer)
        if first is answer:
            return KEPT
        return "duplicate" if first == answer else "duplicate_with_another_answer"


class Integers:
    """Keeps problems whose answer is an integer, as the paper's RL data are."""

    def reason(self, problem: Problem) -> str:
        """By the problem's answer."""
        return KEPT if is_integer(problem.answer) else "answer_is_no_integer"


class ByDifficulty:
    """Keeps problems by a model's own samples, as a select stage does.

    ``solved`` are the samples of problems, by their text.
    """

    def __init__(self, solved: Mapping[str, Solved], rule: Difficulty) -> None:
        self._solved = solved
        self._rule = rule

    def reason(self, problem: Problem) -> str:
        """By the problem's text."""
        return self._rule.reason(self._solved.get(problem.text, Solved()))


class Tally:
    """How many rows were read, kept, and dropped by reason."""

    def __init__(self) -> None:
        self.read = 0
        self.dropped: Counter[str] = Counter()
        self._places: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, reason: str, where: str = "") -> bool:
        """Count a row; whether it is kept. The first rows with a place are named by `notes`."""
        self.read += 1
        if reason:
            self.dropped[reason] += 1
            if where and len(self._places[reason]) < NAMED:
                self._places[reason].append(where)
        return not reason

    def notes(self) -> list[str]:
        """A line for each reason, with the number of rows that were left out for it and the first of them."""
        return [
            f"note: left out {self.dropped[reason]:,} ({reason.replace('_', ' ')}): {', '.join(places)}"
            + (", ..." if self.dropped[reason] > len(places) else "")
            for reason, places in sorted(self._places.items())
        ]

    def figures(self) -> dict[str, int]:
        """By name."""
        kept = self.read - sum(self.dropped.values())
        return {"read": self.read, "kept": kept} | {f"dropped_{name}": n for name, n in sorted(self.dropped.items())}


def _digest(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=size).digest()

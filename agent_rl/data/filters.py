"""Keep a row or drop it for a named reason, and find the faults of rows. Rows come one by one, in order.

Decontamination compares words: runs of letters and digits in lower case, and single Chinese, Japanese or Korean
characters. All other characters, also TeX's, separate words. De-duplication compares all characters except blanks,
dollar signs and case, since 3 + 4 is not 3 - 4.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from agent_rl.config.selection import Difficulty, Solved
from agent_rl.data.conversations import spells_out
from agent_rl.data.rows import DataError, Row
from agent_rl.environments.base import TaskError
from agent_rl.environments.maths.rewards import is_integer, is_read
from agent_rl.environments.task_files import answer_of, problem_of, text_of
from agent_rl.messages import Problem
from agent_rl.observe.words import count_of
from agent_rl.rollout.prompts import ChatFormat

KEPT = ""
NAMED = 5
"""Rows of a kind that are named."""
UNREAD = "unread_answer"
FAULTS = {
    "without_problem": "without a problem: neither text in `problem` nor verl's `prompt`",
    "without_answer": "without an answer: neither text or a number in `answer` nor verl's `reward_model.ground_truth`",
    "unreadable": "with half of a surrogate pair, which is no character",
    "duplicate_id": "with the id of an earlier row",
    "prompt_too_long": "with a prompt that leaves no room for a response",
    "control_tokens": "with the text of a control token, which training spells out, as in &lt;|im_end|>",
    UNREAD: "with an answer that the checker of `maths` cannot read, so that only the same text equals it",
}
"""Faults of rows that training would refuse, skip or change, in words; and what is no fault in other environments."""
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


def renamed(row: Row, columns: Mapping[str, str], where: str) -> Row:
    """The row with columns under new names, in their old places; a dot in an old name leads into a column of columns.

    Raises DataError when a row has no such column, or already has the new one.
    """
    if not columns:
        return row
    values = {}
    for new, old in columns.items():
        value = row.get(old)
        if old not in row:
            value = row
            for part in old.split("."):
                if not isinstance(value, Mapping) or part not in value:
                    known = ", ".join(sorted(row))
                    raise DataError(
                        f"{where}: --columns {new}={old}: there is no column {old!r:.60}; there is {known:.300}"
                    )
                value = value[part]
        values[new] = value
    gone = {old for old in columns.values() if old in row}
    twice = next((new for new in values if new in row and new not in gone), None)
    if twice is not None:
        raise DataError(
            f"{where}: --columns {twice}={columns[twice]}: there is a column {twice!r} already; rename that one too"
        )
    new_name = {old: new for new, old in columns.items() if old in row}
    kept = {new_name.get(name, name): value for name, value in row.items()}
    return {**kept, **values}


class Tally:
    """How many rows were read, kept, and dropped by reason; the first rows of each reason are named."""

    def __init__(self) -> None:
        self.read = 0
        self.dropped: Counter[str] = Counter()
        self._places: defaultdict[str, list[str]] = defaultdict(list)

    def add(self, reason: str, where: str = "") -> bool:
        """Count a row; whether it is kept."""
        self.read += 1
        if reason:
            self.note(reason, where)
        return not reason

    def note(self, reason: str, where: str) -> None:
        """Count a reason alone."""
        self.dropped[reason] += 1
        if where and len(self._places[reason]) < NAMED:
            self._places[reason].append(where)

    def lines(self) -> list[str]:
        """A line for each reason with rows to name: their number, the reason, and the first of them."""
        return [
            f"note: {count_of(self.dropped[reason], 'row')} {FAULTS.get(reason, f'left out ({_words(reason)})')}: "
            f"{', '.join(places)}{', ...' if self.dropped[reason] > len(places) else ''}"
            for reason, places in sorted(self._places.items())
        ]

    def figures(self) -> dict[str, int]:
        """By name."""
        kept = self.read - sum(self.dropped.values())
        return {"read": self.read, "kept": kept} | {f"dropped_{name}": n for name, n in sorted(self.dropped.items())}


class Review:
    """Counts and names the faults of rows. Memory: the ids."""

    def __init__(self, chat: ChatFormat | None = None, longest: int = 0) -> None:
        """``chat`` finds control tokens, and prompts without room in a sequence of ``longest`` tokens."""
        self._chat, self._longest = chat, longest
        self._ids: set[str] = set()
        self.found = Tally()

    def faults(self, row: Row, where: str) -> list[str]:
        """What is wrong with a row, of `FAULTS`. A conversation needs neither problem nor answer.

        An answer that cannot be read is counted alone, since a judge of the user's own may take it.
        """
        faults, problem = [], None
        if "problem" in row or "prompt" in row or not ("messages" in row or "conversations" in row):
            for fault, read in (("without_problem", text_of), ("without_answer", answer_of)):
                try:
                    read(row, where)
                except TaskError:
                    faults.append(fault)
            if not faults:
                try:
                    problem = problem_of(row, where)
                except TaskError:
                    faults.append("unreadable")
                else:
                    faults += self._prompt_faults(problem)
        elif self._chat is not None and spells_out(self._chat, row):
            faults.append("control_tokens")
        if row.get("id") is not None:
            if str(row["id"]) in self._ids:
                faults.append("duplicate_id")
            self._ids.add(str(row["id"]))
        for fault in faults:
            self.found.note(fault, where)
        if problem is not None and not is_read(problem.answer):
            self.found.note(UNREAD, where)
        return faults

    def _prompt_faults(self, problem: Problem) -> Iterator[str]:
        if self._chat is not None and self._chat.too_long([problem], self._longest):
            yield "prompt_too_long"
        if self._chat is not None and self._chat.spells_out([{"role": "user", "content": problem.text}]):
            yield "control_tokens"

    def counts(self) -> dict[str, int]:
        """Rows by fault, of those there are."""
        return {name: self.found.dropped[name] for name in FAULTS if self.found.dropped[name]}


def _words(reason: str) -> str:
    return reason.replace("_", " ")


def _digest(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=size).digest()

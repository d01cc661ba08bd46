"""Forking and reflection tokens: texts, kinds and words of tokens, the highest entropies, and figures by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_rl.analysis.study import Scored, study
from agent_rl.analysis.tokens import AFTER_TOOL, CALL, COMMENT, GIVEN, TEXT, Token, highest, read_tokens, texts
from agent_rl.learning.tiny import character_tokenizer
from tests.agent_rl.records.report_runs import byte_tokenizer

CALL_TEXT = '<tool_call>{"name": "python", "arguments": {"code": "# try it\\nprint(\'#1\')  # so"}}</tool_call>'
BYTES, CHARACTERS = byte_tokenizer(), character_tokenizer(byte_fallback=True)


def decode(tokens: Sequence[int]) -> str:
    return str(BYTES.decode(list(tokens), skip_special_tokens=False))


@given(st.text(max_size=40))
def test_the_texts_of_tokens_add_up_to_the_text(text: str) -> None:
    for tokenizer in (BYTES, CHARACTERS):
        tokens = tokenizer.encode(text).ids
        pieces = texts(tokens, lambda some, of=tokenizer: str(of.decode(list(some), skip_special_tokens=False)))
        assert len(pieces) == len(tokens)
        assert "".join(pieces) == tokenizer.decode(tokens, skip_special_tokens=False)


@given(st.lists(st.integers(0, 400), max_size=60))
@example([94] * 7 + [126, 94])  # seven bytes that begin no character, and then one of two bytes
def test_any_tokens_have_texts(tokens: list[int]) -> None:
    """A model may write bytes that are no UTF-8, and tokens that its tokenizer does not know."""
    pieces = texts(tokens, decode)
    assert len(pieces) == len(tokens)
    assert "".join(pieces).replace("\ufffd", "") == decode(tokens).replace("\ufffd", "")
    assert texts(BYTES.encode("aé").ids, decode) == ["a", "", "é"]  # a character of several tokens is the last one's


def read(parts: Sequence[str], called: set[int], window: int = 3) -> list[Token]:
    """Parts 0, 2, ... are the model's; each character is a token."""
    pieces = [character for part in parts for character in part]
    mask = np.array([index % 2 == 0 for index, part in enumerate(parts) for _ in part], dtype=np.bool_)
    return read_tokens(pieces, mask, called, window)


def test_the_kind_of_each_token() -> None:
    tokens = read(["Let me. " + CALL_TEXT, "RESULT", "But wait" + CALL_TEXT, "AGAIN", "Done"], {1})
    kinds = [token.kind for token in tokens]
    shown = "".join(token.text for token in tokens)
    at = shown.index("RESULT")
    assert kinds[:8] == [TEXT] * 8
    comments = {shown[index:end] for index, end in spans(kinds, COMMENT) if index < at}
    assert comments == {"# try it", "# so"}  # the '#1' of a string is no comment
    assert {kinds[index] for index in range(8, at)} == {CALL, COMMENT}
    assert kinds[at : at + 6] == [GIVEN] * 6
    assert kinds[at + 6 : at + 14] == [AFTER_TOOL] * 3 + [TEXT] * 5
    assert kinds[-4:] == [TEXT] * 4  # what came before was no tool's response
    assert [token.since for token in tokens[at + 6 : at + 9]] == [0, 1, 2]
    assert {token.since for token in tokens[:at]} == {-1}


def spans(kinds: Sequence[int], kind: int) -> list[tuple[int, int]]:
    starts = [i for i, each in enumerate(kinds) if each == kind and (i == 0 or kinds[i - 1] != kind)]
    ends = [i + 1 for i, each in enumerate(kinds) if each == kind and kinds[i + 1 : i + 2] != [kind]]
    return list(zip(starts, ends, strict=True))


def test_a_call_that_is_not_closed_lasts_to_the_end_of_the_turn() -> None:
    tokens = read(["a<tool_call>{", "R", "b"], set())
    assert [token.kind for token in tokens] == [TEXT] + [CALL] * 12 + [GIVEN, TEXT]


def test_the_word_that_a_token_stands_in() -> None:
    mask = np.ones(7, dtype=np.bool_)
    tokens = read_tokens(["Dou", "ble", "-", "check", "  It", "'s", "\n"], mask, set(), 8)
    assert [token.word for token in tokens] == ["double", "double", "-", "check", "it's", "it's", "\\n"]


def test_the_highest_share_is_rounded_up_and_earlier_tokens_win() -> None:
    values = [1.0, 3.0, 2.0, 3.0, 0.0]
    for entropy, share, chosen in (
        (values, 0.2, [1]), (values, 0.21, [1, 3]), ([math.nan, 1.0], 0.2, [1]), ([], 0.2, []), ([0.0] * 3, 0.01, [0]),
    ):  # fmt: skip
        assert np.flatnonzero(highest(np.array(entropy), share)).tolist() == chosen


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.floats(0.01, 0.99))
def test_no_other_token_has_more_entropy_than_a_chosen_one(values: list[float], share: float) -> None:
    entropy = np.array(values)
    flags = highest(entropy, share)
    assert share * len(values) - 1e-6 <= flags.sum() < share * len(values) + 1
    if not flags.all():
        assert entropy[flags].min() >= entropy[~flags].max()


def test_the_figures_of_a_rollout_by_hand() -> None:
    """Ten tokens of the model, so two are high: a forking one and a reflection one."""
    tokens = [
        *(Token(f" {word}", word, TEXT) for word in ("so", "maybe", "so", "so")),
        Token("call", "call", CALL), Token("#", "#", COMMENT), Token("given", "", GIVEN),
        Token(" hmm", "hmm", AFTER_TOOL, 0), Token(" so", "so", AFTER_TOOL, 1),
        *(Token(" so", "so", TEXT, since) for since in (4, 5)),
    ]  # fmt: skip
    entropy = np.array([0.1, 2.0, 0.1, 0.1, 0.0, 0.3, math.nan, 3.0, 0.5, 0.2, 0.4])
    gap = np.where(np.isnan(entropy), np.nan, [0.5, -0.5] * 5 + [0.5])
    found = study([Scored(tokens, entropy, gap, highest(entropy, 0.2))])
    assert (found["rollouts"], found["tokens"], found["high_share"]) == (1, 10, 0.2)
    assert found["entropy"] == pytest.approx(6.7 / 10)
    kinds = {name: (mean["tokens"], mean["high_share"]) for name, mean in found["kinds"].items()}
    assert kinds.pop("text") == (6, pytest.approx(1 / 6))
    assert kinds == {"after_tool": (2, 0.5), "call": (1, 0.0), "comment": (1, 0.0)}
    assert found["kinds"]["after_tool"]["entropy"] == pytest.approx(1.75)
    assert [mean["tokens"] for mean in found["since"].values()] == [2, 2] + [0] * 8
    assert found["since"]["4 to 8"]["entropy"] == pytest.approx(0.3)
    assert found["threshold"] == 2.0
    assert found["gap"] == pytest.approx(0.5)
    (forking,) = found["forking"]
    assert (forking["word"], forking["tokens"], forking["high_share"], forking["entropy"]) == ("maybe", 1, 1.0, 2.0)
    assert forking["excess"] == pytest.approx(1 - 0.2)
    assert [word["word"] for word in found["reflection"]] == ["hmm"]
    nothing = study([])
    assert math.isnan(nothing["entropy"])
    assert math.isnan(nothing["gap"])
    assert nothing["forking"] == []

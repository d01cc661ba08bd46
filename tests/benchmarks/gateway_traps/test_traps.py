"""Each check passes at a gateway without faults, and fails at one with the fault that it is for."""

import pytest

from benchmarks.gateway_traps.client import DIALECTS
from benchmarks.gateway_traps.kit import Result, run
from benchmarks.gateway_traps.traps import ALL, CHECKS, UNSEEN
from tests.benchmarks.gateway_traps.naive import gateway

SILENCE = 0.8


def ran(*faults: str, only: set[str] = frozenset(), fresh: bool = True, silence: float = SILENCE) -> list[Result]:
    with gateway(*faults) as there:
        keys = {"new_key": there.new_key, "end": there.end} if fresh else {}
        return run(there.url, there.key, **keys, silence=silence, only=only)


def test_a_gateway_without_faults_passes_all():
    results = ran()
    for _ in range(3):  # a machine that stood still looks like a gateway that did
        if late := {each.check for each in results if each.outcome == "failed"} & {"keepalive", "true_streaming"}:
            results = [each for each in results if each.check not in late] + ran(only=late, silence=5 * SILENCE)
    assert {(each.trap, each.outcome, each.reason) for each in results if each.outcome == "failed"} == set()
    passed = {(each.check, each.dialect) for each in results if each.outcome == "passed"}
    assert passed == {(check.name, dialect) for check in CHECKS for dialect in check.dialects}
    assert {each.trap for each in results if each.outcome == "not applicable"} == set(UNSEEN)
    assert {each.trap for each in results} == set(range(24))


def test_one_key_serves_all_checks_but_that_of_the_end():
    wanted = {check.name for check in CHECKS} - {"keepalive", "true_streaming", "disconnect"}
    results = ran(only=wanted, fresh=False)
    assert {each.check for each in results if each.outcome != "passed"} == {"late"}
    assert "new_key" in next(each.reason for each in results if each.check == "late")


CHAT, OPENAI, ANTHROPIC = ("chat",), ("chat", "responses"), ("anthropic",)
TEXTS = "other_tokenization white_space stripped"
CALLS = "tool_call two_calls arguments_anew javascript_numbers"
FAULTS = [
    ("other_frame", "turn side_call system_in_between turned_tools reasoning", ALL),
    ("renders_again", f"{TEXTS} tool_call two_calls arguments_anew", ALL),
    ("exact_text", "stripped", CHAT),
    ("exact_json", "arguments_anew javascript_numbers", ALL),
    ("exact_numbers", "javascript_numbers", ALL),
    ("no_old_reasoning", "reasoning", ALL),
    ("exact_reasoning", "reasoning_left_out", ALL),
    ("billing", "billing_header", ANTHROPIC),
    ("system_first", "system_in_between", ALL),
    ("repairs", "rewritten_call", ALL),
    ("no_retries", "retry", ALL),
    ("same_body", "equal_bodies parallel", ALL),
    ("last_choice", "several_choices", CHAT),
    ("stream_drops_ids", "stream_tokens", ALL),
    ("stream_strips", "stream_text", ALL),
    ("halves", "characters", ALL),
    ("control", "control_tokens", ALL),
    ("closes", "cut_by_length", ALL),
    ("closes", "stop_string", ("chat", "anthropic")),
    ("ignores_stop", "stop_string", ("chat", "anthropic")),
    ("zero_logprobs", "logprobs", ALL),
    ("short_logprobs", "logprobs", ALL),
    ("usage", "usage", ALL),
    ("strict", "same_tools", ALL),
    ("exact_tools", "turned_tools", ALL),
    ("late", "late", ALL),
    ("overflow_500", "overflow", ALL),
    ("no_count", "count_tokens", ANTHROPIC),
    ("one_model", "side_call", ALL),
    ("unlisted", "models", ("chat", "anthropic")),
    ("empty", "empty_turn", ("chat", "anthropic")),
    ("any_key", "wrong_keys", ALL),
    ("repeats_key", "key_in_errors", ALL),
    ("silent", "keepalive", ALL),
    ("buffers", "true_streaming", ALL),
    ("breaks", "disconnect", ALL),
    ("unknown", "unknown_parameter", ALL),
    ("images", "image", ALL),
    ("malformed", "malformed", ALL),
]


@pytest.mark.parametrize(("fault", "checks", "dialects"), FAULTS, ids=[f"{fault}-{name}" for fault, name, _ in FAULTS])
def test_a_fault_fails_its_checks(fault, checks, dialects):
    names = set(checks.split())
    failed = {(each.check, each.dialect): each.reason for each in ran(fault, only=names) if each.outcome == "failed"}
    of = {check.name: check.dialects for check in CHECKS}
    assert set(failed) == {(name, each) for name in names for each in dialects if each in of[name]}
    assert all(failed.values())


def test_every_check_has_a_fault():
    assert {name for _, names, _ in FAULTS for name in names.split()} == {check.name for check in CHECKS}


def test_what_a_gateway_does_not_have_is_not_applicable():
    results = ran("chat_only", only={"turn", "retry"})
    assert {(each.dialect, each.outcome) for each in results} == {
        ("chat", "passed"),
        *((each.name, "not applicable") for each in DIALECTS[1:]),
    }
    assert any("there is no /v1/responses" in each.reason for each in results)
    results = ran("no_ids", only={"turn", "stream_tokens", "logprobs", "usage", "stream_text"})
    assert {each.check for each in results if each.outcome == "passed"} == {"stream_text"}
    assert not [each for each in results if each.outcome == "failed"]

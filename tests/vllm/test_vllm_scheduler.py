"""Bundles of vLLM's outputs: nothing of them is lost, and what is wanted at once is not kept."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm builds an environment with it")

from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import RequestStatus

from actors.engines.base import TELL_SECONDS
from actors.engines.vllm.scheduler import BUNDLE, _Bundling


class Steps(_Bundling):
    """The bundling scheduler above a base that has decided already what each step puts out."""

    def __init__(self, kinds: dict[str, RequestOutputKind]) -> None:
        self._kept = {}
        self._tell_next = 0.0
        self._pause_state = PauseState.UNPAUSED
        self.requests = {
            name: SimpleNamespace(request_id=name, client_index=0, sampling_params=SamplingParams(output_kind=kind))
            for name, kind in kinds.items()
        }


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch):
    """Make a scheduler; call what is returned besides to have it take a step of (name, token, finish reason or None)
    each.
    """
    monkeypatch.setattr(Scheduler, "update_from_output", lambda _self, outputs: {0: EngineCoreOutputs(outputs=outputs)})
    monkeypatch.setattr(Scheduler, "has_requests", lambda _self: False)
    monkeypatch.setattr(
        Scheduler, "finish_requests", lambda self, names, _status: [self.requests.pop(name) for name in names]
    )

    def make(**kinds: RequestOutputKind):
        scheduler = Steps(kinds)

        def step(*told: tuple[str, int, FinishReason | None]) -> list[tuple[str, list[int], list[float]]]:
            outputs = [
                EngineCoreOutput(
                    name,
                    [token],
                    new_logprobs=LogprobsLists(
                        np.array([[token]]), np.array([[-token / 8]], np.float32), np.array([token])
                    ),
                    finish_reason=reason,
                )
                for name, token, reason in told
            ]
            found = scheduler.update_from_output(outputs)[0].outputs
            for each in found:
                assert each.new_logprobs.logprob_token_ids[:, 0].tolist() == each.new_token_ids
                assert each.new_logprobs.sampled_token_ranks.tolist() == each.new_token_ids
            return [(each.request_id, each.new_token_ids, each.new_logprobs.logprobs[:, 0].tolist()) for each in found]

        return scheduler, step

    return make


WHOLE, DELTA, HEARD = RequestOutputKind.FINAL_ONLY, RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE


def test_a_turn_comes_in_bundles_and_its_last_with_its_end(steps) -> None:
    _, step = steps(turn=WHOLE)
    found = [step(("turn", token, None)) for token in range(BUNDLE + 3)]
    assert found[: BUNDLE - 1] == [[]] * (BUNDLE - 1)
    assert found[BUNDLE - 1] == [("turn", list(range(BUNDLE)), [-token / 8 for token in range(BUNDLE)])]
    last = [BUNDLE, BUNDLE + 1, BUNDLE + 2, 7]
    assert step(("turn", 7, FinishReason.STOP)) == [("turn", last, [-token / 8 for token in last])]


def test_a_streamed_request_is_told_of_each_token(steps) -> None:
    _, step = steps(turn=WHOLE, stream=DELTA)
    assert step(("turn", 1, None), ("stream", 2, None)) == [("stream", [2], [-0.25])]


def test_a_turn_with_a_listener_is_sent_from_time_to_time(steps, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("actors.engines.vllm.scheduler.time.monotonic", lambda: now)
    _, step = steps(turn=WHOLE, heard=HEARD)
    assert step(("turn", 1, None), ("heard", 2, None)) == [("heard", [2], [-0.25])]
    now += 0.6 * TELL_SECONDS
    assert step(("turn", 3, None), ("heard", 4, None)) == []
    now += 0.6 * TELL_SECONDS
    assert step(("turn", 5, None), ("heard", 6, None)) == [("heard", [4, 6], [-0.5, -0.75])]
    assert step(("heard", 7, None)) == []
    now += 1.1 * TELL_SECONDS
    assert step(("turn", 8, None)) == [("heard", [7], [-0.875])]


def test_a_pause_sends_what_is_kept_before_it_is_complete(steps) -> None:
    scheduler, step = steps(turn=WHOLE, other=WHOLE)
    assert step(("turn", 1, None), ("other", 2, None)) == []
    assert not scheduler.has_requests()
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert scheduler.has_requests()
    assert step() == [("turn", [1], [-0.125]), ("other", [2], [-0.25])]
    assert not scheduler.has_requests()


def test_of_a_request_that_is_aborted_nothing_stays(steps) -> None:
    scheduler, step = steps(turn=WHOLE, other=WHOLE)
    step(("turn", 1, None), ("other", 2, None))
    scheduler.finish_requests(["turn"], RequestStatus.FINISHED_ABORTED)
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert step() == [("other", [2], [-0.25])]

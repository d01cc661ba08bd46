"""Rollouts as OpenTelemetry traces: what a collector decodes, and what becomes of a run whose collector is down."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from structlog.testing import capture_logs

from actors.rollout_generator import tracing
from agent_rl.config.load import TopologyError, load_topology
from agent_rl.messages import Trajectory
from agent_rl.observe.spans import Span, request
from agent_rl_contract.engine import eventually
from benchmarks.collector import attributes, server
from tests.actors import test_rollout_generator as generators
from tests.actors.test_rollout_generator import ANSWER, CALL, GENERATOR, ask, generator, model, result
from tests.actors.topologies import micro

__all__ = ["model"]
pytestmark = pytest.mark.real_time


class Serving:
    """A collector in a thread."""

    def __init__(self, port: int = 0) -> None:
        self.server, self.spans = server(port)
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def collector() -> Iterator[Serving]:
    serving = Serving()
    yield serving
    serving.close()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "GATHER_SECONDS", 0.05)
    monkeypatch.setattr(tracing, "SEND_SECONDS", 20.0)


def sends_to(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def traced(folder: Path, **settings: Any) -> Any:
        topology = micro(folder, **settings)
        return topology.model_copy(update={"run": topology.run.model_copy(update={"otel": url})})

    monkeypatch.setattr(generators, "micro", traced)


async def test_a_rollout_is_a_trace_with_its_turns_and_calls(
    tmp_path: Path, model: Path, collector: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends_to(collector.url, monkeypatch)

    def reply(call: Any) -> Any:
        return result(call, "success" if call.call.endswith("1.0") else "error")

    turns = [CALL, CALL, ANSWER]
    async with generator(tmp_path, model, lambda number, _: turns[number - 1], reply=reply) as (stage, actor):
        await stage.started(GENERATOR)
        await ask(stage)
        await eventually(lambda: actor.tracing.sent, "a trace is sent")
        assert (actor.tracing.sent, actor.tracing.dropped) == (1, 0)
        assert 0.0 < actor.tracing.cpu_seconds < 5.0
    resource, _ = collector.spans[0]
    assert resource["service.name"] == "agent_rl"
    assert resource["service.instance.id"] == GENERATOR
    found = [span for _, span in collector.spans]
    root, *parts = found
    kinds = ["invoke_agent", "chat", "execute_tool", "chat", "execute_tool", "chat"]
    assert [span.name.split()[0] for span in found] == kinds
    assert parts[1].name == "execute_tool python_code_with_standard_io"
    assert len({span.trace_id for span in found}) == 1
    assert len({span.span_id for span in found}) == len(found)
    assert {span.parent_span_id for span in parts} == {root.span_id}
    for before, span in zip([root, *parts], parts, strict=False):
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano + 1e6
        assert before.start_time_unix_nano <= span.start_time_unix_nano
    about, of_turn, first_call, later, second_call = (attributes(span.attributes) for span in found[:5])
    named = {"gen_ai.operation.name": "invoke_agent", "agent_rl.status": "finished", "agent_rl.turns": 3}
    assert about.items() >= named.items()
    assert of_turn["gen_ai.operation.name"] == "chat"
    assert of_turn["gen_ai.response.finish_reasons"] == ["stop"]
    assert of_turn["gen_ai.usage.output_tokens"] > 1
    assert of_turn["gen_ai.usage.input_tokens"] < later["gen_ai.usage.input_tokens"]
    assert [each.get("error.type") for each in (first_call, second_call)] == [None, "error"]
    assert [each["agent_rl.turn"] for each in (first_call, second_call)] == [1, 2]
    assert [parts[place].status.code for place in (1, 3)] == [0, 2]


async def test_a_collector_that_is_down_costs_one_line_and_is_used_again_when_it_is_back(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Serving()
    gone.close()
    sends_to(gone.url, monkeypatch)
    with capture_logs() as logs:
        async with generator(tmp_path, model, lambda *_: ANSWER) as (stage, actor):
            await stage.started(GENERATOR)
            for sample in range(3):
                await ask(stage, rollout=f"r{sample}", sample=sample)
                await eventually(lambda wanted=sample + 1: actor.tracing.dropped == wanted, "a trace is dropped")
            back = Serving(gone.port)
            await ask(stage, rollout="r9", sample=3)
            await eventually(lambda: actor.tracing.sent, "a trace is sent")
            back.close()
            made = [await stage["roc_filter"].receive(Trajectory) for _ in range(4)]
    assert [each.status for each in made] == ["finished"] * 4
    events = [each["event"] for each in logs if "OpenTelemetry" in each["event"]]
    assert events == ["the OpenTelemetry collector takes nothing", "the OpenTelemetry collector is back"]


async def test_no_more_rollouts_wait_than_there_is_room_for(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends_to("http://127.0.0.1:9", monkeypatch)
    monkeypatch.setattr(tracing, "WAITING", 2)

    async def stuck(self: tracing.Tracing) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(tracing.Tracing, "run", stuck)
    monkeypatch.setattr(tracing, "FINISH_SECONDS", 0.1)
    async with generator(tmp_path, model, lambda *_: ANSWER) as (stage, actor):
        await stage.started(GENERATOR)
        for sample in range(5):
            await ask(stage, rollout=f"r{sample}", sample=sample)
        await eventually(lambda: actor.tracing.dropped == 3, "three traces are dropped")
        assert actor.tracing._queue.statistics().current_buffer_used == 2
        assert not actor.tracing._spans  # what an ended rollout left


def test_headers_come_from_the_variable_of_opentelemetry() -> None:
    given = {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=abc%3D, x-team = rl ,broken"}
    assert tracing.headers(given) == {"api-key": "abc=", "x-team": "rl"}
    assert tracing.headers({}) == {}


@pytest.mark.parametrize("value", ["x", "", "ü€", True, False, 0, 127, 128, 2**40, -1, 0.5, -1e300, ("a", "b"), ()])
def test_every_kind_of_attribute_is_decoded_as_it_was(value: Any) -> None:
    body = request({"r": value}, [("id", Span("n", 1.5, 2.0, {"a": value, "b": "c"}), [])])
    (part,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (span,) = part.scope_spans[0].spans
    expected = list(value) if isinstance(value, tuple) else value
    assert attributes(part.resource.attributes) == {"r": expected}
    assert attributes(span.attributes) == {"a": expected, "b": "c"}
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1_500_000_000, 2_000_000_000)


@pytest.mark.parametrize("url", ["collector:4318", "ftp://collector", "http://", "http://a b"])
def test_what_is_no_url_is_refused_with_its_key(url: str) -> None:
    with pytest.raises(TopologyError, match="otel"):
        load_topology(Path("examples/quickstart/quickstart.toml"), [f'run.otel="{url}"'])
    assert load_topology(Path("examples/quickstart/quickstart.toml")).run.otel is None

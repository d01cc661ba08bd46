"""Requests to the gateway that are wrong in some way, beside an honest rollout."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks.gateway_stand import Answer, Connection, Left
from tests.actors.gateway.fuzz import Shot, fault, shots
from tests.actors.gateway.stand import stand

FUZZERS, SHOTS_OF_A_ROLLOUT, HONEST_TURNS, HANG_SECONDS = 4, 20, 20, 45.0


@pytest.mark.real_time
@pytest.mark.parametrize("count", [80, pytest.param(3000, marks=pytest.mark.slow)])
async def test_a_wrong_request_gets_an_error_of_its_provider_or_a_right_answer_and_disturbs_nobody(
    tmp_path: Path, count: int
) -> None:
    waiting, faults, said = shots(count, seed=0), list[str](), list[Any]()
    async with stand(tmp_path, lambda *_: "word") as at, at.rollout() as (honest, episode):

        async def connect() -> Connection:
            return Connection(await trio.open_tcp_stream("127.0.0.1", int(at.url.rpartition(":")[2])))

        async def fuzzer() -> None:
            while batch := list(islice(waiting, SHOTS_OF_A_ROLLOUT)):
                async with at.rollout() as (key, _):
                    connection = await connect()
                    for shot in batch:
                        answer = await shoot(connection, shot, key)
                        last = answer is None or answer.headers.get("connection") == "close"
                        if last or shot.leaves or shot.malformed:
                            await trio.aclose_forcefully(connection.stream)
                            connection = await connect()
                    await trio.aclose_forcefully(connection.stream)

        async def shoot(connection: Connection, shot: Shot, key: str) -> Answer | None:
            answer = None
            with trio.move_on_after(HANG_SECONDS) as scope, suppress(Left):
                answer = await connection.ask(shot.data(key), ends=shot.leaves, bodiless=shot.method == "HEAD")
            if why := "no answer in time" if scope.cancelled_caught else fault(shot, answer):
                faults.append(f"{shot.what}: {why}")
            return answer

        async with trio.open_nursery() as nursery:
            for _ in range(FUZZERS):
                nursery.start_soon(fuzzer)
            for number in range(HONEST_TURNS):
                said.append({"role": "user", "content": f"turn {number}"})
                status, body = await at.post(honest, {"model": "agent-rl", "messages": said})
                assert status == 200, body
                said.append(body["choices"][0]["message"])
        assert faults == []
        assert {each["content"] for each in said[1::2]} == {"word"}
        assert len(episode.strands) == 1

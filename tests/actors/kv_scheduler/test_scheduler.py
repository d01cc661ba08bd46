"""What the scheduler's actor decides by itself, and its files of completed turns: what was written comes back, whatever
the end of the process cut off.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from actors.kv_scheduler import KVScheduler
from actors.kv_scheduler.turn_log import FOLDER, TurnLog
from agent_rl.config.selection import SelectStage
from agent_rl.messages import TurnsCompleted
from agent_rl.scheduling.kept_turns import KeptTurns
from agent_rl_contract import builders
from tests.actors.topologies import micro
from tests.agent_rl.scheduling.test_kept_turns import history
from tests.builders import evaluate_stage

LOG = structlog.get_logger()
LIMIT = 1 << 20


async def test_the_problems_of_an_evaluation_are_the_same_each_time_and_in_no_training(tmp_path: Path) -> None:
    stages = (builders.rl_stage(evaluate={"every": 1, "problems": 3}), evaluate_stage(), builders.rl_stage())
    topology = micro(tmp_path).model_copy(update={"stages": stages})
    actor = KVScheduler.on_trial(topology, KVScheduler.Settings())
    await actor.prepare()
    within = [actor.problem(0, number, "evaluate_sampled") for number in range(3)]
    assert [actor.problem(1, number, "evaluate_sampled") for number in range(3)] == within
    assert [actor.problem(1, number, "evaluate_greedy") for number in range(3, 6)] == within
    trained = [actor.problem(stage, number, "train") for stage in (0, 2) for number in range(3)]
    assert len({problem.text for problem in (*within, *trained)}) == 9


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        (builders.rl_stage(), "algorithm.samples = 4"),
        (builders.rl_stage(samples=5), "stages.0.samples = 5"),
        (builders.rl_stage(evaluate={"every": 1, "problems": 1, "samples": 6}), "rl.evaluate.samples = 6"),
        (evaluate_stage(samples=7), "after.samples = 7"),
        (SelectStage(kind="select", name="hard", samples=8, max_response_tokens=9, max_turns=1), "hard.samples = 8"),
    ],
)
def test_a_window_smaller_than_the_largest_group_is_refused(tmp_path: Path, stage: object, key: str) -> None:
    changes = {"stages": (stage,), "algorithm": builders.algorithm()}
    topology, largest = micro(tmp_path).model_copy(update=changes), int(key.rpartition(" ")[2])
    (fault,) = KVScheduler.check(topology, KVScheduler.Settings(request_window=largest - 1))
    assert fault == f"request_window {largest - 1} is smaller than a group; set it to at least {key}"
    assert KVScheduler.check(topology, KVScheduler.Settings(request_window=largest)) == []


@pytest.mark.parametrize(
    ("first", "continued", "awaited"),
    [
        (False, True, {"rollout_generator.0", "elsewhere.0"}),
        (True, True, {"elsewhere.0"}),  # generators of this host were started together with the scheduler
        (True, False, set()),
    ],
)
def test_generators_are_awaited_that_may_run_rollouts_of_a_former_scheduler(
    tmp_path: Path, first: bool, continued: bool, awaited: set[str]
) -> None:
    actor = KVScheduler.on_trial(micro(tmp_path), KVScheduler.Settings())
    targets = SimpleNamespace(targets=("rollout_generator.0", "elsewhere.0"))
    given = {"topology": micro(tmp_path), "name": "kv_scheduler.0", "first": first, "link": lambda _: targets}
    actor.context, actor._turn_log = SimpleNamespace(**given), SimpleNamespace(continued=continued)
    assert actor._may_run_rollouts() == awaited


# Files of completed turns ----------------------------------------------------------------------------------------------


def written(folder: Path, *messages: TurnsCompleted, limit: int = LIMIT, **options: Any) -> TurnLog:
    """A log that has begun and has these messages."""
    log = TurnLog(folder, limit, LOG, **options)
    log.begin()
    log.write(list(messages))
    return log


def turns(rollout: str, *tokens: int) -> TurnsCompleted:
    return TurnsCompleted(rollout, "rollout_generator.0", tuple(history(*tokens)))


def done(rollout: str) -> TurnsCompleted:
    return TurnsCompleted(rollout, "", ())


def restored(folder: Path) -> KeptTurns:
    kept = KeptTurns(LIMIT, recorded=True)
    kept.restore(TurnLog(folder, LIMIT, LOG).begin())
    return kept


def checks(kept: KeptTurns, rollout: str) -> list[int]:
    return [turn.after for turn in kept.of(rollout)]


def files(folder: Path) -> list[Path]:
    return sorted((folder / FOLDER).iterdir())


def test_the_next_process_keeps_what_the_former_kept(tmp_path: Path) -> None:
    log, kept = written(tmp_path), KeptTurns(LIMIT, recorded=True)
    for message in (turns("a", 1), turns("b", 1, 2), turns("a", 1, 2), turns("c", 3)):
        kept.add(message)
        log.write(kept.changes())
    kept.forget("b")
    kept.forget("unknown")
    log.write(kept.changes())
    again = restored(tmp_path)
    assert (checks(again, "a"), checks(again, "b"), checks(again, "c")) == (checks(kept, "a"), [], checks(kept, "c"))
    assert (len(again.of("a")), again.bytes, again.changes()) == (2, kept.bytes, [])


def test_a_record_that_was_cut_off_or_damaged_is_left_out_and_no_more(tmp_path: Path) -> None:
    written(tmp_path, turns("a", 1), turns("b", 1)).close()
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2 + 12] ^= 0xFF
    for content in (*(whole[:size] for size in range(len(whole))), damaged):
        file.write_bytes(content)
        kept = restored(tmp_path)
        assert not kept.of("b")
        assert len(kept.of("a")) == int(len(content) >= len(whole) // 2)
        for later in files(tmp_path)[1:]:
            later.unlink()


def test_segments_go_when_their_rollouts_are_done(tmp_path: Path) -> None:
    log = written(tmp_path, turns("a", 1), turns("b", 1), segment_bytes=1)  # a segment for each message
    assert len(files(tmp_path)) == 3
    log.write([done("a")])
    assert [file.name for file in files(tmp_path)] == ["000000002", "000000004"]
    assert len(restored(tmp_path).of("b")) == 1
    log.write([done("b")])
    log.close()
    assert not (tmp_path / FOLDER).exists()


def test_the_oldest_segment_goes_when_there_are_too_many(tmp_path: Path) -> None:
    log = written(tmp_path, limit=1000, segment_bytes=1)
    for number in range(50):
        log.write([turns(f"r{number}", 1)])
        assert sum(file.stat().st_size for file in files(tmp_path)) <= 1000
    kept = restored(tmp_path)
    assert kept.of("r49")
    assert not kept.of("r0")


def test_a_full_disk_is_said_once_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    log = written(tmp_path, turns("a", 1))
    with structlog.testing.capture_logs() as said, monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        log.write([turns("b", 1), turns("c", 1)])
    log.write([turns("d", 1)])
    assert [line["event"] for line in said] == ["completed turns are not written any more"]
    kept = restored(tmp_path)
    assert [len(kept.of(rollout)) for rollout in "abcd"] == [1, 0, 0, 0]


def test_a_segment_has_its_room_from_its_beginning_and_gives_back_what_is_left(tmp_path: Path) -> None:
    log = TurnLog(tmp_path, LIMIT, LOG, segment_bytes=1 << 16)
    assert log.begin() == []
    assert not log.continued
    log.write([turns("a", 1)])
    (file,) = files(tmp_path)
    assert file.stat().st_blocks * 512 >= 1 << 16
    later = TurnLog(tmp_path, LIMIT, LOG, segment_bytes=1 << 16)  # the former process was killed
    assert [message.rollout for message in later.begin()] == ["a"]
    assert later.continued
    assert 0 < file.stat().st_size < 1000

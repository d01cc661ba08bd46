"""Files of completed turns: what was written comes back, whatever the end of the process cut off."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import structlog

from actors.kv_scheduler.turn_log import FOLDER, TurnLog
from agent_rl.messages import TurnsCompleted
from agent_rl.scheduling.kept_turns import KeptTurns
from tests.agent_rl.scheduling.test_kept_turns import history

LOG = structlog.get_logger()
LIMIT = 1 << 20


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
    log, kept = TurnLog(tmp_path, LIMIT, LOG), KeptTurns(LIMIT, recorded=True)
    log.begin()
    for message in (turns("a", 1), turns("b", 1, 2), turns("a", 1, 2), turns("c", 3)):
        kept.add(message)
        log.write(kept.changes())
    kept.forget("b")
    kept.forget("unknown")
    log.write(kept.changes())
    again = restored(tmp_path)
    assert (checks(again, "a"), checks(again, "b"), checks(again, "c")) == (checks(kept, "a"), [], checks(kept, "c"))
    assert (len(again.of("a")), again.bytes, again.changes()) == (2, kept.bytes, [])


def test_a_record_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    log = TurnLog(tmp_path, LIMIT, LOG)
    log.begin()
    log.write([turns("a", 1), turns("b", 1)])
    log.close()
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        kept = restored(tmp_path)
        assert not kept.of("b")
        assert len(kept.of("a")) == int(size >= len(whole) // 2)
        for later in files(tmp_path)[1:]:
            later.unlink()


def test_damage_costs_the_turns_after_it_and_no_more(tmp_path: Path) -> None:
    log = TurnLog(tmp_path, LIMIT, LOG)
    log.begin()
    log.write([turns("a", 1), turns("b", 1)])
    log.close()
    (file,) = files(tmp_path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 + 12] ^= 0xFF
    file.write_bytes(data)
    kept = restored(tmp_path)
    assert (len(kept.of("a")), len(kept.of("b"))) == (1, 0)


def test_segments_go_when_their_rollouts_are_done(tmp_path: Path) -> None:
    log = TurnLog(tmp_path, LIMIT, LOG, segment_bytes=1)  # a segment for each message
    log.begin()
    log.write([turns("a", 1), turns("b", 1)])
    assert len(files(tmp_path)) == 3
    log.write([done("a")])
    assert [file.name for file in files(tmp_path)] == ["000000002", "000000004"]
    assert len(restored(tmp_path).of("b")) == 1
    log.write([done("b")])
    log.close()
    assert not (tmp_path / FOLDER).exists()


def test_the_oldest_segment_goes_when_there_are_too_many(tmp_path: Path) -> None:
    log = TurnLog(tmp_path, 1000, LOG, segment_bytes=1)
    log.begin()
    for number in range(50):
        log.write([turns(f"r{number}", 1)])
        assert sum(file.stat().st_size for file in files(tmp_path)) <= 1000
    kept = restored(tmp_path)
    assert kept.of("r49")
    assert not kept.of("r0")


def test_a_full_disk_is_said_once_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    log = TurnLog(tmp_path, LIMIT, LOG)
    log.begin()
    log.write([turns("a", 1)])
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

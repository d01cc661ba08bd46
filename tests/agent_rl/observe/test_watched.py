"""A run that is looked at again and again: what is read anew, what each look finds, and who worked and waited."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.cli.records import decode_stored
from agent_rl.observe.report import Watched
from agent_rl.observe.report import catalogue as catalogue_module
from agent_rl.observe.report.activity import TimeUse, activity, binned, load, totals
from agent_rl.observe.report.graph import advice
from agent_rl.records.journal import Journal
from agent_rl.records.timeline import Moments, read_row
from tests.agent_rl.records.report_runs import RL, SyntheticRun, played, whole


def test_a_look_reads_only_what_is_new_and_tells_what_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(RL)
    run.step([[0, 1], [1, 1]])
    run.records.commit()
    payloads = []
    watched = Watched(run.directory, lambda payload: payloads.append(payload) or decode_stored(payload))
    assert len(watched.look().rows) == 4
    read = len(payloads)
    assert watched.look() == ({}, [], False)
    assert len(payloads) == read
    group = run._open("train", samples=2)
    run.journal.commit()
    changes = watched.look()
    assert (list(changes.groups), changes.rows) == ([group.group], [])
    run.step([[0, 1]])
    run.records.commit()
    assert len(watched.look().rows) == 2
    assert watched.catalogue.count == 6
    monkeypatch.setattr(catalogue_module, "AT_ONCE", 1)
    asked, group_of = [], Journal.group
    monkeypatch.setattr(Journal, "group", lambda journal, name: asked.append(name) or group_of(journal, name))
    again = Watched(run.directory, decode_stored)
    looks = [again.look() for _ in range(5)]
    assert max(map(asked.count, asked)) == 2  # itself, and for its payloads: a long journal takes many looks
    assert [each.more for each in looks][-1] is False
    assert sum(len(each.rows) for each in looks) == 6
    run.close()


def test_fates_and_the_mean_reward_of_what_is_kept_are_told_by_step(tmp_path: Path) -> None:
    watched = Watched(whole(tmp_path), decode_stored)
    watched.look()
    assert sorted(watched.catalogue.fates()) == [
        (1, "all_wrong", 1), (1, "trained", 1), (2, "all_right", 1), (2, "trained", 1), (3, "all_right", 1),
        (3, "trained", 1),
    ]  # fmt: skip
    assert watched.catalogue.kept_rewards() == {1: 0.25, 2: 0.75, 3: 0.75}


def test_a_list_that_is_full_says_nothing_of_further_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "MOST_ROWS", 3)
    watched = Watched(played(tmp_path, (RL, [[0, 1], [1, 1]])), decode_stored)
    assert len(watched.look().rows) == 3
    assert any("lists 3 trajectories" in note for note in watched.page()["notes"])


def test_alarms_say_where_they_held_and_what_to_do(tmp_path: Path) -> None:
    watched = Watched(played(tmp_path, (RL, *[[[0, 0, 0, 0]]] * 6)), decode_stored)
    watched.look()
    (health,) = (each for each in watched.page()["sections"] if each["id"] == "health")
    alarms = {each["name"]: each for each in health["blocks"][0]["alarms"]}
    assert alarms["low_success"]["now"]
    assert alarms["low_success"]["steps"] == "stage 2, steps 5 to 6"
    assert "teach the form of calls" in alarms["low_success"]["text"]
    meanings = health["blocks"][1]["table"]
    assert meanings["id"] == "alarms"  # where the page's links lead
    document = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
    table = document.partition("\n## Alarms\n")[2].partition("|---|---|\n")[2].partition("\n\n")[0].replace("`", "")
    assert table.splitlines() == [f"| {name} | {words} |" for name, words in meanings["rows"]]


def test_what_to_change_first_is_said_with_its_arithmetic() -> None:
    shares = {
        "learner.0": TimeUse(0.25, 0.2, {"roc_filter": 0.75}, {}),
        "rollout_generator.0": TimeUse(0.9, 0.9, {}, {}),
        "tool_executor.0": TimeUse(0.1, 0.1, {}, {}),
    }
    said = advice(shares, 20.0).replace("\u202f", " ")
    assert said.startswith("Rollouts are the limit. A step takes 20 s, of which the learner waits 75.0 %;")
    assert "rollout_generator.0 is the busiest of the others, at 90.0 %" in said
    assert said.endswith("at most 75.0 % of 20 s, 15 s a step.")
    shares["learner.0"] = TimeUse(0.8, 0.8, {"roc_filter": 0.2}, {})
    said = advice(shares, 20.0).replace("\u202f", " ")
    assert "saves at most 80.0 % ÷ 2 of it, 8 s a step; more engines save at most 4 s." in said
    assert advice({}, 20.0) == advice(shares, float("nan")) == ""


def test_looking_writes_nothing_into_the_run(tmp_path: Path) -> None:
    directory = whole(tmp_path)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.rglob("*")}
    watched = Watched(directory, decode_stored)
    watched.look()
    json.dumps(watched.page())
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.rglob("*")} == before


# Whose time it was ----------------------------------------------------------------------------------------------------


def row(wall: float, busy: float = 0.5, waiting_for: str = "", waited: float = 0.0, **more: object) -> Moments:
    said = {"busy": busy, "cpu": busy, "waiting_for": waiting_for, "waited": waited}
    return read_row({"wall": wall, "seconds": 1.0, "actors": {"learner.0": said}, **more})


def test_the_time_between_two_starts_of_a_run_is_left_out() -> None:
    active = activity([row(11.0), row(12.0), row(500.0), row(501.0, cores=2)])
    assert active.seconds == 4.0
    assert active.gaps == (2.0,)
    assert active.cores == 2
    assert active.place(11.5) == 1.5
    assert active.place(499.5) == 2.5
    assert active.place(300.0) == 2.0  # between the starts
    assert active.place(9999.0) == 4.0
    assert active.place(math.nan) is None


def test_shares_of_an_actors_time_by_whom_it_waited_for() -> None:
    active = activity(
        [row(1.0, 0.75, "roc_filter: step 12, 3 of its groups", 1.0), row(2.0, 0.25, "learner: a policy", 0.5)]
    )
    share = totals(active.spans)["learner.0"]
    assert share.busy == 0.5
    assert share.waiting == {"roc_filter": 0.125, "learner": 0.25}  # never more than what is left of busy
    assert share.words == {"roc_filter: step of its groups": 0.125, "learner: a policy": 0.25}
    assert load(active.spans) == 0.5


@given(st.lists(st.tuples(st.floats(0.5, 9.0), st.floats(0.0, 1.0)), min_size=1, max_size=60), st.integers(1, 20))
def test_fewer_spans_hold_the_same_busy_time(rows: list[tuple[float, float]], count: int) -> None:
    wall, timeline = 0.0, []
    for seconds, busy in rows:
        wall += seconds
        timeline.append(row(wall, busy, seconds=seconds))
    active = activity(timeline)
    few = binned(active.spans, count)
    assert len(few) <= max(count, 1)
    assert few[-1].end == pytest.approx(active.seconds)

    def busy_seconds(spans: object) -> float:
        return sum((span.end - span.start) * span.actors["learner.0"].busy for span in spans)  # type: ignore[attr-defined]

    assert busy_seconds(few) == pytest.approx(busy_seconds(active.spans))


def test_many_replicas_are_one_lane_a_role() -> None:
    actors = {f"rollout_generator.{index}": {"busy": index % 2, "cpu": 1.0} for index in range(20)}
    active = activity([read_row({"wall": 1.0, "seconds": 1.0, "actors": actors})])
    share = totals(active.spans)["rollout_generator"]
    assert active.lanes() == ["rollout_generator"]
    assert share.busy == pytest.approx(0.5)
    assert share.cpu == 20.0


def test_rows_that_make_no_sense_are_no_figures() -> None:
    strange = {"learner.0": {"busy": "much", "cpu": None, "waited": math.nan}, "roc_filter.0": 3}
    active = activity([read_row({"wall": 1.0, "seconds": 1.0, "actors": strange})])
    assert active.lanes() == ["learner.0"]
    assert totals(active.spans)["learner.0"].busy == 0.0
    assert math.isnan(load([]))

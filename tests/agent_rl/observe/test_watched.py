"""A run that is looked at again and again: what is read anew, and what each look finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.cli.records import decode_stored
from agent_rl.observe.report import Watched
from agent_rl.observe.report import catalogue as catalogue_module
from agent_rl.observe.report.activity import TimeUse
from agent_rl.observe.report.graph import advice
from agent_rl.records.journal import Journal
from tests.agent_rl.records.report_runs import RL, SyntheticRun


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
    run = SyntheticRun(tmp_path).whole()
    watched = Watched(run.close(), decode_stored)
    watched.look()
    assert sorted(watched.catalogue.fates()) == [
        (1, "all_wrong", 1), (1, "trained", 1), (2, "all_right", 1), (2, "trained", 1), (3, "all_right", 1),
        (3, "trained", 1),
    ]  # fmt: skip
    assert watched.catalogue.kept_rewards() == {1: 0.25, 2: 0.75, 3: 0.75}


def test_a_list_that_is_full_says_nothing_of_further_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, "MOST_ROWS", 3)
    run = SyntheticRun(tmp_path)
    run.enter(RL)
    run.step([[0, 1], [1, 1]])
    watched = Watched(run.close(), decode_stored)
    assert len(watched.look().rows) == 3
    assert any("lists 3 trajectories" in note for note in watched.page()["notes"])


def test_a_journal_of_another_release_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path).whole().timeline()
    run.journal.set_fact("layout", "1")
    watched = Watched(run.close(), decode_stored)
    watched.look()
    page = watched.page()
    assert any("was written by another version of agent_rl" in note for note in page["notes"])
    assert {"learning", "time", "topology"} <= {each["id"] for each in page["sections"]}


def test_alarms_say_where_they_held_and_what_to_do(tmp_path: Path) -> None:
    run = SyntheticRun(tmp_path)
    run.enter(RL)
    for _ in range(6):
        run.step([[0, 0, 0, 0]])
    watched = Watched(run.close(), decode_stored)
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
    directory = SyntheticRun(tmp_path).whole().timeline().close()
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.rglob("*")}
    watched = Watched(directory, decode_stored)
    watched.look()
    json.dumps(watched.page())
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.rglob("*")} == before

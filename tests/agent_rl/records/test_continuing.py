"""What may change between two starts of one run; and each is newer than the last, whatever is done to the clock."""

from __future__ import annotations

import itertools
import json
import os
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, Secret, SecretStr

from actors.runtime.run import _command
from agent_rl.config.agreement import secrets, settings_to_agree
from agent_rl.config.full import full_text
from agent_rl.config.hidden import redacted
from agent_rl.config.load import load_topology
from agent_rl.config.topology import Topology
from agent_rl.environments.base import TaskError
from agent_rl.environments.load import Environments, shown_settings
from agent_rl.records.continuing import remember, write_resolved
from agent_rl.records.journal import Journal
from agent_rl.records.run_directory import (
    RESTARTS,
    RunRefused,
    add_end,
    in_use,
    is_first,
    is_supervised,
    next_start,
    read_epoch,
    read_summary,
    run_clock,
    run_lock,
    summary_file,
)
from agent_rl.records.run_records import RunRecords
from agent_rl.topology_checks.environments import class_findings
from agent_rl.topology_checks.facts import Facts
from examples.quickstart.arithmetic import Arithmetic
from tests.end_to_end.topologies import write_micro


def topology(folder: Path, *overrides: str) -> Topology:
    path, _ = write_micro(folder)
    return load_topology(path, overrides)


@pytest.mark.parametrize(
    "override",
    [
        *("run.seed=7", "model.initialise.layers=3", "algorithm.groups_per_step=5", 'stages.2.name="other"'),
        *("algorithm.samples=9", "algorithm.keep=3", "stages.2.groups_per_step=3", "stages.2.samples=5"),
        *("stages.1.samples=5", "stages.1.filter.max_problem_chars=9", 'environments.0.name="sums"'),
    ],
)
def test_what_the_run_was_made_with_may_not_change(tmp_path: Path, override: str) -> None:
    select = 'stages.1={kind="select", max_response_tokens=20, max_turns=3, samples=4}'
    made, other = topology(tmp_path, select), topology(tmp_path, select, override)
    said = r"other settings:(\n  \S+: .* then, .* now)+\n  undo .* or set another run"
    for before, now in ((made, other), (other, made)):
        (tmp_path / "topology.json").unlink(missing_ok=True)
        remember(before, tmp_path)
        remember(before, tmp_path)
        with pytest.raises(RunRefused, match=said) as refused:
            remember(now, tmp_path)
        key = override.split("=", maxsplit=1)[0]
        assert key.rsplit(".", 1)[0] in str(refused.value)


@pytest.mark.parametrize(
    "override",
    [
        *("stages.2.steps=9", "stages.2.temperature=2.0", "run.max_minutes=3", "model.parallel.replicate=2"),
        "actors.learner.settings.threads=2",
    ],
)
def test_lengths_limits_actors_and_the_layout_of_ranks_may_change(tmp_path: Path, override: str) -> None:
    remember(topology(tmp_path), tmp_path)
    path = tmp_path / "topology.json"  # as an earlier release wrote it
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model.parallel": {"shard": 2, "tensor": 1}}))
    remember(topology(tmp_path, override), tmp_path)


@pytest.mark.parametrize("changed", ["rows.jsonl", "problems.jsonl", "ids.txt"])
def test_the_contents_of_files_of_data_may_not_change(tmp_path: Path, changed: str) -> None:
    made = topology(
        tmp_path,
        'environments.0={class="maths", settings={files=["*.jsonl"]}, base="tasks"}',
        *('stages.0.data=["rows.jsonl"]', 'stages.2.filter.ids="ids.txt"'),
    )
    (tmp_path / "tasks").mkdir()
    files = {
        path.name: path for path in (tmp_path / "rows.jsonl", tmp_path / "ids.txt", tmp_path / "tasks/problems.jsonl")
    }
    for file in files.values():
        file.write_text("a\n")
    for base in (None, tmp_path, tmp_path):  # a release that kept none; the first start that does; another
        assert remember(made, tmp_path, base) == ""
    files[changed].write_text("b\n")
    key = "environments.0" if changed == "problems.jsonl" else f"stages.{2 * (changed == 'ids.txt')}"
    said = rf'data of {key}: \["{changed} \w{{16}}"\] then, \["{changed} \w{{16}}"\] now\n  undo'
    with pytest.raises(RunRefused, match=said):
        remember(made, tmp_path, tmp_path)
    files[changed].unlink()
    assert remember(made, tmp_path, tmp_path) == remember(made, tmp_path) == ""  # a host that has no such file
    files[changed].write_text("b\n")
    with pytest.raises(RunRefused, match=said):
        remember(made, tmp_path, tmp_path)


def test_stages_may_be_appended_and_are_then_kept_too(tmp_path: Path) -> None:
    first = topology(tmp_path)
    shorter = first.model_copy(update={"stages": first.stages[:2]})
    remember(shorter, tmp_path)
    remember(first, tmp_path)
    with pytest.raises(RunRefused, match=r"stages\.3"):
        remember(shorter, tmp_path)


class Account(BaseModel):
    """A table with a secret by type."""

    who: str = "somebody"
    opens: SecretStr | None = Field(None, alias="word", min_length=6)


@dataclass
class Vault:
    """A table of tables with secrets by type."""

    accounts: dict[str, list[Account]]
    codes: list[Secret[int]]


class Guarded(Arithmetic):
    """An environment with a secret by type, one by name, one of another module's making in a table, and nested ones."""

    def __init__(
        self,
        *,
        pin: Annotated[SecretStr | None, Field(min_length=6)],
        api_key: str,
        service: dict[str, str],
        vault: Vault | None = None,
        colour: Annotated[Literal["dark-1", "light"] | None, "of the display"] = None,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self.given = pin and pin.get_secret_value(), api_key, service["Access-Token"]
        self.more = vault and vault.accounts["a"][0].opens, colour


ENVIRONMENT = f'environments.0={{class = "{__name__}:Guarded", settings = %s}}'
SECRETS = '{pin = "hush-1", api_key = "hush-2", service = {url = "here", Access-Token = "hush-3"}}'
NESTED = "{accounts = {a = [{who = 'me', word = '%s'}]}, codes = [4711]}"


def test_secrets_of_settings_are_kept_from_others(tmp_path: Path) -> None:
    override = ENVIRONMENT % SECRETS.replace("}}", f"}}, vault = {NESTED % 'hush-4'}}}")
    made, directory = topology(tmp_path, override), tmp_path / "run"
    (environment,) = Environments(made, tmp_path).values()
    assert environment.more[0].get_secret_value() == "hush-4"
    with run_lock(directory, ["local"]):
        remember(made, directory)
        actors_read = write_resolved(made, directory, "local", "agent-rl run")
    journal = Journal(directory / "journal.sqlite")
    RunRecords(directory, journal, made, 0.0, 0.0)
    kept, fact = (directory / "topology.json").read_text(), journal.fact("made_with") or ""
    journal.close()
    told = kept + fact + full_text(made, shown_settings) + str(settings_to_agree(made, shown_settings))
    told += _command(Path("a.toml"), [override], None, secrets(made, shown_settings))
    assert "hush" not in told
    assert "4711" not in told
    assert '"url": "here"' in kept
    assert '"who": "me"' in kept
    assert "hush-1" in actors_read.read_text()  # the actors need it
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {file.name for file in directory.iterdir() if file.stat().st_mode & 0o077} == {"supervisor.local.lock"}
    remember(topology(tmp_path, override.replace("hush", "renewed")), directory)
    for before, now in (('"here"', '"elsewhere"'), ("'me'", "'you'")):
        with pytest.raises(RunRefused, match=rf"then, .*{now[1:-1]}.* now"):
            remember(topology(tmp_path, override.replace(before, now)), directory)


def test_names_and_texts_that_tell_a_secret() -> None:
    told = {
        **dict.fromkeys(("apikey", "openai_apikeys", "authtoken", "privateKey", "bearer", "session-cookie"), "hush"),
        "password": 77123477,
        "headers": ["Authorization: Bearer hush"],
        "url": "postgres://user:hush@host/data",
    }
    kept = {"max_tokens": 512, "key_column": "a", "turkey": "b", "url": "https://host/x:y@z", "prompt": "A cookie: eat"}
    assert redacted(told) == {key: ["(a secret)"] if key == "headers" else "(a secret)" for key in told}
    assert redacted(kept) == kept


@pytest.mark.parametrize(
    "setting", ["pin = '%s'", f"vault = {NESTED}", "colour = '%s'"], ids=["pin", "vault", "colour"]
)
def test_a_setting_in_the_environment_is_judged_by_what_it_stands_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    def made(value: str) -> Topology:
        given = {"pin": "hush-1", "api_key": "hush-2", "service": {"Access-Token": "hush-3"}}
        changes = {"class_path": f"{__name__}:Guarded", "settings": given | tomllib.loads(setting % value)}
        whole = topology(tmp_path)
        return whole.model_copy(update={"environments": (whole.environments[0].model_copy(update=changes),)})

    for value in ("dark-1", "short"):
        monkeypatch.setenv("A", value)
        assert list(class_findings(made("env:A"), Facts(tmp_path))) == []
        if value != "short":
            assert len(Environments(made("env:A"), tmp_path)) == 1
    with pytest.raises(TaskError, match=r"settings\.(pin|vault.*word|colour)") as refused:
        Environments(made("env:A"), tmp_path)
    assert "short" not in str(refused.value)
    (finding,) = class_findings(made("short"), Facts(tmp_path))
    assert ("short" in finding.message) == ("colour" in setting), "a message repeats a secret"


def test_a_setting_may_be_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_PIN", "hush-1")
    settings = '{pin = "env:A_PIN", api_key = "env: no reference", service = {Access-Token = "env:A_TOKEN"}}'
    made = topology(tmp_path, ENVIRONMENT % settings)
    with pytest.raises(TaskError, match=r"settings: the environment variable A_TOKEN is not set on this host; export"):
        Environments(made, tmp_path)
    monkeypatch.setenv("A_TOKEN", "hush-3")
    (environment,) = Environments(made, tmp_path).values()
    assert environment.given == ("hush-1", "env: no reference", "hush-3")
    remember(made, tmp_path)
    assert '"pin": "env:A_PIN"' in (tmp_path / "topology.json").read_text()


@pytest.mark.parametrize("left", ["", "{", "[1]", "\0" * 200])
def test_a_record_that_a_stopped_disk_has_broken_is_written_again(tmp_path: Path, left: str) -> None:
    """The journal holds the same settings: nobody is told to remove a run that is sound."""
    assert remember(topology(tmp_path), tmp_path) == ""
    path = tmp_path / "topology.json"
    whole = path.read_text()
    path.write_text(left)
    assert "topology.json was not readable, and is written again" in remember(topology(tmp_path), tmp_path)
    assert path.read_text() == whole
    assert remember(topology(tmp_path), tmp_path) == ""


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "topology.json").mkdir()
    with pytest.raises(RunRefused, match=r"topology\.json cannot be read \(it is no regular file\); see to its disk"):
        remember(topology(tmp_path), tmp_path)


def test_a_summary_is_this_starts_own_and_a_run_has_one_supervisor_a_host(tmp_path: Path) -> None:
    assert read_summary(tmp_path, None) is None
    for steps in (3, 4):
        before = summary_file(tmp_path)
        assert read_summary(tmp_path, before) is None
        add_end(tmp_path, {"steps": steps}, "stopped")
        assert read_summary(tmp_path, before) == {"steps": steps, "stopped": "stopped"}
    with run_lock(tmp_path, ["a"]):
        held = [is_supervised(tmp_path, host) for host in ("a", "b")]
        assert (held, in_use(tmp_path)) == ([True, False], True)
        with run_lock(tmp_path, ["b"]), pytest.raises(RunRefused, match=f"process {os.getpid()}"):
            run_lock(tmp_path, ["a"]).__enter__()
    assert not in_use(tmp_path)
    (tmp_path / "summary.json").write_text("[" * 5000)
    assert read_summary(tmp_path, None) is None
    for name in ("supervisor.a.lock", "supervisor.lock"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
        assert not in_use(tmp_path)
        with pytest.raises(RunRefused, match=f"{name} is no file that can be locked"):
            run_lock(tmp_path, ["a"]).__enter__()
        (tmp_path / name).unlink()


# Starts are newer than those before -----------------------------------------------------------------------------------


def test_later_starts_are_higher_though_the_clock_is_set_back(tmp_path: Path) -> None:
    clock = iter([2_000_000_000.0, 5.0, 5.0, 1_000_000_000.0, 3_000_000_000.0])
    starts = [next_start(tmp_path, ["a"], lambda: next(clock)) for _ in range(5)]
    assert starts == [2_000_000_000, 2_000_000_001, 2_000_000_002, 2_000_000_003, 3_000_000_000]
    incarnations = [start * RESTARTS + restart for start in starts for restart in (0, 1, RESTARTS - 1)]
    assert all(one < other for one, other in itertools.pairwise(incarnations))
    assert [is_first(incarnation) for incarnation in incarnations] == [True, False, False] * 5
    assert max(incarnations) < 1 << 63


def test_hosts_that_share_a_directory_count_for_themselves(tmp_path: Path) -> None:
    assert next_start(tmp_path, ["a"], lambda: 100.0) == 100
    assert next_start(tmp_path, ["b"], lambda: 50.0) == 50
    assert next_start(tmp_path, ["a", "b"], lambda: 0.0) == 101  # both from one supervisor
    assert next_start(tmp_path, ["b"], lambda: 0.0) == 102
    assert next_start(tmp_path, ["a", "b"], lambda: 0.0) == 103


@pytest.mark.parametrize("written", ["", "many", "9" * 30, str(1 << 50)])
def test_after_a_disk_that_stopped_a_number_is_newer_than_the_file(tmp_path: Path, written: str) -> None:
    file = tmp_path / "starts.a"
    file.write_text(written)
    os.utime(file, (500, 500))
    assert next_start(tmp_path, ["a"], lambda: 100.0) == 501
    assert next_start(tmp_path, ["a"], lambda: 100.0) == 502


def test_a_folder_in_the_place_of_the_number_is_named(tmp_path: Path) -> None:
    (tmp_path / "starts.a").mkdir()
    with pytest.raises(RunRefused, match=r"starts\.a cannot be read \(it is no regular file\)"):
        next_start(tmp_path, ["a"])


def test_setting_the_clock_changes_no_runs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = run_clock(read_epoch())
    before = clock()
    assert abs(before - time.time()) < 60.0
    monkeypatch.setattr(time, "time", lambda: 5.0)
    assert 0.0 <= clock() - before < 10.0

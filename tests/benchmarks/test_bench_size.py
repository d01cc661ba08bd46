"""The budget of lines: what is core, what `make check` lowers, and which commits it refuses."""

import subprocess

import pytest

from benchmarks import bench_size
from benchmarks.bench_size import Options, core_modules, main, raised_in_silence
from benchmarks.command import Failure


def test_core_is_what_a_run_imports_and_starts():
    core = core_modules()
    assert {
        "transport.node",
        "actors.learner.learner",
        "actors.sandbox.inside.child",
        "agent_rl.learning.losses.gspo",
    } <= core
    assert not core & {"actors.cli.chat", "actors.evaluator"}


@pytest.fixture
def commit(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_size, "ROOT", tmp_path)

    def git(*arguments):
        given = ("-c", "user.name=a", "-c", "user.email=a@b", *arguments)
        subprocess.run(["git", *given], cwd=tmp_path, check=True, capture_output=True)

    def commit(core, kits, message):
        (tmp_path / "budget.toml").write_text(f"# Lines.\ncore = {core}\nkits = {kits}\n", encoding="utf-8")
        git("add", "budget.toml")
        git("commit", "-m", message)

    git("init")
    commit(10, 5, "The first")
    return commit


@pytest.mark.parametrize(
    ("core", "kits", "message", "refused"),
    [
        (9, 5, "Lighter", False),
        (9, 6, "Moved", True),
        (9, 6, "Moved\n\nraise-budget: a contract suite ships", False),
        (11, 5, "More\n\nraise-budget: a feature", True),
    ],
)
def test_a_number_rises_with_a_word_and_anothers_fall_alone(commit, core, kits, message, refused):
    commit(core, kits, message)
    assert bool(raised_in_silence()) == refused
    commit(core - 1, kits, "Again")
    assert bool(raised_in_silence()) == refused, "an older commit is judged too"


def test_a_budget_has_no_slack(commit, monkeypatch, tmp_path):
    monkeypatch.setattr(bench_size, "core_modules", set)
    monkeypatch.setattr(bench_size, "lines_by_room", lambda _: {("core", "a"): 8, ("kits", "b"): 5})
    for _ in range(2):
        assert main(Options(check=True)) == 0
        assert (tmp_path / "budget.toml").read_text(encoding="utf-8") == "# Lines.\ncore = 8\nkits = 5\n"
    monkeypatch.setattr(bench_size, "lines_by_room", lambda _: {("core", "a"): 9, ("kits", "b"): 4})
    with pytest.raises(Failure, match="core has 9 lines, not 8"):
        main(Options(check=True))

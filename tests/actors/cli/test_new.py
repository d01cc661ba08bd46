"""``agent-rl new``: what it writes is short, and runs as it is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from actors.cli.main import main


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("flags", "lines", "tests"), [((), 40, 2), (("--tool",), 60, 3)], ids=["plain", "tool"])
def test_the_environment_is_short_and_its_test_passes(
    here: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], lines: int, tests: int
) -> None:
    assert main(["new", "things/largest_digit", *flags]) == 0
    folder = here / "things" / "largest_digit"
    assert {path.name for path in folder.iterdir()} == {"topology.toml", "largest_digit.py", "test_largest_digit.py"}
    assert len((folder / "topology.toml").read_text().splitlines()) <= 30
    assert len((folder / "largest_digit.py").read_text().splitlines()) <= lines
    assert "agent-rl run things/largest_digit/topology.toml" in capsys.readouterr().out
    assert f"{tests} passed" in python("-m", "pytest", "-q", "-p", "no:cacheprovider", "things/largest_digit")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("there", "there exists; name a folder that does not"),
        ("json", "there is a Python module 'json' already; take another name"),
        ("/proc/x", "/proc/x cannot be made (No such file or directory); name another folder"),
        ("no-name", "'no-name' cannot be the name of a Python module"),
        ("things/", None),
        ("..", "'..' cannot be the name"),
        ("class", "'class' cannot be the name"),
    ],
)
def test_what_cannot_be_made_is_said_and_nothing_is_written(here: Path, name: str, said: str | None, capsys) -> None:
    (here / "there").mkdir()
    assert main(["new", name]) == (0 if said is None else 2)
    assert said is None or said in capsys.readouterr().err
    assert {path.name for path in here.iterdir()} == ({"there"} if said else {"there", "things"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "before", "after"), [((), 0.6, 0.75), (("--tool",), 0.7, 0.7)], ids=["plain", "tool"]
)
def test_the_model_learns_it(here: Path, flags: tuple[str, ...], before: float, after: float) -> None:
    assert main(["new", "largest_digit", *flags]) == 0
    python("-m", "actors.cli", "run", "largest_digit/topology.toml")
    rows = [json.loads(line) for line in (here / "runs" / "largest_digit" / "metrics.jsonl").read_text().splitlines()]
    success = [row["success"] for row in rows if row["kind"] == "step"]
    assert sum(success[:5]) / 5 < before
    assert sum(success[-10:]) / 10 > after

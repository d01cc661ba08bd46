"""The runner of mutants, at a small project with a mutant of each fate."""

import subprocess
import sys
from pathlib import Path

from tests.mutants import Listed

ROOT = Path(__file__).parents[1]
RULE = """
def oldest(versions):
    return min(versions)


def count(attempts):
    done = 0
    while done < attempts:
        done += 1
    return done


LIMIT = 7
NAMES = ("a", "a")
"""
TESTS = """
import rule

def test_oldest():
    assert rule.oldest([2, 1]) == 1

def test_count():
    assert rule.count(3) == 3
"""
HEAD = """
options = ["-p", "no:hypothesispytest"]
[rooms]
rule = ["test_rule.py"]
"""
MUTANT = """
[[mutant]]
room = "{room}"
file = "{file}"
fault = "{fault}"
old = '''{old}'''
new = '''{new}'''
{more}
"""


def mutant(old="min", new="max", fault="the newest", file="rule.py", room="rule", more=""):
    return MUTANT.format(old=old, new=new, fault=fault, file=file, room=room, more=more)


def examined(folder: Path, *mutants: str, tests: str = TESTS) -> tuple[int, list[str]]:
    """The exit code and the lines of the runner, without the times."""
    for name, text in (("rule.py", RULE), ("test_rule.py", tests), ("list.toml", HEAD + "".join(mutants))):
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q", folder], check=True)
    command = [sys.executable, ROOT / "tests/mutants.py", "--list", folder / "list.toml", "--root", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, [line.rpartition(" s; ")[0][:48].strip() or line for line in done.stdout.splitlines()]


def test_a_list_whose_mutants_are_as_it_says_holds(tmp_path):
    found, hidden = mutant(), mutant("LIMIT = 7", "LIMIT = 8", "no test looks", more='unobservable = "nobody reads it"')
    survivor = mutant('"a", "a"', '"a", "b"', "another name", more='survives = "no test of names"')
    code, lines = examined(tmp_path, found, hidden, survivor)
    counts = ["mutants 3", "mutants_found 1", "mutants_unobservable 1", "mutants_surviving 1"]
    assert (code, lines) == (0, ["rule            1 found, 1 survived", *counts])


def test_each_wrong_line_of_a_list_is_named_before_anything_runs(tmp_path):
    wrong = {
        mutant(file="gone.py", fault="a"): "gone.py: a: there is no such file",
        mutant("maximum", fault="b"): "rule.py: b: its old text stands 0 times in the file; name a text that stands there once",
        mutant('"a"', fault="c"): "rule.py: c: its old text stands 2 times in the file; name a text that stands there once",
        mutant(new="(", fault="d"): "rule.py: d: the file with its new text is no Python",
        mutant("LIMIT = 7", "LIMIT  =  7", fault="e"): "rule.py: e: its new text changes nothing",
        mutant(room="house", fault="f"): "rule.py: f: the list has no room 'house'",
        mutant(fault="g") + mutant("done < attempts", "done <= attempts", fault="g"): "rule.py: g: stands twice in the list",
    }  # fmt: skip
    code, lines = examined(tmp_path, *wrong)
    assert code == 1
    for said in wrong.values():
        assert any(line.startswith(f"FAULT: {said}") for line in lines), said
    assert len([line for line in lines if line.startswith("FAULT")]) == len(wrong)


def test_survivors_hanging_and_broken_tests_are_named(tmp_path):
    fates = {
        mutant("LIMIT = 7", "LIMIT = 8", "a"): "rule.py: a: survives the tests of rule",
        mutant(fault="b", more='survives = "why"'): "rule.py: b: is found now; take `survives` out of the list",
        mutant("done += 1", "done -= 1", "c", more="limit = 3.0"): "rule.py: c: with it the tests of rule do not end within 3 s",
        mutant("LIMIT = 7", "LIMIT = NONE", "d"): "rule.py: d: with it the tests of rule cannot be collected or crash",
    }  # fmt: skip
    code, lines = examined(tmp_path, *fates)
    assert (code, [line for line in lines if line.startswith("FAULT")]) == (
        1,
        [f"FAULT: {said}" for said in fates.values()],
    )


def test_tests_that_fail_by_themselves_find_nothing(tmp_path):
    code, lines = examined(tmp_path, mutant(), tests="def test_no():\n    assert False\n")
    assert (code, lines[:2]) == (1, ["FAULT: rule: without a mutant its tests fail", "mutants 1"])


def test_the_list_of_this_project_is_right_about_its_texts_and_large_enough():
    listed = Listed.read(ROOT / "tests/mutants.toml")
    assert listed.faults(ROOT) == []
    seen = [each for each in listed.mutants if not each.unobservable]
    assert len(seen) >= 120
    for room, tests in listed.rooms.items():
        assert sum(each.room == room for each in seen) >= 9, room
        assert all((ROOT / test.partition("::")[0]).exists() for test in tests), room

"""The live table of a run with many replicas: a line for each role, which adds up and says who stands out."""

import pytest
from rich.cells import cell_len

from agent_rl.observe.live import LiveView
from agent_rl.observe.replicas import FEW
from tests.agent_rl.observe.test_live import drawn
from tests.builders import status

COUNT = 300
SINGLE = ("kv_scheduler.0", "roc_filter.0", "learner.0")


def actors(count: int) -> list[str]:
    roles = ("rollout_generator", "tool_executor")
    return [*SINGLE, *(f"{role}.{number}" for role in roles for number in range(count))]


def running(count: int = COUNT, heard: float = 100.0) -> LiveView:
    """A run in which every replica reports the same."""
    view = LiveView("wide", actors(count), ["rl"], now=0.0)
    for number in range(count):
        generator = status(f"rollout_generator.{number}", tokens_per_s=100, running=8, waiting=1, kv_used=1, kv_total=2)
        view.observe(generator, heard)
        view.observe(status(f"tool_executor.{number}", detail="isolation strong", calls_per_s=4, children=2), heard)
    for name in SINGLE:
        view.observe(status(name), heard)
    return view


def lines(view: LiveView, width: int = 80, now: float = 101.0) -> list[str]:
    return drawn(view, now, width).splitlines()


def text(view: LiveView, width: int = 80, now: float = 101.0) -> str:
    """The table in one line. A role's prose stands in the last column; so it is put together again."""
    drawn = lines(view, width, now)
    header = next(line for line in drawn if line.startswith("actor  "))
    return " ".join(" ".join(line[header.index("figures") :] for line in drawn).split())


def test_six_hundred_actors_fit_on_a_terminal_of_80_columns_and_24_lines() -> None:
    drawn = lines(running())
    assert max(map(cell_len, drawn)) <= 80
    assert len(drawn) <= 24
    assert sum(line.startswith("rollout_generator (300)") for line in drawn) == 1
    assert "running 2,400, waiting 300, tokens/s 30,000" in text(running())
    assert "isolation strong, queue 0, calls/s 1,200" in text(running())


@pytest.mark.parametrize("count", [1, FEW, FEW + 1])
def test_a_role_with_few_replicas_has_a_line_for_each(count: int) -> None:
    drawn = lines(running(count))
    alone = [line for line in drawn if line.startswith("rollout_generator.")]
    assert len(alone) == (count if count <= FEW else 0)
    assert any(line.startswith(f"rollout_generator ({count})") for line in drawn) == (count > FEW)


def test_silent_failed_and_late_replicas_are_named() -> None:
    view = running()
    view.observe(status("rollout_generator.20", state="failed", detail="EngineError: no memory"), 100.0)
    for number in range(30, 36):
        view.observe(status(f"rollout_generator.{number}", tokens_per_s=100), 90.0)
    silent = "silent for 9 s; tool_executor.0 waits for it: calls"
    view.silences = {f"rollout_generator.{number}": silent for number in (*range(200, 290), 295)}
    view.process("tool_executor.5", "restarting")
    said = text(view)
    assert "91 silent: replicas 200, 201, 202, 203 and 87 more" in said
    assert "1 failed: replica 20 (EngineError: no memory)" in said
    assert "6 heard late: replicas 30, 31, 32, 33 and 2 more" in said
    assert "1 restarting: replica 5" in said
    drawn = lines(view)
    assert len(drawn) <= 32
    assert any("208 of 300" in line for line in drawn)
    assert any("299 of 300" in line for line in drawn)
    assert [line.split()[-2] for line in lines(view, 100) if line.startswith("tool_executor")] != []


def test_half_of_six_hundred_silent_still_fit() -> None:
    view = running()
    waits = "; ".join(f"rollout_generator.{number} waits for it: 3 tool results" for number in range(3))
    view.silences = {
        f"{role}.{number}": f"silent for 12 s; {waits}"
        for role in ("rollout_generator", "tool_executor")
        for number in range(0, COUNT, 2)
    }
    drawn = lines(view)
    assert len(drawn) <= 32
    assert max(map(cell_len, drawn)) <= 80
    assert "150 silent: replicas 0, 2, 4, 6 and 146 more" in text(view)


def test_a_role_of_which_all_are_silent_says_who_waits() -> None:
    view = running()
    view.silences = {f"tool_executor.{number}": "silent for 9 s; rollout_generator.0 waits" for number in range(COUNT)}
    assert "replica 0 silent for 9 s; rollout_generator.0 waits" in text(view)


def test_a_plain_line_counts_many_replicas_and_names_few() -> None:
    view = running()
    view.silences = {f"tool_executor.{number}": "silent for 9 s; nobody waits" for number in range(50)}
    view.observe(status("learner.0", state="failed", detail="no disk"), 100.0)
    line = view.line(101.0)
    assert "(learner.0 failed: no disk, 50 of tool_executor silent: replicas 0, 1, 2, 3 and 46 more)" in line

"""What people see of a run: the table's figures, missing ones, roles with many replicas, and when plain lines are due."""

import io
import json

import pytest
from rich.cells import cell_len
from rich.console import Console

from agent_rl.figures import Fates, RolloutMeans
from agent_rl.observe.live import Display, LiveView, SteadyConsole, summary_table
from agent_rl.observe.logs import open_log
from agent_rl.observe.replicas import FEW
from tests.builders import status
from tests.full_disk import fill, no_file_longer_than, small_disk

ACTORS = ("kv_scheduler.0", "rollout_generator.0", "rollout_generator.1", "learner.0")


def view():
    return LiveView("demo", ACTORS, ["warm-up", "rl"], now=100.0)


def drawn(shown, now, width=160):
    console = Console(file=io.StringIO(), width=width)
    console.print(shown.render(now, width))
    return console.file.getvalue()


def heard(*statuses):
    """The view of a run once each of these was heard, at 101 s."""
    shown = view()
    for each in statuses:
        shown.observe(each, 101.0)
    return shown


def test_what_nobody_reported_is_left_out():
    assert view().figures() == []
    assert "starting" in view().line(101.0)
    text = drawn(view(), 100.0)
    assert all(actor in text for actor in ACTORS)
    assert text.count("starting") == len(ACTORS)


def test_an_evaluation_counts_rollouts_and_not_steps():
    judged = status("roc_filter.0", rollouts_judged=866, rollouts_to_judge=2000)
    shown = heard(status("learner.0", stage=0, stages=2), judged)
    assert "rollout 866/2,000" in shown.line(102.0)
    assert "step" not in dict(shown.figures())


MEANS = {"maths": RolloutMeans(success=0.25), "sql": RolloutMeans(success=0.5)}
RL = {"stages": 2, "stage": 1}
GENERATES = {"tokens_per_s": 1000, "kv_used": 100, "kv_total": 400}
WALKED = {"step": 3, "steps": 10, "seconds_per_step": 20}


@pytest.mark.parametrize(
    ("statuses", "figures"),
    [
        ([status("rollout_generator.0", **GENERATES),
          status("rollout_generator.1", tokens_per_s=500, kv_used=300, kv_total=400)],
         {"tokens/s": "1,500", "KV in use": "50.0%"}),
        ([status("rollout_generator.0", **GENERATES), status("rollout_generator.0")], {"tokens/s": None}),
        ([status("rollout_generator.0", **GENERATES), status("roc_filter.0", fates=Fates())], {"tokens/s": None}),
        ([status("rollout_generator.0", **GENERATES), status("roc_filter.0", fates=Fates(groups_dropped=1))],
         {"tokens/s": "1,000", "trained": "0", "dropped": "1"}),
        ([status("learner.0", **RL, **WALKED)], {"stage": "2/2 rl", "step": "3/10", "left": "2:20"}),
        ([status("learner.0", **RL, success=0.25, staleness_mean=0.5, staleness_max=2, kl=0.01234)],
         {"success": "25.0%", "staleness": "0.50 (max 2)", "KL": "0.012", "loss": None, "reward": None}),
        ([status("learner.0", stages=2, stage=0, loss=1.25)], {"loss": "1.250"}),
        ([status("learner.0", **RL, success=0.25, reward=0.4321)], {"reward": "0.432"}),
        ([status("learner.0", **RL, success=0.3, environments=MEANS)],
         {"success": "30.0%", "success maths": "25.0%", "success sql": "50.0%"}),
        ([status("learner.0", success=float("nan"), seconds_per_step=float("inf"), step=1, steps=9)],
         {"success": None, "left": None, "step": "1/9"}),
        ([status("learner.0", stage=2, stages=2)], {"stage": "done"}),
        ([status("tool_executor.0", calls_per_s=12.5)], {"tool calls/s": "12.50"}),
    ],
)  # fmt: skip
def test_figures_of_replicas_are_added_and_those_of_one_actor_shown(statuses, figures):
    shown = heard(*statuses)
    found = dict(shown.figures())
    assert {label: found.get(label) for label in figures} == figures
    assert "nan" not in drawn(shown, 101.0)
    assert all(each.actor in drawn(shown, 101.0) for each in statuses)  # also of other hosts


def test_what_an_actor_says_beside_its_figures_is_shown_with_them():
    shown = heard(status("learner.0", detail="isolation strong", queue=3, children=2))
    shown.observe(status("policy_log.0", policies_written=3, detail="\x1b[2J[red]\u202e"), 101.0)
    text = drawn(shown, 105.0)
    assert "isolation strong, queue 3, children 2" in text
    assert "policies written 3" in text
    assert "\u241b[2J[red]\u27e8U+202E\u27e9" in text  # neither markup nor control of the terminal
    assert "4 s ago" in text
    assert "demo, 0:05" in text
    shown.observe(status("learner.0", state="failed", detail="no disk", queue=3), 103.0)
    assert drawn(shown, 104.0).count("no disk") == 1


def test_states_follow_actor_and_process():
    shown = heard(status("learner.0", success=0.5))
    assert "learner.0" not in shown.line(101.0)
    shown.process("learner.0", "restarting")
    assert "learner.0 restarting" in shown.line(101.0)
    assert "success" not in dict(shown.figures())
    shown.observe(status("learner.0", state="failed", detail="no memory"), 102.0)
    assert "learner.0 failed: no memory" in shown.line(102.0)
    shown.observe(status("learner.0"), 103.0)
    shown.process("learner.0", "stopping")
    shown.observe(status("learner.0"), 104.0)
    assert "learner.0 stopping" in shown.line(104.0)


def test_a_silent_actor_is_marked_with_who_waits_for_it():
    shown = heard(status("learner.0"))
    shown.silences = {"learner.0": "silent for 7 s; kv_scheduler.0 waits for it: a newer policy"}
    row = next(line for line in drawn(shown, 108.0).splitlines() if "learner.0" in line)
    assert "silent for 7 s" in row
    assert "kv_scheduler.0 waits for it" in " ".join(drawn(shown, 108.0).split())
    assert "learner.0 silent for 7 s; kv_scheduler.0 waits for it" in shown.line(108.0)
    shown.silences = {}
    assert "silent" not in drawn(shown, 109.0)


FAULT = "EngineError: cannot load /data/models/a/rather/long/path/to/some/model-of-7B/config.json: 没有这样的文件"


def busy():
    """A run in which much is said: silence, a restart, a failure, and more figures than fit."""
    shown = LiveView("demo", (*ACTORS, "tool_executor.0", "my_own_reward_model_actor.0"), ["warm-up", "rl"], now=0.0)
    shown.observe(status("kv_scheduler.0", queue=3, rollouts_in_flight=64, rejected_frames=2), 600.0)
    shown.process("rollout_generator.0", "restarting")
    generator = {"tokens_per_s": 12345.6, "kv_used": 1, "kv_total": 4, "running": 33, "waiting": 12}
    shown.observe(status("rollout_generator.0", **generator, rollouts_per_s=3.27), 595.0)
    shown.observe(status("rollout_generator.1", state="failed", detail=FAULT), 600.0)
    executor = {"queue": 17, "calls_per_s": 1234, "children": 32, "sessions": 12, "sessions_evicted": 1}
    shown.observe(status("tool_executor.0", detail="isolation strong", **executor), 600.0)
    walked = {"stage": 1, "stages": 2, "step": 12345, "steps": 70000, "seconds_per_step": 20.4}
    figures = {"success": 0.4321, "staleness_mean": 0.51, "staleness_max": 2}
    shown.observe(status("roc_filter.0", steps_without_update=3), 600.0)
    shown.observe(status("learner.0", **walked, **figures), 600.0)
    shown.silences = {"tool_executor.0": "silent for 7 s; rollout_generator.0 waits for it: 12 tool results"}
    return shown


def lines_at(width):
    return drawn(busy(), 601.0, width).splitlines()


def test_at_every_width_the_table_fits_and_nothing_in_it_is_lost():
    said = f"64 running 33 tokens/s 12,346 isolation strong 20.40 rollout_generator.0 waits for it: {FAULT}".split()
    for width in range(60, 161):
        lines = lines_at(width)
        assert max(map(cell_len, lines)) <= width
        assert len(lines) <= 40
        (place,) = [index for index, line in enumerate(lines) if line.startswith("actor  ")]
        for label, value in busy().figures():
            assert sum(f"{label} {value}" in line for line in lines[:place]) == 1, (width, label, value)
        text = "".join("".join(lines).split())
        assert all(part.strip(",") in text or len(part) > 30 for part in said), width
        assert all(actor in text for actor in (*ACTORS, "tool_executor.0"))
        assert "restart" in text
        assert "heard" in text  # a column, or beside the state of the restarted actor


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (99, ["actor", "state", "figures"]),
        (100, ["actor", "state", "restarts", "figures"]),
        (120, ["actor", "state", "heard", "restarts", "figures"]),
    ],
)
def test_columns_are_left_out_in_a_fixed_order_and_what_is_unusual_in_them_is_said(width, columns):
    lines = lines_at(width)
    (header,) = [line for line in lines if line.startswith("actor  ")]
    assert header.split() == columns
    text = " ".join(" ".join(lines).split())
    assert ("1 restart" in text) == ("restarts" not in columns)
    assert ("(heard 6 s" in text or "heard 6 s" in text) == ("heard" not in columns)


@pytest.mark.parametrize("width", [1, 5, 19])
def test_a_terminal_too_narrow_for_anything_is_drawn_on_all_the_same(width):
    assert busy().render(601.0, width)


def test_plain_lines_come_at_milestones_and_now_and_then():
    shown, out = view(), io.StringIO()
    walked = (status("learner.0", stage=0, step=0, steps=2), status("learner.0", stage=1, step=1, steps=2))
    with Display(shown, SteadyConsole(file=out)) as display:
        for status_heard, now, lines in (
            (None, 100.0, 0), (walked[0], 101.0, 1), (None, 101.5, 1), (walked[1], 102.0, 2),
            (None, 102.0 + Display.INTERVAL - 0.1, 2), (None, 102.0 + Display.INTERVAL, 3),
        ):  # fmt: skip
            if status_heard:
                shown.observe(status_heard, now)
            display.refresh(now)
            assert out.getvalue().count("\n") == lines, now
        display.notice("said")
    *_, last, said = out.getvalue().splitlines()
    assert said == "said"
    assert last.startswith(f"[0:{2 + Display.INTERVAL:02.0f}] stage ")
    assert "step 1/2" in last


def test_lines_of_a_long_run_come_every_minute():
    out = io.StringIO()
    display = Display(view(), SteadyConsole(file=out))
    lines = []
    for hour in range(3):
        for second in range(3600):
            display.refresh(100.0 + 3600 * hour + second)
        lines.append(out.getvalue().count("\n"))
    assert 150 < lines[0] < 240
    assert 59 <= lines[2] - lines[1] <= 60


def test_alarms_that_hold_are_shown_and_said_once():
    text, out = "the last 8 steps had a success of 1 %; teach the form of calls first", io.StringIO()
    alarmed = status("learner.0", **RL, **WALKED, alarms={"low_success": text})
    shown = heard(alarmed)
    display = Display(shown, SteadyConsole(file=out))
    for now in (101.0, 103.0, 107.0):
        display.refresh(now)
    said, *lines = out.getvalue().splitlines()
    assert said == f"alarm: {text}"
    assert len(lines) == 2
    assert all("step 3/10  left 2:20" in line and "alarm low success)" in line for line in lines)
    table = drawn(shown, 107.0)
    assert f"alarm: {text}" in table
    assert "\u2501" in table  # the bar
    shown.observe(status("learner.0", **RL, step=4, steps=10), 108.0)
    assert "alarm" not in drawn(shown, 109.0) + shown.line(109.0)
    shown.observe(alarmed, 110.0)
    display.refresh(110.0)  # it comes and goes
    assert out.getvalue().count("alarm: ") == 1
    display.refresh(101.0 + Display.AGAIN)
    assert out.getvalue().count("alarm: ") == 2


def test_what_a_stage_takes_is_said_once():
    out = io.StringIO()
    shown = heard(status("learner.0", **RL, **WALKED, forecast="rl takes at least 80 rollouts"))
    display = Display(shown, SteadyConsole(file=out))
    display.refresh(101.0)
    shown.observe(status("learner.0", **RL), 102.0)  # the next stage
    display.refresh(102.0)
    display.refresh(103.0)
    assert out.getvalue().splitlines()[0] == "rl takes at least 80 rollouts"
    assert out.getvalue().count("takes") == 1


def test_a_terminal_gets_the_table_and_notices_word_for_word():
    shown, out = view(), io.StringIO()
    with Display(shown, Console(file=out, force_terminal=True, width=120)) as display:
        display.refresh(101.0)
        display.notice("learner.0 exited with status 1 [not markup]")
    assert "rollout_generator.1" in out.getvalue()
    assert "[not markup]" in out.getvalue()


class Full(io.StringIO):
    """A file on a disk without room, or with a closed reader."""

    def __init__(self, error, *, terminal):
        super().__init__()
        self.error, self.terminal = error, terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        raise self.error


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError(32, "Broken pipe")])
def test_a_display_whose_output_fails_falls_silent_and_says_so_once(terminal, error):
    failures = []
    with Display(view(), SteadyConsole(file=Full(error, terminal=terminal)), failures.append) as display:
        for now in range(100, 130):
            display.refresh(float(now))
            display.notice("unheard")
    assert failures == [error]


def test_logs_are_json_lines_with_what_is_bound_and_say_what_a_full_disk_lost(tmp_path):
    with open_log(tmp_path, "learner.0", actor="learner.0") as log:
        log.info("first", loss=0.5)
        log.debug("unseen")
        with no_file_longer_than(0):
            for _ in range(3):
                log.error("lost")
        passwords = {"her": "hunter%d" % 2}  # noqa: UP031 - the source line has no secret
        try:
            passwords["his"]
        except KeyError:
            log.exception("failed")
    written = (tmp_path / "logs" / "learner.0.jsonl").read_text()
    rows = [json.loads(line) for line in written.splitlines()]
    assert [(row["event"], row.get("lines")) for row in rows] == [
        ("first", None),
        ("log lines lost", 3),
        ("failed", None),
    ]
    assert (rows[0]["loss"], rows[0]["actor"], rows[0]["level"]) == (0.5, "learner.0", "info")
    assert rows[0]["timestamp"].endswith("Z")
    assert rows[2]["exception"][0]["exc_type"] == "KeyError"
    assert "hunter2" not in written
    with small_disk(tmp_path / "small", "8k") as disk:  # even its file cannot be made larger than nothing
        (disk / "logs").mkdir()
        fill(disk)
        with open_log(disk, "learner.0") as log:
            log.info("lost")


def test_a_summary_lists_figures_with_their_intervals_and_of_how_many_they_are():
    console = Console(file=io.StringIO(), width=100)
    console.print(summary_table({
        "success_a": 0.5, "success_a_low": 0.3, "success_a_high": 0.7, "problems_a": 1319,
        "success": 0.5, "success_low": 0.412, "success_high": 0.588,
        "staleness": None, "steps": 3, "loss": 0.123456789, "name": "demo",
        "tokens": 12345678, "minutes": 3.25, "remarks": ["a sentence"],
    }))  # fmt: skip
    rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in console.file.getvalue().splitlines()]
    assert [row for row in rows if row] == [
        ["success_a", "50.0 % of 1,319  (95 %: 30.0 to 70.0)"], ["success", "50.0 %  (95 %: 41.2 to 58.8)"],
        ["staleness", "-"], ["steps", "3"], ["loss", "0.123457"], ["name", "demo"], ["tokens", "12,345,678"],
        ["minutes", "3.25"],
    ]  # fmt: skip


# Many replicas: a line for each role, which adds up and says who stands out ---------------------------------------------

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


def lines_of(view: LiveView, width: int = 80, now: float = 101.0) -> list[str]:
    return drawn(view, now, width).splitlines()


def text_of(view: LiveView, width: int = 80, now: float = 101.0) -> str:
    """The table in one line. A role's prose stands in the last column; so it is put together again."""
    table = lines_of(view, width, now)
    header = next(line for line in table if line.startswith("actor  "))
    return " ".join(" ".join(line[header.index("figures") :] for line in table).split())


def test_six_hundred_actors_fit_on_a_terminal_of_80_columns_and_24_lines() -> None:
    table = lines_of(running())
    assert max(map(cell_len, table)) <= 80
    assert len(table) <= 24
    assert sum(line.startswith("rollout_generator (300)") for line in table) == 1
    assert "running 2,400, waiting 300, tokens/s 30,000" in text_of(running())
    assert "isolation strong, queue 0, calls/s 1,200" in text_of(running())


@pytest.mark.parametrize("count", [1, FEW, FEW + 1])
def test_a_role_with_few_replicas_has_a_line_for_each(count: int) -> None:
    table = lines_of(running(count))
    alone = [line for line in table if line.startswith("rollout_generator.")]
    assert len(alone) == (count if count <= FEW else 0)
    assert any(line.startswith(f"rollout_generator ({count})") for line in table) == (count > FEW)


def test_silent_failed_and_late_replicas_are_named() -> None:
    view = running()
    view.observe(status("rollout_generator.20", state="failed", detail="EngineError: no memory"), 100.0)
    for number in range(30, 36):
        view.observe(status(f"rollout_generator.{number}", tokens_per_s=100), 90.0)
    silent = "silent for 9 s; tool_executor.0 waits for it: calls"
    view.silences = {f"rollout_generator.{number}": silent for number in (*range(200, 290), 295)}
    view.process("tool_executor.5", "restarting")
    said = text_of(view)
    assert "91 silent: replicas 200, 201, 202, 203 and 87 more" in said
    assert "1 failed: replica 20 (EngineError: no memory)" in said
    assert "6 heard late: replicas 30, 31, 32, 33 and 2 more" in said
    assert "1 restarting: replica 5" in said
    table = lines_of(view)
    assert len(table) <= 32
    assert any("208 of 300" in line for line in table)
    assert any("299 of 300" in line for line in table)
    assert [line.split()[-2] for line in lines_of(view, 100) if line.startswith("tool_executor")] != []


def test_half_of_six_hundred_silent_still_fit() -> None:
    view = running()
    waits = "; ".join(f"rollout_generator.{number} waits for it: 3 tool results" for number in range(3))
    view.silences = {
        f"{role}.{number}": f"silent for 12 s; {waits}"
        for role in ("rollout_generator", "tool_executor")
        for number in range(0, COUNT, 2)
    }
    table = lines_of(view)
    assert len(table) <= 32
    assert max(map(cell_len, table)) <= 80
    assert "150 silent: replicas 0, 2, 4, 6 and 146 more" in text_of(view)


def test_a_role_of_which_all_are_silent_says_who_waits() -> None:
    view = running()
    view.silences = {f"tool_executor.{number}": "silent for 9 s; rollout_generator.0 waits" for number in range(COUNT)}
    assert "replica 0 silent for 9 s; rollout_generator.0 waits" in text_of(view)


def test_a_plain_line_counts_many_replicas_and_names_few() -> None:
    view = running()
    view.silences = {f"tool_executor.{number}": "silent for 9 s; nobody waits" for number in range(50)}
    view.observe(status("learner.0", state="failed", detail="no disk"), 100.0)
    line = view.line(101.0)
    assert "(learner.0 failed: no disk, 50 of tool_executor silent: replicas 0, 1, 2, 3 and 46 more)" in line

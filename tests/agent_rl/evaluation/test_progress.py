"""An evaluation under way, as a line."""

import io

from rich.console import Console

from actors.cli.evaluation import EvaluationView
from tests.builders import status


def heard(view: EvaluationView, now: float, done: int, total: int = 200) -> None:
    view.process("roc_filter.0", "running")
    view.observe(status("roc_filter.0", rollouts_judged=done, rollouts_to_judge=total), now)


def test_what_is_left_follows_from_what_this_start_has_done():
    view = EvaluationView("evaluation", ["roc_filter.0"], ["evaluation"], 100.0)
    assert view.line(101.0) == "[0:01] starting"
    heard(view, 105.0, 120)  # what an earlier start did
    assert view.line(105.0) == "[0:05] 120 of 200 rollouts judged"
    heard(view, 115.0, 140)
    assert view.line(115.0) == "[0:15] 140 of 200 rollouts judged, 0:30 left"
    view.process("tool_executor.0", "restarting")
    assert "(tool_executor.0 restarting)" in view.line(115.0)


def test_on_a_terminal_the_line_is_folded():
    view = EvaluationView("evaluation", ["roc_filter.0"], ["evaluation"], 0.0)
    heard(view, 1.0, 100)
    for width in range(20, 160):
        shown = io.StringIO()
        Console(file=shown, width=width, force_terminal=True, color_system=None).print(view.render(1.0, width))
        lines = shown.getvalue().splitlines()
        assert max(map(len, lines)) <= width
        assert "".join(lines).replace(" ", "") == view.line(1.0).replace(" ", "")

"""The built-in environments keep what every environment promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from agent_rl.environments.maths import Maths
from agent_rl_contract import EnvironmentContract
from examples.quickstart.arithmetic import Arithmetic

PROBLEMS = Path(__file__).parents[3] / "examples" / "word_problems"


class TestArithmetic(EnvironmentContract):
    environment = Arithmetic


class TestMaths(EnvironmentContract):
    environment = Maths
    settings: ClassVar[dict[str, Any]] = {
        "files": (str(PROBLEMS / "amounts.jsonl"),),
        "evaluation_files": (str(PROBLEMS / "held_out.jsonl"),),
        "prompt": "rstar2",
    }

"""The agent of others in examples/coding_agent, in a short real run."""

import json
from pathlib import Path

import pytest

from actors.cli.main import main
from tests.actors.gateway.stand import free_port

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (EXAMPLES.parent / ".venv-clients" / "installed").is_file(),
        reason="no clients are here: make .venv-clients/installed",
    ),
]


def test_its_compaction_branches_and_every_token_is_accounted_for(tmp_path):
    directory = tmp_path / "run"
    given = [
        f'run.directory="{directory}"',
        f"actors.gateway.settings.port={free_port()}",
        "stages.0.steps=250",
        "stages.1.problems=10",
        "stages.2.steps=2",
        "stages.3.problems=10",
    ]
    settings = [word for each in given for word in ("--set", each)]
    assert main(["run", "coding_agent", *settings]) == 0
    assert main(["audit", str(directory)]) == 0
    summary = json.loads((directory / "summary.json").read_text())
    rollouts = summary["rollouts_sampled"]
    assert summary["branches_rewrite"] + summary["branches_compaction"] > rollouts / 2
    parts = [value for name, value in summary.items() if name.startswith("tokens_delivered_")]
    assert 2 * summary["tokens_delivered_sampled"] == sum(parts) > 0

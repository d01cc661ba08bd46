"""``agent-rl analyze``: its page, its table, its JSON, and one clear error for what it cannot use."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from actors.cli.main import main
from actors.cli.records import decode_stored
from agent_rl import load_run
from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model
from agent_rl.messages import ToolCallRecord
from agent_rl.observe.report import Watched
from agent_rl.records.checkpoint_files import file_checksum
from tests.agent_rl.observe.test_report import HOSTILE
from tests.agent_rl.records.report_runs import RL, SyntheticRun, byte_tokenizer

CALL = '<tool_call>{"name": "python", "arguments": {"code": "# add\\nprint(1)"}}</tool_call>'
WRITTEN = " ".join(text for text in HOSTILE if text.isprintable())
PIECES = [f"I think {WRITTEN} " + CALL, "<tool_response>\n2\n</tool_response>", "But wait. <answer>\\boxed{2}</answer>"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer is that of synthetic runs."""
    directory = tmp_path_factory.mktemp("model")
    spec = InitialiseModel(
        hidden_size=16, layers=1, heads=1, kv_heads=1, head_dim=16, mlp_size=16, max_length=4096, byte_fallback=True
    )
    initialise_model(spec, directory, 0)
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    return directory


def checkpoint(run: SyntheticRun, weights: Path, version: int, stage: int = RL) -> Path:
    path = run.directory / "checkpoints" / f"version-{version:06d}-stage-{stage:02d}"
    shutil.copytree(weights, path)
    files = {file.name: file_checksum(file) for file in weights.iterdir()}
    (path / "training").mkdir()
    state = {"stage": stage, "stage_version": 1, "version": version, "step": 0, "files": files}
    (path / "training" / "state.json").write_text(json.dumps(state))
    return path


def synthetic(folder: Path, weights: Path) -> SyntheticRun:
    run = SyntheticRun(folder)
    run.version = 1
    run.enter(RL)
    for _ in range(3):
        run.step([[0, 1, 0, 0]], PIECES, [ToolCallRecord(1, "python", "success", 0.1, 0.1)])
    run.journal.commit()
    checkpoint(run, weights, 6)
    return run


def analyzed(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["analyze", *map(str, arguments)]) == 0
    last: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return last


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["analyze", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error.splitlines()[-1]


def test_a_study_of_a_run_under_way(tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic(tmp_path, weights)
    found = analyzed(capsys, run.directory, "--rollouts", 2)
    written = json.loads((run.directory / "analysis.json").read_text())
    assert (written["share"], written["window"], written["temperature"], written["seed"]) == (0.2, 64, 1.0, 0)
    tokens = sum(len(piece.encode()) for piece in PIECES[::2])
    assert (found["rollouts"], found["model_version"], found["steps"]) == (2, 6, [3, 3])
    assert found["tokens"] == 2 * tokens == sum(kind["tokens"] for kind in found["kinds"].values())
    assert found["kinds"]["comment"]["tokens"] == 2 * len("# add")
    assert found["kinds"]["after_tool"]["tokens"] == 2 * len(PIECES[2])
    assert found["high_share"] == pytest.approx(-(-tokens // 5) / tokens)
    assert found["gap"] > 1  # the journal's log-probabilities are 0
    assert {word["word"] for word in written["reflection"]}
    kept = load_run(run.directory).entropies
    assert found["tokens"] == sum(int((nats >= 0).sum()) for nats in kept.values())
    assert sum(float(np.nansum(nats)) for nats in kept.values()) == pytest.approx(
        found["entropy"] * found["tokens"], rel=1e-3
    )
    page = (run.directory / "analysis.html").read_text()
    shown = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    marked = [block["marked"] for section in shown["sections"] for block in section["blocks"] if "marked" in block]
    assert len(marked) == 2
    assert all("But wait. <answer>\\boxed{2}</answer>" in "".join(text for text, *_ in each) for each in marked)
    assert {kind for each in marked for _, kind, _ in each} == {"given", "plain", "forking", "reflection"}


def test_the_same_arguments_write_the_same_files(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = synthetic(tmp_path, weights)
    files = []
    for place in ("first", "second"):
        analyzed(capsys, run.directory, "--out", tmp_path / place, "--model", weights, "--temperature", 0.5)
        files.append([(tmp_path / place / name).read_bytes() for name in ("analysis.json", "analysis.html")])
    assert files[0] == files[1]
    assert json.loads(files[0][0])["model_version"] is None


def test_what_cannot_be_used_is_one_clear_error(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no run directory" in refused(capsys, tmp_path / "none")
    assert "no journal here" in refused(capsys, tmp_path)
    run = synthetic(tmp_path, weights)
    assert "name a Hugging Face directory" in refused(capsys, run.directory, "--model", tmp_path)
    shutil.rmtree(run.directory / "checkpoints")
    assert "no checkpoint is left for the rollouts" in refused(capsys, run.directory)
    other = tmp_path / "other"
    shutil.copytree(weights, other)
    (other / "tokenizer.json").write_text("{")
    assert "tokenizer.json cannot be read as a tokenizer" in refused(capsys, run.directory, "--model", other)
    assert "device" in refused(capsys, run.directory, "--model", weights, "--device", "abacus")
    assert not (run.directory / "analysis.html").exists()


def test_a_checkpoint_that_changed_is_named(tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic(tmp_path, weights)
    path = next((run.directory / "checkpoints").iterdir()) / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    assert "model.safetensors is not what was written: its checksum differs" in refused(capsys, run.directory)


def test_a_distant_model_is_noted(tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic(tmp_path, weights)
    (run.directory / "checkpoints" / "version-000006-stage-02").rename(tmp_path / "moved")
    checkpoint(run, weights, 40)
    assert main(["analyze", str(run.directory)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"sampled by versions \d+ to \d+, and the nearest model is version 40", " ".join(out.split()))
    assert "run.keep_checkpoints" in out


def test_entropies_are_added_to_those_of_earlier_studies_and_a_damaged_file_is_told(
    tmp_path: Path, weights: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = synthetic(tmp_path, weights)
    analyzed(capsys, run.directory, "--rollouts", 2, "--step", 1)
    analyzed(capsys, run.directory, "--rollouts", 2, "--step", 3)
    assert len(load_run(run.directory).entropies) == 4
    watched = Watched(run.directory, decode_stored)
    watched.look()
    notes = len(watched.page()["notes"])
    (run.directory / "entropies.npz").write_bytes(b"PK")
    assert "remove it" in refused(capsys, run.directory, "--rollouts", 2)
    page = watched.page()
    assert (len(page["notes"]), "remove it" in str(page["notes"])) == (notes + 1, True)

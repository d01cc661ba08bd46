"""What vLLM is started with. That it starts is tested in tests/vllm."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.engines.vllm.start import SOCKETS, VllmStart
from agent_rl.files.leftovers import sweep_one


def start(**changes: Any) -> VllmStart:
    settings: dict[str, Any] = {
        "model_path": Path("model"),
        "max_rollouts": 8,
        "kv_tokens": None,
        "threads": 2,
        "device": "cuda",
        "dtype": "bfloat16",
        "block_size": 32,
        "engine_arguments": {},
    }
    return VllmStart(**{**settings, **changes})


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go, by a name short enough for sockets."""
    monkeypatch.delenv(SOCKETS, raising=False)
    for name in start().environment() | start(device="cpu").environment():
        monkeypatch.setenv(name, "as it was")
    with tempfile.TemporaryDirectory(prefix="v-", dir="/tmp") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def bound(directory: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(directory / "01234567-0123-0123-0123-012345678901"))
    listener.listen()
    return listener


def test_sockets_that_vllm_leaves_are_swept(temporary: Path) -> None:
    with start().surroundings():
        directory = Path(os.environ[SOCKETS])
        assert directory.parent == temporary
        bound(directory).close()
        assert not sweep_one(directory)  # it is held
    assert SOCKETS not in os.environ
    assert list(temporary.iterdir()) == []


def test_a_socket_at_which_a_process_still_listens_is_left_for_the_next_sweep(temporary: Path) -> None:
    with start().surroundings():
        listener = bound(Path(os.environ[SOCKETS]))
    (directory,) = temporary.iterdir()
    listener.close()
    assert sweep_one(directory)


def test_a_directory_that_the_user_names_is_vllms(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SOCKETS, "/tmp/mine")
    with start().surroundings():
        assert os.environ[SOCKETS] == "/tmp/mine"
    assert os.environ[SOCKETS] == "/tmp/mine"
    assert list(temporary.iterdir()) == []


def test_paths_too_long_for_sockets_are_not_made_longer(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = temporary / ("x" * 60)
    far.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(far))
    with start().surroundings():
        assert SOCKETS not in os.environ
    assert list(far.iterdir()) == []


def test_variables_that_are_set_already_stay(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del temporary
    monkeypatch.delenv("OMP_NUM_THREADS")
    with start(device="cpu").surroundings():
        assert os.environ["OMP_NUM_THREADS"] == "2"
        assert os.environ["VLLM_LOGGING_LEVEL"] == "as it was"


def test_the_topologys_arguments_go_before_all_others() -> None:
    made = start(engine_arguments={"max_num_seqs": 4, "tensor_parallel_size": 2}).arguments()
    assert (made["max_num_seqs"], made["tensor_parallel_size"]) == (4, 2)
    assert made["model"] == "model"

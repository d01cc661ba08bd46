"""Task folders in Harbor's format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from agent_rl.config.topology import Harness
from agent_rl.environments.base import TaskError
from agent_rl.environments.harbor import Harbor, read_reward
from agent_rl.environments.harness import HarnessOutcome, told_of
from agent_rl.messages import EnvironmentMessage, Transcript

DOCKERFILE = """\
# the base
FROM python:3.12-slim
WORKDIR /app
COPY data.csv notes/ ./
COPY --chown=agent \\
    main.py src/app.py
"""


def task(folder: Path, name: str = "one", **files: str) -> Path:
    given = {"task.toml": 'version = "1.0"\n', "instruction.md": f"Do {name}.", "tests/test.sh": "exit 0\n"}
    for path, text in {**given, **{key.replace("__", "/"): text for key, text in files.items()}}.items():
        target = folder / "tasks" / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if text:
            target.write_text(text)
    return folder / "tasks" / name


def harbor(folder: Path, **settings: str) -> Harbor:
    return Harbor(seed=0, base=folder, folder="tasks", **settings)  # type: ignore[arg-type]


def test_a_folder_of_tasks_is_an_environment(tmp_path: Path) -> None:
    one = task(tmp_path)
    for name, text in {"Dockerfile": DOCKERFILE, "data.csv": "1,2", "notes/a.txt": "a", "main.py": "pass"}.items():
        (one / "environment" / name).parent.mkdir(parents=True, exist_ok=True)
        (one / "environment" / name).write_text(text)
    made = harbor(tmp_path)
    problem = made.problems().problem(0, 0)
    assert (problem.id, made.prompt(problem)) == ("one", [{"role": "user", "content": "Do one."}])
    assert made.files(problem) == {"data.csv": "1,2", "a.txt": "a", "src/app.py": "pass"}
    assert made.check_files(problem) == {"test.sh": "exit 0\n"}


@pytest.mark.parametrize(
    ("dockerfile", "said"),
    [
        ("FROM x\nRUN apt-get install -y git", "Dockerfile, line 2: RUN needs a container"),
        ("FROM x\n\nCOPY none.txt /app/", "line 3: there is no "),
        ("FROM x\nCOPY Dockerfile /etc/", "line 2: /etc is not below /app"),
        ("FROM x\nCOPY Dockerfile ../../etc/x", "is not below /app"),
    ],
)
def test_what_a_jail_cannot_do_of_a_dockerfile_is_refused(tmp_path: Path, dockerfile: str, said: str) -> None:
    (task(tmp_path) / "environment").mkdir()
    (tmp_path / "tasks" / "one" / "environment" / "Dockerfile").write_text(dockerfile)
    with pytest.raises(TaskError, match=said):
        harbor(tmp_path)
    assert (
        harbor(tmp_path, dockerfile="ignore").files(harbor(tmp_path, dockerfile="ignore").problems().problem(0, 0))
        == {}
    )


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"there is no folder .*tasks"):
        harbor(tmp_path)
    (tmp_path / "tasks" / "empty").mkdir(parents=True)
    with pytest.raises(TaskError, match=r"has a task\.toml"):
        harbor(tmp_path)
    one = task(tmp_path)
    (one / "tests" / "test.sh").unlink()
    with pytest.raises(TaskError, match=r"one has no tests/test.sh; add it"):
        harbor(tmp_path)
    task(tmp_path, **{"task.toml": "version ="})
    with pytest.raises(TaskError, match=r"task.toml: "):
        harbor(tmp_path)


@pytest.mark.parametrize(
    ("text", "reward"),
    [("1\n", 1.0), ("", 0.0), ('{"reward": 0.5, "a": 1}', 0.5), ('{"passed": 1}', 1.0), ("-2", -2.0)],
)
def test_rewards(text: str, reward: float) -> None:
    assert read_reward(text, "the tests") == reward


@pytest.mark.parametrize(
    "text",
    ["yes", "nan", "[1]", '{"a": 1, "b": 2}', '{"reward": "much"}', "1e999", "null", "1" + "0" * 400, "[" * 50_000],
)
def test_a_reward_that_is_no_number(text: str) -> None:
    with pytest.raises(TaskError, match="the tests wrote the reward"):
        read_reward(text, "the tests")


def test_the_check_decides(tmp_path: Path) -> None:
    task(tmp_path)
    made = harbor(tmp_path)
    problem = made.problems().problem(0, 0)

    def judged(**outcome: str) -> float:
        told = told_of(HarnessOutcome("status 0", **outcome))
        transcript = Transcript(("turn",), (), tuple(EnvironmentMessage(1, *each) for each in told))
        return trio.run(made.judge, problem, transcript, None).reward

    with pytest.raises(TaskError, match="has no check"):
        judged()
    made.harness = Harness(command=("agent",), check=("bash", "{tests}/test.sh"))
    assert judged(check_status="status 0", check_reward="1") == 1.0
    assert judged(check_status="no end within 120 s") == 0.0


def test_an_outcome_goes_through_the_transcript(tmp_path: Path) -> None:
    (role, text), (last, output) = told_of(HarnessOutcome("status 0", "said", {"a": "b"}))
    assert (role, last, output, json.loads(text)["files"]) == ("harness_outcome", "harness", "said", {"a": "b"})


def test_a_dockerfile_is_left_to_docker_where_images_are_built(tmp_path: Path) -> None:
    task(tmp_path, environment__Dockerfile="FROM x\nRUN make\n", environment__data="d")
    made = Harbor(seed=0, base=tmp_path, folder="tasks", dockerfile="build")
    (problem,) = made.problems().trained
    assert (made.files(problem), made.image_folder(problem)) == ({}, str(tmp_path / "tasks" / "one" / "environment"))
    (tmp_path / "tasks" / "one" / "environment" / "Dockerfile").unlink()
    with pytest.raises(TaskError, match="has no environment/Dockerfile"):
        Harbor(seed=0, base=tmp_path, folder="tasks", dockerfile="build")

"""Task folders in Harbor's format."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio

from actors.sandbox.programs.warden import write_files
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
        ("FROM x\nCOPY ../../two/tests/test.sh ./", "one/environment/Dockerfile, line 2: there is no "),
        ("FROM x\nCOPY ../tests /app/", "line 2: there is no "),
        ("FROM x\nRUN echo it's", "line 2: RUN needs a container"),
        ("FROM x\nCOPY it's /app/", "line 2: COPY cannot be read: No closing quotation"),
        ('FROM x\nCOPY ["a", /app/', "line 2: COPY cannot be read"),
        ("FROM x\nCOPY <<EOF /app/x\nhello\nEOF", "line 2: COPY of <<EOF needs a container"),
        ("FROM x\nCOPY --from=builder /app/x ./", "line 2: COPY --from needs a container"),
        ("FROM x\nCOPY --chmod=u+x Dockerfile ./", "line 2: --chmod=u.x needs a container"),
        ("ARG V=1\nFROM x:$V", "line 1: ARG needs a container"),
        ("FROM x\nWORKDIR $HOME", r"line 2: WORKDIR of \$HOME needs a container"),
        ("FROM x\nADD https://example.com/x ./", "line 2: ADD of https://example.com/x needs a container"),
        ("# escape=`\nFROM x", "line 1: another escape character needs a container"),
    ],
)
def test_what_a_jail_cannot_do_of_a_dockerfile_is_refused(tmp_path: Path, dockerfile: str, said: str) -> None:
    (task(tmp_path) / "environment").mkdir()
    (tmp_path / "tasks" / "one" / "environment" / "Dockerfile").write_text(dockerfile)
    with pytest.raises(TaskError, match=said):
        harbor(tmp_path)
    ignoring = harbor(tmp_path, dockerfile="ignore")
    assert ignoring.files(ignoring.problems().problem(0, 0)) == {}


ODD = """\
FROM builder AS first
COPY secret ./
FROM x

COPY\t["my file", "tool.sh", \\
# a comment
  "./"]
COPY --chmod=755 data.bin bin/
CMD echo it's ready
"""


def test_files_keep_their_bytes_and_may_be_executed(tmp_path: Path) -> None:
    contents = {"my file": b"a\r\nb\rc\n", "tool.sh": b"#!/bin/sh\r\n", "data.bin": b"\xff\0", "secret": b"s"}
    folder = task(tmp_path) / "environment"
    folder.mkdir()
    (folder / "Dockerfile").write_text(ODD)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o755 if name == "tool.sh" else 0o644)
    made = harbor(tmp_path)
    write_files(str(tmp_path / "app"), made.files(made.problems().problem(0, 0)))
    found = {path.relative_to(tmp_path / "app").as_posix(): path for path in (tmp_path / "app").rglob("*.*")}
    assert {name: (path.read_bytes(), os.access(path, os.X_OK)) for name, path in found.items()} == {
        "tool.sh": (contents["tool.sh"], True),
        "bin/data.bin": (contents["data.bin"], True),
    }
    assert made.files(made.problems().problem(0, 0))["my file"] == "a\r\nb\rc\n"
    assert "secret" not in made.files(made.problems().problem(0, 0))


@pytest.mark.parametrize("at", ["environment/link", "environment/deep/link", "tests/link"])
@pytest.mark.parametrize("to", ["/etc/passwd", "../../two/tests/test.sh", "/etc"])
def test_links_out_of_a_task_are_refused(tmp_path: Path, at: str, to: str) -> None:
    task(tmp_path, "two")
    link = task(tmp_path, environment__Dockerfile="FROM x\nCOPY . ./\n", environment__deep__x="x") / at
    link.symlink_to(Path("..", to) if at.count("/") == 2 and to[0] == "." else to)
    with pytest.raises(TaskError, match=r"one/(environment/Dockerfile, line 2|tests/link): .*link.*; copy"):
        harbor(tmp_path)


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
    [
        *[("1\n", 1.0), ('{"reward": 0.5, "a": 1}', 0.5), ('{"passed": 1}', 1.0), ("-2", -2.0), ("", "no reward")],
        *[(text, "the reward") for text in ("yes", "nan", "[1]", '{"a": 1, "b": 2}', '{"reward": "much"}', "1e999")],
        *[(text, "the reward") for text in ("null", "1" + "0" * 400, "[" * 50_000)],
    ],
)
def test_a_reward_is_a_number(text: str, reward: float | str) -> None:
    if isinstance(reward, float):
        assert read_reward(text) == reward
        return
    with pytest.raises(ValueError, match=f"the tests wrote {reward}"):
        read_reward(text)


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
    assert judged(check_status="status 1", check_reward="1") == 1.0
    assert judged(check_status="no end within 120 s", check_reward="1") == 0.0
    assert judged(check_status="status 0", check_reward="nan") == 0.0


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

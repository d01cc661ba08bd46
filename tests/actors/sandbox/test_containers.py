"""Programs in containers. No daemon is here: `container_cli.py` stands for docker."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.sandbox.owner.containers import Containers, Docker, Limits
from actors.sandbox.owner.programs import Program, StartError
from actors.sandbox.owner.relay import relay
from tests.actors.gateway.stand import free_port
from tests.actors.sandbox.container_stand import state

__all__ = ["state"]

pytestmark = [pytest.mark.real_time, pytest.mark.slow]
LIMITS = Limits(memory_mib=512, processes=32, cpus=1.5, seconds=100)
DOCKER = Docker(own_network=True)
KEY = "sk-of-the-rollout"


def asked(script: str, **more: Any) -> dict[str, Any]:
    given = {"argv": ["sh", "-c", script], "env": {"HOME": "/app", "KEY": KEY}, "folder": "/app", "tests": "/tests"}
    given |= {"logs": "/logs", "files": {}, "collect": [], "check": [], "check_files": {}, "check_seconds": 10.0}
    return {**given, "seconds": 20.0, "url": "http://127.0.0.1:1", "image": "agent:1", "build": "", **more}


async def ran(
    at: Containers, script: str, *, gateway: str = "", most: int = 1 << 20, **more: Any
) -> tuple[dict[str, Any], Program]:
    with trio.fail_after(60):
        await at.loaded()
        async with at.program(asked(script, **more)) as program, trio.open_nursery() as nursery:
            nursery.start_soon(program.read, most)
            if program.listener is not None:
                nursery.start_soon(relay, gateway, program.listener)
            told = await program.result()
            with trio.move_on_after(1):
                await program.written_all.wait()
            nursery.cancel_scope.cancel()
    return told, program


def containers(state: Path) -> list[str]:
    return sorted(each.stem for each in state.glob("*.json"))


async def test_a_program_has_its_files_its_gateway_and_its_check(state):
    port = free_port()

    async def gateway(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(b"HTTP/1.0 200 OK\r\n\r\n" + (await stream.receive_some(4096)).split()[1])

    ask = "import os, urllib.request; print(urllib.request.urlopen(os.environ['URL'] + '/v1').read())"
    script = f'pwd; cat in/a.txt; echo $KEY >key; /usr/bin/python3 -c "{ask}"; ls /tests; (sleep 99 &) ; exit 3'
    check = ["sh", "-c", "bash /tests/test.sh; ps ax | grep -c 'sleep 9[9]'"]
    test = "cat key; mkdir -p /logs/verifier; echo 0.5 >/logs/verifier/reward.txt\n"
    url = f"http://127.0.0.1:{port}"
    async with trio.open_nursery() as nursery:
        await nursery.start(trio.serve_tcp, gateway, port)
        told, program = await ran(
            Containers(DOCKER, "run.a.0", LIMITS),
            script,
            gateway=url,
            url=url,
            env={"HOME": "/app", "KEY": KEY, "URL": url, "ODD": 'it\'s $(x)\n"y"'},
            files={"in/a.txt": "hello\n"},
            collect=["*.txt", "**/a*", "key"],
            check=check,
            check_files={"test.sh": test},
        )
        nursery.cancel_scope.cancel()
    assert (told["status"], told["files"]) == ("status 3", {"in/a.txt": "hello\n", "key": f"{KEY}\n"}), program.text
    assert told["check"] == {"status": "status 1", "output": f"{KEY}\n0\n", "reward": "0.5\n"}
    assert program.text.startswith("/app\nhello\nb'/v1'\n")
    assert "/tests" in program.text  # there is none yet
    assert containers(state) == []
    assert KEY not in (state / "calls").read_text()


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("setsid sleep 77 & sleep 77", "no end within 1 s"),
        ("yes", "stopped"),
        ("kill -9 $$", "status 137"),
        ("no-such-agent", "status 127"),
        ("kill -9 -1; sleep 1; kill -9 1; exit 4", "status 4"),
    ],
)
async def test_whatever_a_program_does_its_check_runs(state, script, status):
    at = Containers(DOCKER, "run.a.0", LIMITS)
    told, program = await ran(at, script, seconds=1.0 if "77" in script else 20.0, check=["sh", "-c", "ps ax"])
    assert (told["status"], told["check"]["status"]) == (status, "status 0"), program.text
    assert "sleep 77" not in told["check"]["output"]
    assert containers(state) == []


async def test_neither_check_nor_reward_is_by_what_a_program_planted(state, monkeypatch):
    monkeypatch.setenv("PATH", f"/app/bin:.:{os.environ['PATH']}")
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "BASH_ENV"):
        monkeypatch.setenv(name, "/app/bin")
    plant = "mkdir bin; for each in sh bash cat tar grep rm; do printf '#!/bin/sh\necho 1' >bin/$each; done; "
    plant += "chmod +x bin/*"
    check = ["sh", "-c", 'grep -c x /dev/null; echo "$PYTHONPATH$LD_LIBRARY_PATH$BASH_ENV$KEY"']
    more = {"collect": ["bin/tar"], "argv": ["/bin/sh", "-c", plant]}
    told, program = await ran(Containers(DOCKER, "run.a.0", LIMITS), "", check=check, **more)
    assert (program.text, told["check"]) == ("", {"status": "status 0", "output": "0\n/tests\n", "reward": ""})
    assert told["files"] == {"bin/tar": "#!/bin/sh\necho 1"}


async def test_what_a_killed_owner_left_is_removed_by_the_next(state):
    for owner in ("run.a.0", "run.a.1"):
        for words, given in DOCKER.make(owner, f"agent-rl-{owner}", "agent:1", LIMITS):
            await trio.run_process(list(words), stdin=given)
    await Containers(DOCKER, "run.a.0", LIMITS).loaded()
    assert containers(state) == ["agent-rl-run.a.1"]
    await trio.run_process(list(DOCKER.remove("agent-rl-run.a.1")))


async def test_a_cancelled_rollout_leaves_no_container(state):
    at = Containers(DOCKER, "run.a.0", LIMITS)
    await at.loaded()
    with trio.move_on_after(1):
        async with at.program(asked("sleep 99")) as program:
            assert len(containers(state)) == 1
            await program.result()
    assert containers(state) == []


async def test_an_image_is_built_once_from_a_folder(state, tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "Dockerfile").write_text("FROM x\nCOPY data /app/\n")
    (tmp_path / "task" / "data").write_text("of the image\n")
    at = Containers(Docker(own_network=False), "run.a.0", LIMITS)
    for _ in range(2):
        _, program = await ran(at, "cat data", build=str(tmp_path / "task"))
        assert program.text == "of the image\n"
    calls = [json.loads(line) for line in (state / "calls").read_text().splitlines()]
    assert [call[0] for call in calls].count("build") == 1


async def test_an_image_that_is_missing_is_told_with_the_remedy(state):
    said = "(?s)'missing:1' locally.*pull or build the image, or correct `container.image`"
    with pytest.raises(StartError, match=said):
        await ran(Containers(DOCKER, "run.a.0", LIMITS), "true", image="missing:1")
    assert containers(state) == []


@pytest.mark.parametrize(
    ("docker", "said"),
    [
        ("", "'docker': not found|docker: not found"),
        ("echo permission denied while trying to connect >&2; exit 1", "permission denied.*give the user of the run"),
        ("echo Cannot connect to the Docker daemon >&2; exit 1", "Docker daemon; start it, or leave out `container`"),
    ],
)
async def test_docker_that_does_not_serve_is_told(tmp_path, monkeypatch, docker, said):
    (tmp_path / "sh").symlink_to("/bin/sh")
    if docker:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{docker}\n")
        (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartError, match=said):
        await Containers(DOCKER, "run.a.0", LIMITS).loaded()


def test_limits_are_those_of_the_harness():
    ((words, _),) = Docker(own_network=False).make("o", "n", "i:1", LIMITS)
    line = " ".join(words)
    assert line.startswith("docker run -d --rm --name n --label agent-rl=o --memory 512m --pids-limit 32")
    assert "--security-opt no-new-privileges --network host --cpus 1.5 --entrypoint sh i:1 -c" in line

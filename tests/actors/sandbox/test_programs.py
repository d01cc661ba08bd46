"""Programs of others in jails: what they may do, what they cannot, and what is left of them."""

import os
import re
import socket
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from actors.sandbox.isolation.control_groups import ControlGroups, control_groups
from actors.sandbox.isolation.levels import outer_users, visible
from actors.sandbox.owner.programs import Program, StartError, Zygote, installation
from actors.sandbox.owner.relay import is_proxied, relay, wanted
from actors.sandbox.programs.jail import WORK, Jail
from tests.actors.gateway.stand import free_port
from tests.actors.sandbox.running import commands
from tests.end_to_end.processes import wait_for

pytestmark = pytest.mark.real_time
PORT = 8642
MIB = 1024 * 1024
SECRET = "what another rollout has"
PROGRAMS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text())
"""`takes` takes memory that is of no process: the kernel would end another one for it."""


def jail(*, network: bool = True, **more: Any) -> Jail:
    first, users, blocks = outer_users() if os.geteuid() == 0 else (0, 1, 1)
    shown = installation(sys.executable)
    given = {"memory": 512 * MIB, "disk": 8 * MIB, "processes": 64, "first_user": first, "users": users * blocks}
    plan = [list(step) for step in visible(shown, ()).plan]
    return Jail(plan=plan, port=PORT if network else 0, **{**given, **more})


@asynccontextmanager
async def zygote(made: Jail | None, script: str = "", groups: ControlGroups | None = None) -> AsyncIterator[Zygote]:
    async with trio.open_nursery() as nursery:
        found = Zygote(sys.executable, script, made, groups)
        nursery.start_soon(found.run, {"PATH": os.environ["PATH"]})
        await found.loaded()
        if made is not None and found.why_plain:
            pytest.skip(f"no jails here: {found.why_plain}")
        yield found
        nursery.cancel_scope.cancel()


def asked(at: Zygote, folder: Path, code: str, **more: Any) -> dict[str, Any]:
    work, tests, logs = (WORK, "/tests", "/logs") if at.jailed else (str(folder / each) for each in "wtl")
    return {
        "argv": ["python3", "-c", code],
        "env": {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": work},
        "jailed": at.jailed,
        "folder": work,
        "tests": tests,
        "logs": logs,
        "files": {},
        "collect": [],
        "check": [],
        "check_files": {},
        "check_seconds": 10.0,
        "seconds": 20.0,
        **more,
    }


async def ran(at: Zygote, folder: Path, code: str, *, most: int = MIB, **more: Any) -> tuple[dict[str, Any], Program]:
    """What a program's warden tells, and the program."""
    with trio.fail_after(60):
        async with at.program(asked(at, folder, code, **more)) as program, trio.open_nursery() as nursery:
            nursery.start_soon(program.read, most)
            told = await program.result()
            with trio.move_on_after(1):
                await program.written_all.wait()
            nursery.cancel_scope.cancel()
            starved = program.starved()
            program.starved = lambda: starved
            return told, program


async def in_jail(folder: Path, code: str, **more: Any) -> tuple[dict[str, Any], Program]:
    """As `ran`, with a zygote of its own, in a jail."""
    async with zygote(jail()) as at:
        return await ran(at, folder, code, **more)


@pytest.mark.parametrize("jailed", [True, False])
async def test_a_program_has_its_files_and_leaves_its_own(tmp_path, jailed):
    code = "import os; t = open('in/a.txt').read(); open('out.txt', 'w').write(t.upper()); print(os.getcwd()); exit(3)"
    check = ["sh", "-c", "cat out.txt; ls {tests}; mkdir {logs}/verifier; echo 0.25 > {logs}/verifier/reward.txt"]
    async with zygote(jail() if jailed else None) as at:
        given = asked(at, tmp_path, "")
        check[-1] = check[-1].replace("{tests}", given["tests"]).replace("{logs}", given["logs"])
        more = {"check": check, "check_files": {"test.sh": "x"}, "collect": ["*.txt", "in/*"]}
        told, program = await ran(at, tmp_path, code, files={"in/a.txt": "hello"}, **more)
    assert told["status"] == "status 3"
    assert told["files"] == {"out.txt": "HELLO", "in/a.txt": "hello"}
    assert told["check"] == {"status": "status 0", "output": "HELLOtest.sh\n", "reward": "0.25\n"}
    assert program.text == f"{given['folder']}\n"


@pytest.mark.parametrize(("code", "said"), [(row["code"], row["said"]) for row in PROGRAMS["holds"]])
async def test_a_jail_holds(tmp_path, code, said):
    told, program = await in_jail(tmp_path, code.replace("{{FILE}}", __file__))
    assert told["status"] == "status 1", program.text
    assert re.search(said, program.text, re.DOTALL), program.text


async def test_what_a_program_started_ends_with_it(tmp_path):
    mark = f"mark-{os.getpid()}"
    code = (
        "import os, subprocess, sys\n"
        f"for _ in range(3): subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)', {mark!r}],"
        " start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print('begun')"
    )
    async with zygote(jail()) as at:
        told, program = await ran(at, tmp_path, code)
        assert (told["status"], program.text) == ("status 0", "begun\n")
        assert commands(f"time.sleep(99)\0{mark}".encode()) == []


async def test_a_program_that_hangs_ends_and_its_check_runs(tmp_path):
    told, _ = await in_jail(tmp_path, "import time; time.sleep(99)", seconds=0.3, check=["true"])
    assert (told["status"], told["check"]["status"]) == ("no end within 0.3 s", "status 0")


async def test_a_check_is_tried_without_its_program(tmp_path):
    more = {"files": {"given": "x"}, "check": ["sh", "-c", "cat given; ls"], "seconds": 0.0}
    told, program = await in_jail(tmp_path, "open('by-the-program', 'w'); print('ran')", **more)
    assert (told["status"], program.text, told["check"]["output"]) == ("not run", "", "xgiven\n")


async def test_a_program_that_floods_its_output_is_stopped(tmp_path):
    told, program = await in_jail(tmp_path, "while True: print('x' * 1000)", most=MIB)
    assert (told["status"], program.flooded) == ("stopped", True)


async def test_a_reward_that_the_program_wrote_is_not_the_check_s(tmp_path):
    code = (
        "import os\nos.makedirs('/logs/verifier/x'); open('/logs/verifier/reward.txt', 'w').write('1')\n"
        "os.symlink('/app/fake', '/tests/test.sh'); os.chmod('/logs/verifier/x', 0); os.chmod('/logs/verifier', 0)"
    )
    check = ["sh", "/tests/test.sh"]
    told, program = await in_jail(tmp_path, code, check=check, check_files={"test.sh": "echo true test"})
    assert (told["status"], program.text) == ("status 0", "")
    assert told["check"] == {"status": "status 0", "output": "true test\n", "reward": ""}


@pytest.mark.parametrize("code", PROGRAMS["whatever"])
async def test_whatever_a_program_does_its_check_runs_and_its_files_are_read(tmp_path, code):
    async with zygote(jail(disk=64 * MIB)) as at:
        check = {"check": ["sh", "-c", "ls /tests"], "check_files": {"test.sh": ""}}
        told, _ = await ran(at, tmp_path, code, collect=["**/*.py"], **check)
    assert (told["check"]["output"], told["files"]) == ("test.sh\n", {})


async def test_a_stop_that_comes_late_does_not_stop_the_check(tmp_path):
    async with zygote(jail()) as at, at.program(asked(at, tmp_path, "", check=["sleep", "0.3"])) as program:
        line = await program._line()
        await program.stop()
        await program._say(program._check)
        told = await program._line()
    assert (line, told["check"]["status"]) == ({"ended": True}, "status 0")


async def test_the_home_of_a_program_sets_no_traps_for_its_check(tmp_path):
    code = (
        "import os, site\nos.makedirs(site.getusersitepackages())\n"
        "open(site.getusersitepackages() + '/x.pth', 'w').write('import os; os.mkdir(\"/logs/trapped\")\\n')"
    )
    check = ["sh", "-c", "/usr/bin/python3 -c 0; ls /logs"]
    async with zygote(jail()) as at:
        told, program = await ran(
            at, tmp_path, f"import os; os.execv('/usr/bin/python3', ['python3', '-c', {code!r}])", check=check
        )
    assert (program.text, told["check"]["output"]) == ("", "")


CHECKS = {
    "grep -c none /dev/null": "0\n",
    "python3 -c 'import json; json.dumps'": "",
    "bash -c true": "",
    "./own && ls made": "own\nmade\n",
    "ulimit -n; [ $(nice) -lt 19 ] && head -c 100 /dev/zero | tail -c 1 | od -An -c": "4096\n  \\0\n",
    "echo $HOME $KEY; id -u": "/tests\n%d\n",
}


@pytest.mark.parametrize("users", [1, 4096])
async def test_a_check_runs_nothing_that_the_program_planted(tmp_path, users):
    places = f"/app/bin:/tmp/bin:/tmp/link:.::/app/../tmp/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    traps = {"PYTHONPATH": WORK, "BASH_ENV": "/app/env", "ENV": "/app/env", "KEY": "k"}
    more = {"argv": [sys.executable, "-Ic", PROGRAMS["planted"]], "env": {"PATH": places, "HOME": WORK, **traps}}
    said, user = {}, 1000 + (users > 1 and os.geteuid() == 0)
    async with zygote(jail(users=users)) as at:
        for check in CHECKS:
            told, program = await ran(at, tmp_path, "", check=["sh", "-c", check], **more)
            said[check] = told["check"]["output"].replace(str(user), "%d")
            assert program.text == ""
    assert said == CHECKS


@pytest.mark.parametrize("users", [1, 4096])
async def test_no_link_of_a_program_leads_its_check_to_the_tests_or_the_reward(tmp_path, users):
    check = "mkdir -p /logs/verifier; ls /app; cat /app/own; grep -s 42 /app/a /app/c /app/d /app/held/g; echo 9 > /tmp/lines"
    async with zygote(jail(users=users)) as at:
        more = {"check": ["sh", "-c", check], "check_files": {"test.sh": "grep 42"}}
        told, program = await ran(at, tmp_path, PROGRAMS["links"], **more)
    assert told["check"]["output"].split() == ["held", "kept", "own", "mine"]
    assert (told["check"]["reward"], program.text) == ("", "1000\n"), "no program is a likelier victim than another"


async def test_what_is_shown_below_tmp_cannot_be_replaced(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "check.sh").write_text("echo true check\n")
    made = jail()
    made.plan.append(["bind", str(tmp_path / "deep" / "check.sh")])
    if not str(tmp_path).startswith("/tmp/"):
        pytest.skip("the folder of this test is not below /tmp")
    code = (
        "import os\n"
        f"for folder in {[str(each) for each in (tmp_path / 'deep', *tmp_path.parents) if each.parts[1:2] == ('tmp',) and len(each.parts) > 2]!r}:\n"
        "    try: os.rename(folder, '/tmp/moved'); print('moved', folder)\n"
        "    except OSError: pass\n"
    )
    async with zygote(made) as at:
        told, program = await ran(at, tmp_path, code, check=["sh", str(tmp_path / "deep" / "check.sh")])
    assert (program.text, told["check"]["output"]) == ("", "true check\n")


async def test_a_forked_program_knows_neither_check_nor_what_others_were_given(tmp_path):
    script = tmp_path / "agent.py"
    script.write_text(PROGRAMS["forked"])
    made = jail()
    made.plan.append(["bind", str(script)])
    async with zygote(made, str(script)) as at:
        first = {"PATH": os.environ["PATH"], "KEY": "key-of-" + "the-first"}
        await ran(at, tmp_path, "", argv=[], env=first)
        more = {"check": ["true"], "check_files": {"test.sh": "of-the-" + "check"}}
        _, program = await ran(at, tmp_path, "", argv=["second"], **more)
    assert program.text == "False\nFalse ['second']\n"


@asynccontextmanager
async def crowd(memory: int) -> AsyncIterator[tuple[Zygote, ControlGroups]]:
    """Programs that have 160 MiB together, and each ``memory`` and a disk of 8 MiB."""
    async with control_groups("host", 160 * MIB, 1000, programs=True) as groups:
        if groups.memory_bytes is None:
            pytest.skip(f"no control groups here: {groups.lacking}")
        async with zygote(jail(memory=memory), groups=groups) as at:
            yield at, groups


async def test_a_program_that_takes_all_memory_ends_itself_and_is_judged(tmp_path):
    async with crowd(24 * MIB) as (at, groups):
        told, program = await ran(
            at, tmp_path, "", argv=["python3", "-c", PROGRAMS["takes"], "110", "0"], check=["true"]
        )
        await ran(at, tmp_path, "")
        left = [each.name for group in groups.groups for each in group.directory.glob("*-1")]
    assert (told["status"], told["check"]["status"], program.starved(), left) == ("SIGKILL", "status 0", False, [])


async def test_a_program_that_ends_for_memory_of_its_neighbours_is_not_at_fault(tmp_path):
    async with crowd(512 * MIB) as (at, _), trio.open_nursery() as nursery:
        async with at.program(asked(at, tmp_path, "", argv=["python3", "-c", PROGRAMS["takes"], "110", "20"])) as hog:
            nursery.start_soon(hog.read, MIB)
            await trio.to_thread.run_sync(wait_for, lambda: "took" in hog.text, "the memory to be taken")
            told, program = await ran(at, tmp_path, "b = bytearray(60 << 20); print(b.count(1))", check=["true"])
            assert not hog.starved()
            nursery.cancel_scope.cancel()
    assert (told["status"], told["check"]["status"], program.starved()) == ("SIGKILL", "status 0", True)


async def test_links_lead_to_nothing_of_the_host(tmp_path):
    (tmp_path / "secret").write_text(SECRET)
    code = f"import os; os.symlink({str(tmp_path / 'secret')!r}, 'a.txt'); os.mkfifo('b.txt'); open('c.txt','w').write('c')"
    told, _ = await in_jail(tmp_path, code, collect=["*.txt"])
    assert told["files"] == {"c.txt": "c"}


async def test_the_gateway_is_reached_through_the_relay(tmp_path):
    port = free_port()

    async def gateway(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all((await stream.receive_some(100)).upper())

    code = f"import socket; s = socket.create_connection(('127.0.0.1', {PORT})); s.sendall(b'hello'); print(s.recv(9))"
    async with zygote(jail()) as at, trio.open_nursery() as nursery:
        await nursery.start(trio.serve_tcp, gateway, port)
        async with at.program(asked(at, tmp_path, code)) as program:
            nursery.start_soon(program.read, MIB)
            nursery.start_soon(relay, f"http://127.0.0.1:{port}", program.listener)
            assert (await program.result())["status"] == "status 0"
            await program.written_all.wait()
            nursery.cancel_scope.cancel()
    assert program.text == "b'HELLO'\n"


async def test_a_program_reaches_named_addresses_by_proxy_and_no_others(tmp_path):
    port, refused = free_port(), set[str]()
    asked_for: list[bytes] = []

    async def site(stream: trio.SocketStream) -> None:
        async with stream:
            request = await stream.receive_some(65536)
            asked_for.append(request)
            await stream.send_all(b"HTTP/1.0 200 OK\r\n\r\n" + request.split()[1])

    named, gone = f"localhost:{port}", f"127.0.0.1:{free_port()}"
    wanted = [named.upper(), f"127.0.0.1:{port}", gone, "nonsense"]
    more = {"argv": ["python3", "-c", PROGRAMS["proxied"] % PORT, *wanted]}
    variables = {"PATH": f"{Path(sys.executable).parent}", "HOME": WORK, "http_proxy": f"http://127.0.0.1:{PORT}"}
    async with zygote(jail()) as at, trio.open_nursery() as nursery:
        await nursery.start(trio.serve_tcp, site, port)
        async with at.program(asked(at, tmp_path, "", env=variables, **more)) as program:
            nursery.start_soon(program.read, MIB)
            nursery.start_soon(relay, "http://127.0.0.1:1", program.listener, [named, gone], refused.add)
            await program.result()
            await program.written_all.wait()
            nursery.cancel_scope.cancel()
    other = "is none of the addresses in `harness.network`\n"
    lines = ["200 /tunnel", "403", "502", "403", f"/path?x other.invalid:80 {other} 127.0.0.1:{port} {other}", ""]
    assert program.text == "\n".join(lines)
    assert refused == {f"127.0.0.1:{port}", "other.invalid:80", "nonsense"}
    assert b"proxy" not in asked_for[1].lower()


@pytest.mark.parametrize(
    ("data", "proxied"),
    [
        *((data, None) for data in (b"", b"CONN", b"GET h")),
        *((data, True) for data in (b"CONNECT ", b"GET http://")),
        *((data, False) for data in (b"GET /", b"next", b"POST http:/x", b"\x00")),
    ],
)
def test_what_asks_for_other_addresses_is_told_from_what_asks_the_gateway(data, proxied):
    assert is_proxied(data) is proxied


@given(st.sampled_from([b"CONNECT ", b"GET http://"]), st.binary() | st.text("[]@:/?#ab\u2100").map(str.encode))
def test_the_owner_reads_whatever_a_program_asks_a_proxy_for(begins, rest):
    assert is_proxied(begins + rest)
    address, head = wanted(begins + rest + b"\r\n\r\n")
    assert b"\r\n" not in address.encode()
    assert head == b"" or head.endswith(b"Connection: close\r\n\r\n")


async def test_an_owner_that_leaves_ends_the_program(tmp_path):
    mark = f"mark-{os.getpid()}-left"
    async with zygote(jail()) as at:
        async with at.program(asked(at, tmp_path, f"import time; time.sleep(99) # {mark}")):
            await trio.to_thread.run_sync(wait_for, lambda: commands(f"# {mark}".encode()), "the program to begin")
        await trio.to_thread.run_sync(wait_for, lambda: not commands(f"# {mark}".encode()), "the program to end")


async def test_a_script_is_loaded_once_and_forks_in_a_jail(tmp_path):
    script = tmp_path / "agent.py"
    script.write_text("import os, sys\nif __name__ == '__main__': print(os.getpid() < 10, sys.argv[1:], os.getcwd())\n")
    made = jail()
    made.plan.append(["bind", str(script)])
    async with zygote(made, str(script)) as at:
        _, program = await ran(at, tmp_path, "", argv=["a", "b"])
    assert program.text == f"True ['a', 'b'] {WORK}\n"


def test_an_installation_is_a_prefix_and_never_the_folder_of_a_topology(tmp_path):
    for each in ("prefix/bin/agent", "prefix/lib/x", "topology/bin/agent", "topology/tests/test.sh", "venv/bin/agent"):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text("")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    found = {name: installation(str(tmp_path / name / "bin" / "agent")) for name in ("prefix", "topology", "venv")}
    assert found["prefix"] == [str(tmp_path / "prefix")]
    assert found["topology"] == [str(tmp_path / "topology" / "bin" / "agent")]
    assert found["venv"] == [str(tmp_path / "venv"), str(tmp_path / "venv" / "bin" / "agent")]
    assert installation("/usr/bin/env") == []
    for line in (f"#!{tmp_path}/prefix/bin/agent -u\n", "#!/usr/bin/env -S bash -u\n", "#!\n"):
        (tmp_path / "venv" / "bin" / "agent").write_text(line)
        more = found["prefix"] if "prefix" in line else []
        assert installation(str(tmp_path / "venv" / "bin" / "agent")) == [*found["venv"], *more]


async def test_a_program_that_is_missing_is_named(tmp_path):
    told, program = await in_jail(tmp_path, "", argv=["no-such-agent"])
    assert (told["status"], "'no-such-agent' cannot be started" in program.text) == ("status 127", True)


async def test_a_warden_that_is_killed_with_words_unread_is_lost_and_no_error():
    ours, theirs = socket.socketpair()
    ours.sendall(b"stop\n")
    theirs.close()  # with what it has not read, so that the connection is reset
    ours.setblocking(False)
    reads, writes = os.pipe()
    os.close(writes)
    program = Program(trio.lowlevel.FdStream(reads), trio.socket.from_stdlib_socket(ours))
    assert await program.result() == {"fault": "its warden was lost"}
    await program.close()


async def test_a_warden_that_fails_is_a_fault_of_its_start(tmp_path):
    async with zygote(jail()) as at:
        with pytest.raises(StartError, match="warden"):
            async with at.program({**asked(at, tmp_path, ""), "files": {"/proc/x": ""}}) as program:
                raise StartError(f"its warden: {await program.result()}")

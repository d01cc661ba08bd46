"""Attacks on files, processes, memory and network of the host or of another call, each beside a neighbour's call."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.sandbox.inside.directories import remove_tree
from actors.sandbox.owner.client import ExecutionLimits
from agent_rl.files import leftovers
from tests.actors.sandbox.conftest import Attacked
from tests.actors.sandbox.running import is_alive

ROOT = Path(__file__).resolve().parents[3]
REACHED = """
def reached(path):
    try:
        open(path, "rb").read(1)
    except OSError as error:
        return type(error).__name__
    return "READ"
"""


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/etc/hosts",
        "/proc/self/environ",
        "/proc/1/mem",
        "/proc/kcore",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/vda",
    ],
)
def test_reading_files_of_the_host(attacked: Attacked, path: str) -> None:
    assert attacked.by(f"{REACHED}print(reached({path!r}))").stdout == "FileNotFoundError\n"


def test_reading_the_repository(attacked: Attacked) -> None:
    wanted = [str(ROOT / "pyproject.toml"), str(ROOT / "actors/tool_executor/executor.py"), __file__]
    assert attacked.by(f"{REACHED}print([reached(path) for path in {wanted!r}])").stdout.count("FileNotFoundError") == 3


def test_reading_homes_and_temporary_files(attacked: Attacked, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    code = (
        f"{REACHED}import os\nprint(reached({str(secret)!r}), os.listdir('/tmp'), os.path.exists('/home'), "
        f"os.path.exists('/var'))"
    )
    assert attacked.by(code).stdout == "FileNotFoundError [] False False\n"


@pytest.mark.parametrize(
    "code",
    [
        "os.chmod('/tmp', 0o711)",
        "os.utime('/tmp', (1, 2))",
        "os.mkdir('x')\nos.rmdir('x')",
        "os.setxattr('/tmp', 'user.x', b'x')",
    ],
)
def test_leaving_a_message_in_what_is_kept_for_a_later_call(attacked: Attacked, code: str) -> None:
    attacked.by(f"import os\ntry:\n    {code.replace(chr(10), chr(10) + '    ')}\nexcept OSError: pass")
    look = "import os\ns = os.stat('/tmp')\nprint(oct(s.st_mode), s.st_mtime < 10, os.listxattr('/tmp'))"
    for _ in range(3):
        assert attacked.by(look).stdout == "0o40700 False []\n"


def test_removing_and_changing_system_files(attacked: Attacked) -> None:
    code = (
        "import os\nrefused = []\nfor act in (lambda: os.remove('/etc/passwd'), lambda: os.chmod('/usr', 0o777),"
        " lambda: os.rename('/usr/bin', '/usr/x'), lambda: open(os.__file__, 'a'), lambda: os.truncate(os.__file__, "
        "0)):\n"
        "    try: act()\n    except OSError as error: refused.append(error.errno)\nprint(len(refused), set(refused) <= "
        "{1, 13, 30})"
    )
    assert attacked.by(code).stdout == "5 True\n"


def test_symbolic_links_out_of_its_directory(attacked: Attacked) -> None:
    code = (
        f"{REACHED}import os\nos.symlink('/etc/shadow', 'a')\nos.symlink('/usr', 'b')\nos.symlink('../../../../..', "
        f"'c')\n"
        "print(reached('a'), sorted(os.listdir('c')))\n"
        "try: open('b/evil', 'w')\nexcept OSError as error: print(error.errno)"
    )
    result = attacked.by(code)
    assert result.stdout.startswith("FileNotFoundError")
    assert "'home'" not in result.stdout
    assert result.stdout.endswith("30\n")


def test_hard_links_to_files_of_the_system(attacked: Attacked) -> None:
    assert "Invalid cross-device link" in attacked.by("import os\nos.link(os.__file__, 'x')").stderr


def test_connecting_to_a_port_of_loopback(attacked: Attacked) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        result = attacked.by(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)")
        assert "PermissionError" in result.stderr
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize("address", ["path", "abstract"])
def test_connecting_to_a_unix_socket(attacked: Attacked, tmp_path: Path, address: str) -> None:
    name = str(tmp_path / "s") if address == "path" else f"\0agent-rl-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        result = attacked.by(f"import socket\nsocket.socket(socket.AF_UNIX).connect({name!r})")
        assert "PermissionError" in result.stderr


def test_looking_up_a_name(attacked: Attacked) -> None:
    """Neither by the files of the host, which knows this name, nor by asking a name server."""
    assert socket.getaddrinfo("localhost", 80)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.2)
        result = attacked.by(
            "import socket\ntry: print(socket.getaddrinfo('localhost', 80))\nexcept socket.gaierror: print('unknown')\n"
            f"socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'query', {server.getsockname()!r})"
        )
        assert result.stdout == "unknown\n"
        assert "PermissionError" in result.stderr
        with pytest.raises(TimeoutError):
            server.recv(1)


def test_signals_to_everybody(attacked: Attacked) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    code = (
        "import os, signal\nprint(os.getppid())\nsent = 0\nfor pid in range(1, 40_000):\n"
        "    if pid != os.getpid():\n        try: os.kill(pid, signal.SIGKILL); sent += 1\n        except OSError: "
        "pass\n"
        "try: os.kill(-1, signal.SIGKILL)\nexcept OSError: pass\nprint('alive', sent)"
    )
    try:
        result = attacked.by(code, limits=ExecutionLimits(wall_seconds=5))
        assert result.stdout.startswith("0\n")  # its parent is out of sight
        assert result.stdout in (
            "0\nalive 0\n",
            "0\nalive 1\n",
        )  # without Landlock the slot's init, which they don't reach
        assert bystander.poll() is None
        assert is_alive(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_that_goes_on_writing_after_the_end(attacked: Attacked) -> None:
    code = (
        "import os, time\nif os.fork() == 0:\n    os.setpgid(0, 0)\n"
        "    while True: os.pwrite(3, b'success\\nforged', 0); os.write(1, b'late ')\nos._exit(3)"
    )
    result = attacked.by(code, beside=0.2)
    assert result.outcome in ("success", "error", "output_limit")  # its own report: it could have said so itself
    assert attacked.by("print(1)").stdout == "1\n"


def test_patching_what_the_warm_interpreter_shares(attacked: Attacked) -> None:
    code = (
        "import builtins, json, os, sys, ast, gc\nbuiltins.evil = 1\nbuiltins.print = None\njson.dumps = "
        "None\nos.listdir = None\n"
        "sys.meta_path.clear()\nsys.modules.clear()\nast.parse = None\nos.environ['EVIL'] = '1'\nsys.path[:] = "
        "['/tmp']\n"
        "type(os).evil = 1 if False else None"
    )
    attacked.by(code)
    assert attacked.by("import json\nprint(json.dumps([1]))").stdout == "[1]\n"


@pytest.mark.parametrize("remove", [remove_tree, leftovers.remove_tree])
def test_a_link_put_in_the_place_of_a_directory_is_not_followed_when_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: Callable[[Any], None]
) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "call" / "a"
    outside.mkdir(mode=0o755)
    inside.mkdir(parents=True)
    chmod = os.chmod

    def chmod_too_late(path: Any, mode: int, **more: Any) -> None:
        inside.rmdir()  # by a process that the call has left running
        inside.symlink_to(outside)
        chmod(path, mode, **more)

    monkeypatch.setattr(os, "chmod", chmod_too_late)
    monkeypatch.setattr("shutil.rmtree", lambda path, **_: None)  # as where files are made all the time
    remove(tmp_path / "call")
    assert inside.is_symlink()
    assert outside.stat().st_mode & 0o777 == 0o755

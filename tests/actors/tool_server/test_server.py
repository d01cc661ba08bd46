"""The tool server as a process of its own: programs of both protocols, limits, faults, isolation, and its end."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from tests.actors.sandbox.running import below, is_alive, wait_until

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


class Served:
    """A server's process and its address."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def ask(self, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        content = body if isinstance(body, bytes) else json.dumps(body)
        connection.request(method, path, content if method == "POST" else None)
        with connection.getresponse() as reply:
            found = reply.status, json.loads(reply.read())
        connection.close()
        return found

    def run(self, code: str, **more: Any) -> Any:
        """The reply of ``/run_code``."""
        status, body = self.ask("/run_code", {"language": "python", "code": code, "run_timeout": 5, **more})
        assert status == 200, body
        return body


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "actors.cli", "serve-tools", *words]


@contextmanager
def serving(*words: str) -> Iterator[Served]:
    process = subprocess.Popen(command("--port", "0", *words), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = re.match(
            r"serving tools at http://127\.0\.0\.1:(\d+): \d+ programs at once\n", process.stdout.readline()
        )
        assert said
        yield Served(process, int(said[1]))
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    words = ("--interpreters", "1", "--children", "2", "--seconds", "3", "--queue-seconds", "30", "--body-mib", "1")
    words += ("--output-kib", "64")
    with serving(*words) as found:
        yield found


def submission(code: str, **more: str) -> dict[str, str]:
    return {"type": "python", "solution": code, **more}


def test_a_submission_is_run_and_judged(served: Served) -> None:
    asked = submission("print(input())", input="9", expected_output="9", sub_id="mine")
    _, shown = served.ask("/run", asked)
    assert 0 < shown.pop("cost") < 3
    result = {"sub_id": "mine", "success": True, "run_success": True, "reason": ""}
    assert shown == {**result, "stdout": "9\n", "stderr": ""}
    _, judged = served.ask("/judge", {**asked, "expected_output": "8"})
    assert judged == {**result, "success": False, "cost": judged["cost"]}
    _, without = served.ask("/run", submission("print(input())"))
    assert (without["run_success"], without["stderr"].splitlines()[-1]) == (False, "EOFError: EOF when reading a line")


def test_a_long_output_is_compared_whole_or_said_to_be_cut(served: Served) -> None:
    length = 900 << 10  # the service cuts at 64 KiB
    asked = [submission(f"print('x' * {length})", expected_output="x" * (length - more)) for more in (0, 1, length - 1)]
    judged = [served.ask("/judge", each)[1] for each in asked[:2]]
    judged += served.ask("/judge/batch", {"submissions": asked[2:]})[1]["results"]
    ends = [(one["success"], one["run_success"], one["reason"]) for one in judged]
    assert ends == [(True, True, ""), (False, True, ""), (False, True, "output_limit")]
    _, endless = served.ask("/judge", submission("while 1: print('x' * 100000)", expected_output="x"))
    assert (endless["success"], endless["reason"]) == (False, "output_limit")


@pytest.mark.parametrize(
    "code", ["while True: pass", "import time; time.sleep(30)", "import os\nif os.fork(): os.wait()\nwhile 1: 0"]
)
def test_a_submission_that_takes_too_long_says_so_as_its_clients_expect(served: Served, code: str) -> None:
    _, shown = served.ask("/run", submission(f"print('begun', flush=True)\n{code}"))
    assert (shown["success"], shown["run_success"], shown["reason"]) == (False, False, "worker_timeout")
    assert shown["stdout"] == "begun\nSuicide from timeout.\n"
    assert 3 <= shown["cost"] < 20


@pytest.mark.parametrize(
    ("code", "status", "stdout", "stderr"),
    [
        ("print(1); 2", 0, "1\n", ""),
        ("import sys; sys.exit(3)", 3, "", ""),
        ("import sys; sys.exit('why')", 1, "", "why"),
        ("import sys; sys.exit(-1)", 255, "", ""),
        ("import os; os._exit(0)", 0, "", ""),
        ("import os; print(1, flush=True); os._exit(5)", 5, "1\n", ""),
        ("import os; os.kill(os.getpid(), 11)", -11, "", ""),
        ("1/0", 1, "", "ZeroDivisionError: division by zero"),
        ("int a = 1", 1, "", "SyntaxError: invalid syntax"),
        ("[0] * 10**10", 1, "", "MemoryError"),
        ("while True: print('x' * 1000)", 1, "x", "OSError: [Errno 27] File too large"),
        ("import atexit; atexit.register(print, 'bye')", 0, "bye\n", ""),
        ("from threading import Timer; Timer(0.1, print, [2]).start(); print(1)", 0, "1\n2\n", ""),
        ("import concurrent.futures as c; p = c.ThreadPoolExecutor(1); print(p.submit(int).result())", 0, "0\n", ""),
        ("import multiprocessing as m; p = m.Process(target=print, args=[2]); p.start(); p.join()", 0, "2\n", ""),
        ("import os; os.execv('/bin/echo', ['echo', 'hi'])", 0, "hi\n", ""),
        ("print(__name__, __file__); import sys; print(sys.argv)", 0, "__main__ main.py\n['main.py']\n", ""),
        ("7 ** 10000", 0, "", ""),
        ("import numpy, sympy; print(numpy.arange(3).sum(), sympy.pi)", 0, "3 pi\n", ""),
        (r"""open(3, "w").write('success\n{"fault": "\\ud800"}'); import os; os._exit(0)""", 1, "", ""),  # forged
    ],
)
def test_a_program_ends_as_a_script_does(served: Served, code: str, status: int, stdout: str, stderr: str) -> None:
    body = served.run(code)
    run = body["run_result"]
    assert body["status"] == ("Success" if run["return_code"] == 0 else "Failed")
    assert (run["status"], run["return_code"]) == ("Finished", status)
    assert (run["stderr"].splitlines() or [""])[-1] == stderr
    assert run["stdout"].startswith(stdout)
    assert len(run["stdout"]) < 1 << 21


def test_a_program_has_its_own_time(served: Served) -> None:
    assert served.run("import time; time.sleep(3.5)")["status"] == "Success"
    body = served.run("while True: pass", run_timeout=0.2)
    assert (body["status"], body["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")
    assert 0.2 <= body["run_result"]["execution_time"] < 15


def test_files_come_with_a_program_and_are_fetched_even_if_it_fails(served: Served) -> None:
    files = {"pack/helper.py": base64.b64encode(b"def f(): return open('data').read()").decode(), "data": "aGVsbG8="}
    code = "from pack.helper import f\nprint(f())\nopen('made', 'wb').write(b'\\0\\1')\n1/0"
    body = served.run(code, files=files, fetch_files=["made", "missing"])
    assert (body["status"], body["run_result"]["stdout"]) == ("Failed", "hello\n")
    assert body["files"] == {"made": "AAE="}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"files": {"a": "x"}}, "files: "),
        ({"files": {"/usr/a": ""}}, "files: [Errno 30] Read-only file system: '/usr/a'; give base64, by paths that"),
        ({"fetch_files": ["big"]}, "fetch_files: they have more than "),
    ],
)
def test_files_that_cannot_be_written_or_fetched_are_a_fault_that_says_why(
    served: Served, more: dict[str, Any], said: str
) -> None:
    body = served.run("open('big', 'wb').write(bytes(1 << 20))", **more)
    assert body["status"] == "SandboxError"
    assert body["message"].startswith(said)


def test_a_program_sees_nothing_of_others(served: Served) -> None:
    leave = "import builtins, os; builtins.evil = 1; open('left', 'w').write('x'); os.environ['LEFT'] = '1'"
    look = (
        "import builtins, os, sys; print(os.listdir('.'), hasattr(builtins, 'evil'), dict(os.environ), len(sys.path))"
    )
    clean = served.run(look)["run_result"]["stdout"]
    assert clean.startswith("[] False {} ")
    for _ in range(3):
        served.run(leave)
        assert served.run(look)["run_result"]["stdout"] == clean
    mine = "import os, time; open('left', 'w'); time.sleep(0.3); print(os.listdir('.'))"
    with ThreadPoolExecutor(2) as pool:
        both = [body["run_result"]["stdout"] for body in pool.map(served.run, [mine, mine])]
    assert both == ["['left']\n"] * 2


@pytest.mark.parametrize("path", ["/run/batch", "/run/long-batch", "/judge/batch", "/judge/long-batch"])
def test_a_batch_is_answered_in_its_order(served: Served, path: str) -> None:
    codes = [f"import time; time.sleep({(5 - at) / 100}); print({at})" for at in range(5)]
    batch = [submission(code, expected_output=str(at - at % 2)) for at, code in enumerate(codes)]
    status, body = served.ask(path, {"type": "batch", "submissions": batch})
    assert status == 200
    assert [one["success"] for one in body["results"]] == [True, False, True, False, True]
    assert [one.get("stdout", f"{at}\n") for at, one in enumerate(body["results"])] == [f"{at}\n" for at in range(5)]


def test_programs_that_find_no_place_in_time_are_told_so_unless_the_batch_is_long() -> None:
    batch = {"submissions": [submission("import time; time.sleep(4)")] * 3}
    with serving("--interpreters", "1", "--children", "2", "--seconds", "20", "--queue-seconds", "1") as served:
        _, body = served.ask("/run/batch", batch)
        assert sorted(one["reason"] for one in body["results"]) == ["", "", "queue_timeout"]
        _, body = served.ask("/run/long-batch", batch)
        assert [one["reason"] for one in body["results"]] == ["", "", ""]
        assert served.ask("/status", method="GET") == (200, {"queue": 0, "num_workers": 2})


@needs_compiler
def test_programs_in_cpp(served: Served) -> None:
    code = '#include <cstdio>\n#include <unistd.h>\nint main(){int n; scanf("%d", &n); printf("%d", n + 1); return n;}'
    _, shown = served.ask("/run", {"type": "cpp", "solution": code, "input": "0", "expected_output": "1"})
    assert (shown["success"], shown["stdout"], shown["stderr"]) == (True, "1", "")
    body = served.run(code, language="cpp", stdin="7", files={"a": "YQ=="})
    assert (body["status"], body["compile_result"]["return_code"], body["run_result"]["return_code"]) == (
        "Failed",
        0,
        7,
    )
    body = served.run("int main(){ object i = ?; }", language="cpp")
    assert (body["status"], body["run_result"], body["compile_result"]["return_code"]) == ("Failed", None, 1)
    assert "main.cpp:1:13: error" in body["compile_result"]["stderr"]
    body = served.run("int main(){ for (;;); }", language="cpp", run_timeout=0.2)
    assert body["run_result"]["status"] == "TimeLimitExceeded"


@pytest.mark.parametrize(
    ("path", "body", "method", "status", "said"),
    [
        ("/run", b"{", "POST", 422, "Invalid JSON"),
        ("/run", {"type": "python"}, "POST", 422, "Field required"),
        ("/run/batch", {"submissions": []}, "POST", 422, "at least 1 item"),
        ("/run_code", {"code": "1", "language": "go"}, "POST", 422, "Input should be 'python' or 'cpp'"),
        ("/run", b"x" * (1 << 21), "POST", 413, "a body of more than 1048576 bytes"),
        ("/walk", {}, "POST", 404, "there is no /walk; there are GET /ping, "),
        ("/run", None, "GET", 405, "there is no GET /run; there is POST /run"),
        ("/ping", {}, "POST", 405, "there is no POST /ping; there is GET /ping"),
    ],
)
def test_a_wrong_request_gets_one_error_that_says_what_is_wrong(
    served: Served, path: str, body: Any, method: str, status: int, said: str
) -> None:
    found, reply = served.ask(path, body, method)
    assert (found, list(reply)) == (status, ["detail"])
    assert said in json.dumps(reply)


def test_pings(served: Served) -> None:
    assert [served.ask(path, method="GET") for path in ("/ping", "/v1/ping")] == [(200, "pong")] * 2


def test_a_client_that_leaves_ends_its_program(served: Served) -> None:
    connections = [http.client.HTTPConnection("127.0.0.1", served.port, timeout=30) for _ in range(2)]
    for connection in connections:
        connection.request(
            "POST", "/run_code", json.dumps({"language": "python", "code": "while True: 1", "run_timeout": 60})
        )
    began = time.monotonic()
    for connection in connections:
        connection.close()
    assert served.run("print(1)")["status"] == "Success"
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_stopped_leaves_no_process(how: signal.Signals) -> None:
    with serving("--interpreters", "1") as found:
        connection = http.client.HTTPConnection("127.0.0.1", found.port, timeout=30)
        connection.request("POST", "/run_code", json.dumps({"language": "python", "code": "while True: 1"}))
        found.run("print(1)")
        processes = below(found.process.pid)
        assert processes
        found.process.send_signal(how)
        assert found.process.wait(20) == 0
        connection.close()
    assert wait_until(lambda: not any(map(is_alive, processes)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "{port}"], "cannot listen at 127.0.0.1 port {port}: Address already in use; stop what listens"),
        (["--port", "0", "--address", "203.0.113.1"], "cannot listen at 203.0.113.1 port 0: "),
        (["--port", "0", "--warm-modules", "nonesuch"], "No module named 'nonesuch': it is among the warm modules"),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_what_cannot_be_served_is_one_error(served: Served, words: Sequence[str], said: str) -> None:
    port = str(served.port)
    done = subprocess.run(
        command(*(word.format(port=port) for word in words)), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("agent-rl")
    assert said.format(port=port) in done.stderr
    assert done.stderr.count("\n") == 1

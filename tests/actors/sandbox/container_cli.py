"""Stands for ``docker``: containers are namespaces of this host, and all calls are written down.

``container_cli.py STATE ARGUMENTS``. Each container has processes, a root and folders of its own; files of the system
are shown read-only. Options and messages are those of docker 28, as far as they are asked for here. Limits are written
down alone, and the network is the host's.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

STATE, *WORDS = sys.argv[1:]
FOLDER = Path(STATE)
SETUP = """
PATH=$PATH:/usr/sbin:/sbin
mount --make-rprivate / && cd "$0" && mkdir -p usr etc proc dev tmp root
for each in usr etc; do mount --bind /$each $each && mount -o remount,bind,ro $each || exit 1; done
for each in bin sbin lib lib64; do ln -s usr/$each $each; done
mount -t proc proc proc && mknod -m 666 dev/null c 1 3 && touch ready && exec chroot . "$@"
"""
VALUED = {"--name", "--label", "--memory", "--pids-limit", "--security-opt", "--network", "--cpus", "--entrypoint"}


def fail(text, code=1):
    sys.stderr.write(text + "\n")
    sys.exit(code)


def begin(name, label, image, command):
    if image.startswith("missing"):
        fail(f"Unable to find image '{image}' locally\ndocker: Error response from daemon: pull access denied", 125)
    root = FOLDER / name
    root.mkdir()
    if (built := FOLDER / "images" / image.replace("/", "_")).is_dir():
        shutil.copytree(built, root / "app")
    words = ["unshare", "-mpf", "--kill-child", "sh", "-c", SETUP, str(root), *command]
    process = subprocess.Popen(words, start_new_session=True, stdin=-3, stdout=-3, stderr=(FOLDER / "errors").open("a"))
    while not (root / "ready").exists():
        if process.poll() is not None:
            fail("no container: " + (FOLDER / "errors").read_text(), 125)
        time.sleep(0.01)
    (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    (FOLDER / f"{name}.json").write_text(json.dumps({"label": label, "pid": int(first)}))


def inside(name, command):
    file = FOLDER / f"{name}.json"
    if not file.exists():
        fail(f"Error response from daemon: No such container: {name}")
    pid = json.loads(file.read_text())["pid"]
    for kind in ("pid", "mnt"):
        assert Path(f"/proc/{pid}/ns/{kind}").readlink() != Path(f"/proc/self/ns/{kind}").readlink()
    code = subprocess.call(["nsenter", "-t", str(pid), "-m", "-p", "-r", "env", "-C", "/", *command])
    sys.exit(code if code >= 0 else 128 - code)


def remove(name):
    file = FOLDER / f"{name}.json"
    if file.exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)
        file.unlink()


def labelled(label):
    return [each.stem for each in FOLDER.glob("*.json") if json.loads(each.read_text())["label"] == label]


def docker(words):
    match words:
        case ["ps", "-aq", "--filter", label]:
            sys.stdout.write("\n".join(labelled(label.removeprefix("label="))))
        case ["rm", "-f", *names]:
            for name in names:
                remove(name)
        case ["network", "inspect", *rest]:
            if not (FOLDER / "network").exists():
                fail(f"Error response from daemon: network {rest[-1]} not found")
            sys.stdout.write("127.0.0.1" if "-f" in rest else "[]")
        case ["network", "create", *_]:
            (FOLDER / "network").touch()
        case ["build", "-q", "-t", tag, folder]:
            shutil.copytree(folder, FOLDER / "images" / tag)
        case ["exec", "-i", name, *command]:
            inside(name, command)
        case ["run", *rest]:
            given = {}
            while rest[0].startswith("-"):
                name = rest.pop(0)
                given[name] = rest.pop(0) if name in VALUED else ""
            image, *command = rest
            begin(given["--name"], given["--label"], image, [given["--entrypoint"], *command])
        case _:
            fail(f"unknown: {words}", 125)


with (FOLDER / "calls").open("a") as calls:
    calls.write(json.dumps(WORDS) + "\n")
docker(WORDS)

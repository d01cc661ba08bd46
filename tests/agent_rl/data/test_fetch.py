"""Data sets fetched from a server that answers like the hub, with what can go wrong there and on the way."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pyarrow as pa
import pytest
import yaml
from huggingface_hub import constants, file_download
from pyarrow import parquet

from actors.cli.main import main
from agent_rl.data.fetch import CONVERTED, Request, as_problem, configurations, fetch
from agent_rl.data.rows import DataError
from agent_rl.environments.task_files import read_tasks
from agent_rl.models.hub import HubError, HubFiles
from tests.agent_rl.records.report_runs import lines as rows

CARD = """---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: [main/test-00000-of-00001.jsonl]
- config_name: socratic
  data_files: socratic/all.jsonl
---
# Sums
"""


def sums(numbers: range) -> bytes:
    rows = ({"question": f"{n} + {n}?", "answer": f"Twice {n} is {2 * n}.\n#### {2 * n}"} for n in numbers)
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


class Hub:
    """A hub with one data set, ``org/sums``, under commits that the test makes."""

    def __init__(self) -> None:
        self.files = {
            "README.md": CARD.encode(),
            "main/train-00000-of-00002.jsonl": sums(range(50)),
            "main/train-00001-of-00002.jsonl": sums(range(50, 90)),
            "main/test-00000-of-00001.jsonl": sums(range(100, 120)),
            "socratic/all.jsonl": sums(range(7)),
        }
        self.converted: dict[str, bytes] = {}
        """The files of the hub's own parquet copies; asking for them puts them in place."""
        self.url = ""
        self.asked: list[str] = []
        self.token = ""
        self.gated = False
        self.corrupt = ""
        self.cut: Callable[[], bool] = lambda: False
        """Whether the next file is cut off in its middle."""

    @property
    def commit(self) -> str:
        return hashlib.sha1(b"".join(self.files.values())).hexdigest()

    def digest(self, path: str) -> str:
        """Files of more than 3,000 bytes are large ones here."""
        body = self.files[path]
        if len(body) > 3000:
            return hashlib.sha256(body).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()

    def info(self) -> bytes:
        siblings = []
        for path, body in self.files.items():
            digest = self.digest(path)
            lfs = {"lfs": {"size": len(body), "sha256": digest, "pointerSize": 130}} if len(digest) == 64 else {}
            siblings.append({"rfilename": path, "size": len(body), "blobId": digest[:40]} | lfs)
        return json.dumps({"id": "org/sums", "sha": self.commit, "siblings": siblings} | self.card()).encode()

    def card(self) -> dict[str, object]:
        whole = self.files.get("README.md") == CARD.encode()
        return {"cardData": yaml.safe_load(CARD.split("---\n")[1])} if whole else {}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that is the one of this process, with a cache of the test's own."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            quoted = urlsplit(self.path).path
            path, inside = unquote(quoted), unquote(quoted.partition("/resolve/")[2].partition("/")[2])
            hub.asked.append(f"{self.command} {path}")
            hub.token = self.headers.get("Authorization", hub.token)
            if hub.gated and "Bearer good" not in self.headers.get("Authorization", ""):
                self.answer(401, **{"X-Error-Code": "GatedRepo"})
            elif path == "/api/datasets/org/sums" or path.startswith("/api/datasets/org/sums/revision/"):
                revision = path.partition("/revision/")[2]
                if revision == CONVERTED and hub.converted:
                    hub.files = hub.converted
                known = revision in {"", "main", hub.commit} or (revision == CONVERTED and hub.converted)
                self.answer(200, hub.info()) if known else self.answer(404, **{"X-Error-Code": "RevisionNotFound"})
            elif path.startswith("/datasets/org/sums/resolve/") and inside in hub.files:
                self.file(inside)
            else:
                self.answer(404, **{"X-Error-Code": "RepoNotFound"})

        do_HEAD = do_GET  # noqa: N815 - the server's name for it

        def file(self, inside: str) -> None:
            body = hub.files[inside]
            if inside == hub.corrupt:
                body = body.replace(b"1", b"7")
            start = int(self.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
            tag = {"ETag": f'"{hub.digest(inside)}"', "Accept-Ranges": "bytes"}
            if start:
                tag["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            self.answer(206 if start else 200, body[start:], **tag, cut=self.command == "GET" and hub.cut())

        def answer(self, status: int, body: bytes = b"", *, cut: bool = False, **headers: str) -> None:
            self.send_response(status)
            for name, value in {**headers, "X-Repo-Commit": hub.commit, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if cut else body)
            if cut:
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE  # made of the former when the module was imported
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + template[template.index("/{repo_id}") :]
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(file_download.time, "sleep", lambda _: None)  # between attempts
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.chdir(tmp_path)
        yield hub
        server.shutdown()
        thread.join()


def record(path: Path) -> dict[str, object]:
    return json.loads(path.with_name(f"{path.name}.fetched.json").read_text())  # type: ignore[no-any-return]


def test_a_data_set_becomes_task_files_with_a_record_of_where_they_are_from(hub: Hub, tmp_path: Path) -> None:
    said: list[str] = []
    out = tmp_path / "data"
    assert fetch(Request("org/sums"), out, said.append) == {"read": 110, "kept": 110}
    assert sorted(path.name for path in out.iterdir()) == [
        *("test.jsonl", "test.jsonl.fetched.json", "train.jsonl", "train.jsonl.fetched.json")
    ]
    first, *_, last = rows(out / "train.jsonl")
    assert first == {"id": "sums-train-0", "problem": "0 + 0?", "answer": "0", "solution": "Twice 0 is 0.\n#### 0"}
    assert (last["id"], last["problem"], last["answer"]) == ("sums-train-89", "89 + 89?", "178")
    written = record(out / "train.jsonl")
    assert (written["dataset"], written["commit"], written["rows"]) == ("org/sums", hub.commit, 90)
    assert written["sha256"] == hashlib.sha256((out / "train.jsonl").read_bytes()).hexdigest()
    assert written["files"] == {path: hub.digest(path) for path in hub.files if "main/train" in path}
    assert {len(digest) for digest in written["files"].values()} == {40, 64}
    assert "org/sums has the configurations main, socratic; this is main" in said
    assert f"fetching main/train-00000-of-00002.jsonl of org/sums from {hub.url}" in said


def test_the_command_writes_what_an_environment_of_files_reads(hub: Hub, tmp_path: Path) -> None:
    """In a process of its own: HF_ENDPOINT, HF_HOME and HF_TOKEN are honoured, the check names the command."""
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": "good",
        "HF_HUB_DISABLE_XET": "1",
    }
    hub.gated = True
    command = [sys.executable, "-m", "actors.cli", "data", "fetch", "org/sums"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"read": 110, "kept": 110}
    assert f"fetching main/test-00000-of-00001.jsonl of org/sums from {hub.url}" in done.stderr
    assert hub.token == "Bearer good"
    assert any((tmp_path / "home").rglob("blobs"))
    found = read_tasks({"files": ["data/sums/train.jsonl", "data/sums/test.jsonl"]}, tmp_path)
    training, held_out = found["files"]
    assert (len(training), len(held_out)) == (90, 20)
    for problem in training:
        assert int(problem.answer) == 2 * int(problem.text.partition(" ")[0])


def test_what_is_there_is_verified_and_not_written_again(hub: Hub, tmp_path: Path) -> None:
    fetch(Request("org/sums"), tmp_path)
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.glob("*.json*")}
    hub.asked.clear()
    said: list[str] = []
    assert fetch(Request("org/sums"), tmp_path, said.append) == {"read": 0, "kept": 0}
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.glob("*.json*")} == before
    assert hub.asked == ["GET /api/datasets/org/sums"]
    assert sum("is there already; its checksum is right" in line for line in said) == 2

    (tmp_path / "test.jsonl").write_bytes(before["test.jsonl"][1] + b"{}\n")
    with pytest.raises(DataError, match=r"test\.jsonl is not what was fetched: .*remove it, or name another --out"):
        fetch(Request("org/sums", split="test"), tmp_path)
    with pytest.raises(DataError, match=r"train\.jsonl was fetched from other files or with other columns \(org/"):
        fetch(Request("org/sums", config="socratic"), tmp_path)
    (tmp_path / "train.jsonl.fetched.json").unlink()
    with pytest.raises(DataError, match=r"train\.jsonl exists, and no record beside it says that it was fetched"):
        fetch(Request("org/sums"), tmp_path)


def test_a_new_commit_a_revision_and_a_configuration_are_fetched_and_those_not_there_are_named(
    hub: Hub, tmp_path: Path
) -> None:
    fetch(Request("org/sums", split="test"), tmp_path)
    old = hub.commit
    hub.files["main/test-00000-of-00001.jsonl"] = sums(range(5))
    with pytest.raises(DataError, match=rf"fetched from other files.*{old}"):
        fetch(Request("org/sums", split="test"), tmp_path)
    assert fetch(Request("org/sums", split="test", revision="main"), tmp_path / "new") == {"read": 5, "kept": 5}
    assert fetch(Request("org/sums", config="socratic"), tmp_path / "s") == {"read": 7, "kept": 7}
    for unknown, error, said in (
        ({"revision": "v9"}, HubError, "has no such revision; name a branch, a tag or a commit"),
        ({"config": "socrates"}, DataError, "has no configuration socrates: name one with --config: main, socratic"),
        ({"split": "dev"}, DataError, r"org/sums \(main\) has no split dev: it has test, train"),
    ):
        with pytest.raises(error, match=said):
            fetch(Request("org/sums", **unknown), tmp_path / "newer")


@pytest.mark.parametrize(
    ("paths", "configs", "expected"),
    [
        (["data/train-00000-of-00001.parquet", "data/test.jsonl"], [], {"default": ["train", "test"]}),
        (
            ["main/train/0000.parquet", "main/train/0001.parquet", "more/x/0000.parquet"],
            [],
            {"main": ["train"], "more": ["x"]},
        ),
        (["aime_2024.jsonl", "notes.txt", "script.py"], [], {"default": ["aime_2024"]}),
        (["a.jsonl"], [{"config_name": "c", "data_files": [{"split": "../../x", "path": "*"}]}], {"default": ["a"]}),
        (["a.csv"], [], {}),
    ],
)
def test_files_are_told_apart_by_their_names(paths, configs, expected) -> None:
    found = configurations(HubFiles("c", dict.fromkeys(paths, ""), configs=configs))
    assert {config: list(splits) for config, splits in found.items()} == expected
    assert sum(len(files) for splits in found.values() for files in splits.values()) == sum(
        path.endswith((".jsonl", ".parquet")) for path in paths
    )


def test_a_data_set_in_another_format_is_taken_from_the_parquet_copies_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"sums.csv": b"question,answer\n1 + 1?,2\n"}
    with pytest.raises(DataError, match=r"org/sums has no files that end in one of \.jsonl.*write JSONL"):
        fetch(Request("org/sums"), tmp_path / "out")
    table = pa.table({"question": ["1 + 1?"], "answer": [2]})
    parquet.write_table(table, tmp_path / "copy.parquet")
    hub.converted = {"default/train/0000.parquet": (tmp_path / "copy.parquet").read_bytes()}
    hub.files["README.md"] = b"# Sums"
    said: list[str] = []
    assert fetch(Request("org/sums"), tmp_path / "out", said.append) == {"read": 1, "kept": 1}
    assert rows(tmp_path / "out" / "train.jsonl") == [{"id": "sums-train-0", "problem": "1 + 1?", "answer": 2}]
    assert said[0] == "org/sums itself has no parquet or JSONL files; these are the hub's parquet copies of it"


def test_columns_that_do_not_fit_are_named_with_the_remedy(hub: Hub, tmp_path: Path) -> None:
    lines = [{"id": n, "query": f"{n}?", "extra": {"gold": str(n)}} for n in range(3)]
    hub.files["socratic/all.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    request = Request("org/sums", config="socratic")
    with pytest.raises(DataError, match=r"all\.jsonl:1 is without problem; its columns are extra, id, .*--columns"):
        fetch(request, tmp_path / "a")
    assert not list((tmp_path / "a").iterdir())
    named = Request("org/sums", config="socratic", columns={"problem": "query", "answer": "extra.gold"})
    assert fetch(named, tmp_path / "a") == {"read": 3, "kept": 3}
    assert rows(tmp_path / "a" / "train.jsonl")[2] == {
        "id": 2, "problem": "2?", "extra": {"gold": "2"}, "answer": "2"
    }  # fmt: skip


def test_rows_without_an_answer_are_left_out_counted_and_named(hub: Hub, tmp_path: Path) -> None:
    lines = [{"problem": "1?", "answer": 1}, {"problem": "2?", "answer": None}, {"problem": "3?", "answer": "three"}]
    hub.files["socratic/all.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    said: list[str] = []
    counted = fetch(Request("org/sums", config="socratic"), tmp_path, said.append)
    assert counted == {"read": 3, "kept": 2, "dropped_without_answer": 1}
    assert any(line.startswith("note: 1 row without an answer") and line.endswith("all.jsonl:2") for line in said)
    assert record(tmp_path / "train.jsonl")["rows"] == 2


def test_usual_forms_of_answers() -> None:
    assert as_problem({"problem": "p", "solution": r"so \boxed{\frac{1}{2}} or \boxed{7}"})["answer"] == "7"
    assert as_problem({"question": "q", "final_answer": "5"}) == {"problem": "q", "final_answer": "5", "answer": "5"}
    assert as_problem({"question": "q", "answer": "#### 1\nno\n#### 1,000\n"})["answer"] == "1,000"
    assert as_problem({"problem": "p", "answer": "x#5"}) == {"problem": "p", "answer": "x#5"}
    verl = {"prompt": [{"role": "user", "content": "p"}], "reward_model": {"ground_truth": "1"}}
    assert as_problem(verl) == verl


def test_a_data_set_that_is_not_there_or_is_gated_says_what_helps(hub: Hub, tmp_path: Path, capsys) -> None:
    assert main(["data", "fetch", "org/nothing"]) == 2
    said = capsys.readouterr().err
    assert f"there is no data set org/nothing at {hub.url}; look at the spelling" in said
    hub.gated = True
    assert main(["data", "fetch", "org/sums"]) == 2
    said = capsys.readouterr().err
    assert "org/sums at" in said
    assert "accept its conditions there and set HF_TOKEN" in said
    assert main(["data", "fetch", "not/a/name"]) == 2
    assert "'not/a/name' is no name of a data set" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_full_disk_is_not_taken_for_a_lost_network(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
    with pytest.raises(HubError, match=r"be written to the cache .*/cache: No space left .*HF_HOME to another disk"):
        fetch(Request("org/sums"), tmp_path / "out")


@pytest.mark.parametrize("name", ["main/train-00000-of-00002.jsonl", "main/test-00000-of-00001.jsonl"])
def test_a_wrong_checksum_is_refused_and_the_next_start_fetches_again(hub: Hub, tmp_path: Path, name: str) -> None:
    hub.corrupt = name
    with pytest.raises(HubError, match=rf"{name} of org/sums has the .* \w+, but the hub says {hub.digest(name)}"):
        fetch(Request("org/sums"), tmp_path)
    assert not (tmp_path / f"{name[5:].partition('-')[0]}.jsonl").exists()
    hub.corrupt = ""
    fetch(Request("org/sums"), tmp_path)
    assert (len(rows(tmp_path / "train.jsonl")), len(rows(tmp_path / "test.jsonl"))) == (90, 20)


def test_a_file_of_the_cache_that_was_damaged_is_noticed(hub: Hub, tmp_path: Path) -> None:
    fetch(Request("org/sums", split="test"), tmp_path / "a")
    (blob,) = (path for path in (tmp_path / "cache").rglob("blobs/*") if b"100 + 100" in path.read_bytes())
    blob.write_bytes(blob.read_bytes().replace(b"100", b"101"))
    with pytest.raises(HubError, match="the copy was removed from the cache; fetch again"):
        fetch(Request("org/sums", split="test"), tmp_path / "b")
    assert fetch(Request("org/sums", split="test"), tmp_path / "b") == {"read": 20, "kept": 20}


def test_a_connection_cut_in_the_middle_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    cuts = iter([False, True, True])  # the card, and twice the first file
    hub.cut = lambda: next(cuts, False)
    assert fetch(Request("org/sums"), tmp_path / "a") == {"read": 110, "kept": 110}
    first = [asked for asked in hub.asked if asked.startswith("GET /datasets") and "train-00000" in asked]
    assert len(first) == 3


def test_a_connection_that_is_always_cut_leaves_nothing_and_the_next_start_finishes(hub: Hub, tmp_path: Path) -> None:
    first = iter([False, False])  # the card and the first file arrive
    hub.cut = lambda: next(first, True)
    hub.files["main/train-00001-of-00002.jsonl"] = sums(range(9))
    with pytest.raises(HubError, match=r"cannot be asked for org/sums \(RemoteProtocolError.*HF_ENDPOINT"):
        fetch(Request("org/sums", split="train"), tmp_path / "a")
    assert not (tmp_path / "a").exists()
    hub.cut = lambda: False
    hub.asked.clear()
    assert fetch(Request("org/sums", split="train"), tmp_path / "a") == {"read": 59, "kept": 59}
    assert [asked.rpartition("/")[2] for asked in hub.asked if asked.startswith("GET /datasets")] == [
        "train-00001-of-00002.jsonl"
    ]


def test_without_a_network_the_cache_serves_and_else_the_error_says_what_helps(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(Request("org/sums"), tmp_path / "a")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        with pytest.raises(HubError, match=r"cannot be asked for org/sums .*look at the network, set HF_ENDPOINT"):
            fetch(Request("org/sums"), tmp_path / "b")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch(Request("org/sums"), tmp_path / "b") == {"read": 110, "kept": 110}
    for name in ("train.jsonl", "test.jsonl", "train.jsonl.fetched.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    with pytest.raises(HubError, match=r"org/other is not in the cache .*HF_HUB_OFFLINE"):
        fetch(Request("org/other"), tmp_path / "c")

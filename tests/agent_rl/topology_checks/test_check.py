"""Whether a topology is sound: classes, settings, links, circles, windows, files, hosts, and where nodes listen."""

import json
import os
import re
import socket
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from actors.cli.topologies import sound_topology
from agent_rl.config.addresses import SOCKET_PATH_LIMIT, addresses, runtime_directory
from agent_rl.config.load import load_topology
from agent_rl.config.source import TopologyError
from agent_rl.files.file_systems import file_system
from agent_rl.topology_checks.describe import JOURNAL_BYTES, MEMORY_BYTES, describe, needs, size_text, steps_kept
from agent_rl.topology_checks.facts import Facts
from agent_rl.topology_checks.files import run_directory
from agent_rl.topology_checks.topology import check_topology, find_cycle
from tests.end_to_end.topologies import write_three_hosts

ACTORS = """\
from agent_rl.messages import (
    Judgement,
    GroupOpened, GroupsProgress, Problem, Recorded, StepTrained, StageRecorded, TrainingGroup, Trajectory,
)
from agent_rl.environments.base import Environment
from agent_rl.environments.tasks import ListedTasks
from actors.base import Actor, Announce, Call, Push, Settings


class GeneratorSettings(Settings):
    max_rollouts: int = 4


class Generator(Actor):
    Settings = GeneratorSettings
    links = {"trajectories": Push(Trajectory)}
    receives = (Announce(GroupsProgress),)


class Filter(Actor):
    single = True
    receives = (Push(Trajectory), Call(StepTrained, Recorded))
    links = {"training": Push(TrainingGroup), "progress": Announce(GroupsProgress)}

    @classmethod
    def check(cls, topology, settings):
        if topology.algorithm.groups_per_step > 100:
            return ["its window holds 100 groups"]
        return []


class Learner(Actor):
    receives = (Push(TrainingGroup),)
    links = {"reports": Call(StepTrained, Recorded, awaited_in_handler=False)}


class WaitingLearner(Learner):
    links = {"reports": Call(StepTrained, Recorded)}


class DeafFilter(Filter):
    receives = (Push(GroupOpened), Call(StepTrained, Recorded))


class OtherReply(Filter):
    receives = (Push(Trajectory), Call(StepTrained, StageRecorded))


class Faulty(Filter):
    @classmethod
    def check(cls, topology, settings):
        raise ZeroDivisionError("no")


class Some(Environment):
    def __init__(self, *, seed, base):
        self.seed = seed

    def judge_at_once(self, problem, transcript):
        return Judgement(1.0, True)

    def problems(self):
        held_out = [Problem(f"held out {number}", f"{number}?") for number in range(5)]
        return ListedTasks([[Problem("a", "?")]], held_out, seed=self.seed)

    def prompt(self, problem):
        return [{"role": "user", "content": problem.text}]


class Noted(Some):
    def problems(self):
        spelt = [Problem("a", "?"), Problem("b", "? <|end|>"), Problem("c", "<b>?")]
        return ListedTasks([spelt], [Problem(f"held out {number}", f"{number}?") for number in range(5)], seed=self.seed)
"""

SOUND = Path(__file__).with_name("sound.toml").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "checked_actors.py").write_text(ACTORS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def load(folder, text=SOUND, overrides=()):
    path = folder / "topology.toml"
    path.write_text(text.replace("RUN", str(folder / "run")), encoding="utf-8")
    return load_topology(path, overrides), path


def check(folder, text=SOUND, overrides=()):
    topology, path = load(folder, text, overrides)
    return check_topology(topology, path, overrides)


DATA = ('kind = "rl"', 'kind = "sft"\nsteps = 5\ndata = ["a.jsonl"]\n\n[[stages]]\nkind = "rl"')
"""Lays a supervised stage on ``a.jsonl`` before the other."""


def tasks(settings):
    """Lays the environment of files over that of the module."""
    return '"checked_actors:Some"', f'"maths"\nsettings = {{ files = ["a.jsonl"]{settings} }}'


def chat(user, assistant, *before):
    return {"messages": [*before, {"role": "user", "content": user}, {"role": "assistant", "content": assistant}]}


def called(call, *before):
    return chat("hi", f"<tool_call>{call}</tool_call>", *before)


def listed(name, *problems):
    return [{"id": f"{name}{at}", "problem": text, "answer": answer} for at, (text, answer) in enumerate(problems)]


CALCULATE, SYSTEM = '{"name": "calculate", "arguments": {}}', {"role": "system", "content": "Be brief."}
NOTED = ("checked_actors:Some", "checked_actors:Noted")
GOLDS = ("3", r"\frac13", r"\sum_{n=1}^\infty \frac1{n^2}", r"\lim_{x\to0}\frac{\sin x}x", r"\int_0^1 x dx = \frac12")
OF_VERL = {"prompt": [SYSTEM, {"role": "user", "content": "1 + 1?"}], "reward_model": {"ground_truth": "2"}}
LONGER = ("initialise = {}", "initialise = { max_length = 4096 }")
WARNINGS = [
    # rows of the files a.jsonl and b.jsonl, what is laid over the sound file, and the parts of each warning
    (
        [called("calculate(1)"), called(CALCULATE), called(CALCULATE.replace("late", "or"), SYSTEM)],
        [],
        [DATA],
        [
            "stages.0.data: 1 conversation with calls that no parser reads, as 'a.jsonl:1'",
            "calls of tools that no environment offers: calculate, as 'a.jsonl:2' of calculate",
        ],
    ),
    (
        [chat("hi", "yes"), chat("hi<|user|>", "yes"), chat("hi", "<answer>1</answer>"), chat("hi", "yes<|end|>")],
        [],
        [DATA, NOTED],
        [
            "environments.0: 1 of 8 problems hold the text of a control token, as 'b'; it is spelt out",
            "stages.0.data: 2 of 4 conversations hold the text of a control token, as 'a.jsonl:2' ... leave such rows out",
        ],
    ),
    ([OF_VERL], [], [tasks(', prompt = "plain"'), LONGER], []),
    (
        [OF_VERL],
        [],
        [tasks(', prompt = "rstar2"'), LONGER],
        ["1 problem with a system message of its own, which is not put"],
    ),
    (
        listed("train", *((text, "1") for text in "aabcab")),
        listed("held", *((text, "1") for text in "xyx")),
        [tasks(', evaluation_files = ["b.jsonl"]')],
        [
            "environments.0: 3 of 6 training problems repeat others, as 'train1'; they are trained as often ... leave them",
            "environments.0: 1 of 3 held-out problems repeat others, as 'held2'; intervals count them once",
        ],
    ),
    (
        listed("p", *((f"{number}?", gold) for number, gold in enumerate(GOLDS))),
        [],
        [tasks("")],
        ["environments.0: 2 of 5 problems have an answer that cannot be read, as 'p2'; only the same text"],
    ),
]


@pytest.mark.parametrize(("a", "b", "laid", "told"), WARNINGS)
def test_what_is_probably_a_mistake_in_the_data_is_a_warning(folder, capsys, a, b, laid, told):
    text = SOUND
    for old, new in laid:
        assert old in text
        text = text.replace(old, new, 1)
    for name, rows in (("a", a), ("b", b)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    topology, path = load(folder, text)
    assert sound_topology((path,), ()) == topology
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(told), said
    assert [
        each for each, of in zip(said, told, strict=True) if not all(part in each for part in of.split(" ... "))
    ] == []


FILTER, REPORTS = 'Filter"\nhost = "a"', 'reports = "filter"'
FAULTS = [
    # what of the sound file becomes what, and the parts of the message
    ("max_rollouts = 2", "max_rollouts = '8'", "actors.generator.settings.max_rollouts: ... whole number"),
    (":Learner", ":WaitingLearner", "actors.filter.links: ... in a circle: filter -> learner -> filter; ... break"),
    (REPORTS, "reports = []", "actors.learner.links.reports: leads nowhere; name the role"),
    (REPORTS, f'{REPORTS}, repots = "filter"', "actors.learner.links.repots: ... has no such link; ... 'reports'"),
    (REPORTS, 'reports = "generator"', "actors.learner.links.reports: ... not answer StepTrained"),
    (":Filter", ":DeafFilter", "trajectories: filter ... does not receive Trajectory by push; ... give filter a class"),
    (":Filter", ":OtherReply", "links.reports: ... answers StepTrained with StageRecorded, not with Recorded"),
    (FILTER, f"{FILTER}\nreplicas = 2", "actors.filter.replicas: ... exactly one; write replicas = 1"),
    (FILTER, f"{FILTER}\nreplicas_per_host = 2", "replicas_per_host: ... exactly one; write replicas_per_host = 1"),
    (":Filter", ":Faulty", "actors.filter.settings: ... ZeroDivisionError: no"),
    ("groups_per_step = 4", "groups_per_step = 101", "actors.filter.settings: ... holds 100 groups"),
    ("keep = 4", "keep = 9", "algorithm.keep: keeps 9 of 8 samples ... at most"),
    ("keep = 4", "keep = 4\nminimum_samples = 9", "algorithm.minimum_samples: no group of 8"),
    (":Some", ":NoTasks", "environments.0.class: ... has no class 'NoTasks'"),
    ("max_turns = 2", 'max_turns = 2\nfilter.ids = "kept"', "stages.0.filter.ids: there is no file ... relative"),
]


@pytest.mark.parametrize(("old", "new", "told"), FAULTS)
def test_each_fault_is_found_alone_and_named(folder, old, new, told):
    assert old in SOUND
    (fault,) = check(folder, SOUND.replace(old, new, 1))
    assert all(part in fault.render("") for part in told.split(" ... ")), fault
    assert fault.line is not None


def test_every_fault_is_reported_in_one_go(folder):
    text = (
        SOUND.replace("keep = 4", "keep = 9").replace("max_rollouts", "x").replace('reports = "filter"', "reports = []")
    )
    assert [fault.key for fault in check(folder, text)] == [
        "algorithm.keep",
        "actors.generator.settings.x",
        "actors.learner.links.reports",
    ]


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ({"a": ["b"], "b": ["c"], "c": []}, []),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}, []),
        ({"a": ["a"]}, ["a", "a"]),
        ({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]}, ["a", "b", "c", "a"]),
        ({"a": ["gone"]}, []),
    ],
)
def test_circles_in_a_graph(edges, cycle):
    assert find_cycle(edges) == cycle


def test_held_out_files_are_needed_when_a_stage_evaluates(folder):
    stage = '[[stages]]\nkind = "evaluate"\nname = "after"\nproblems = 2\nmax_response_tokens = 4\nmax_turns = 1\n'
    (folder / "train.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    held_out = [f'{{"problem": "{n} + 2?", "answer": "{n + 2}"}}' for n in range(2)]
    (folder / "held_out.jsonl").write_text("\n".join(held_out))
    text = SOUND.replace('class = "checked_actors:Some"', "class = 'maths'\nsettings.files = ['train.jsonl']") + stage
    (fault,) = check(folder, text)
    assert (fault.key, fault.message) == ("stages.1.problems", "asks for 2 held-out problems, and there are 0")
    with_files = "environments.0.settings.evaluation_files=['held_out.jsonl']"
    assert check(folder, text, [with_files]) == []
    (fault,) = check(folder, text, [with_files, "stages.1.problems=3"])
    assert (fault.line, fault.message) == (None, "asks for 3 held-out problems, and there are 2 (from --set)")


def test_a_sequence_has_room_for_a_prompt_with_the_tools(folder):
    (folder / "train.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    text = SOUND.replace(
        'class = "checked_actors:Some"', 'class = "maths"\nsettings = { files = ["train.jsonl"], prompt = "rstar2" }'
    ).replace("initialise = {}", "initialise = { max_length = 128 }")
    (fault,) = check(folder, text)
    needed = re.fullmatch(
        r"a sequence has 128 tokens, and prompts with the descriptions of their tools need more: (\d+) to \1 tokens in maths",
        fault.message,
    )
    assert fault.key == "model.initialise.max_length"
    assert fault.remedy.startswith(f"write {int(needed[1]) + 64} or more")
    enough = f"model.initialise.max_length={int(needed[1]) + 1}"
    assert check(folder, text, [enough]) == []


def test_files_that_are_missing_are_named_at_once_of_all_environments(folder):
    missing = """
[[environments]]
class = "maths"
name = "{}"
base = "more"
settings = {{ files = ["data/a.jsonl", "data/b.jsonl"], evaluation_files = ["c.jsonl"] }}
"""
    text = SOUND + missing.format("first") + missing.format("second") + '[fetch]\n"more/data" = "some/set"\n'
    faults = check(folder, text)
    assert [fault.key for fault in faults] == [
        f"environments.{index}.settings.{key}"
        for index in (1, 2)
        for key in ("files.0", "files.1", "evaluation_files.0")
    ]
    assert f"fetch it with agent-rl data fetch some/set --out {folder / 'more' / 'data'}" in faults[0].remedy
    assert "fetch" not in faults[2].remedy


def test_a_model_directory_needs_config_weights_and_tokenizer(folder):
    model = folder / "model"
    model.mkdir()
    text = SOUND.replace("initialise = {}", f'path = "{model}"')
    faults = check(folder, text)
    assert {fault.key for fault in faults} == {"model.path"}
    assert [fault.message.split(" has no ")[1].split()[0] for fault in faults] == [
        "config.json",
        "weights",
        "tokenizer",
    ]
    (model / "config.json").write_text("{")
    (fault,) = check(folder, text)
    assert fault.message.startswith(f"{model / 'config.json'} cannot be read as JSON (")


def test_the_journal_may_not_be_on_a_network_and_a_host_without_it_may_share_the_run_directory(tmp_path, monkeypatch):
    monkeypatch.setattr("agent_rl.topology_checks.files.file_system_of", lambda path: "nfs4")
    path, _ = write_three_hosts(tmp_path, (5700, 5800, 5900), steps=1)
    topology = load_topology(path)
    assert topology.journal_host == "a"
    found = [list(run_directory(topology, Facts(tmp_path, host))) for host in (None, "a", "b", "c")]
    assert [len(each) for each in found] == [1, 1, 0, 0]
    assert found[0][0].key == ("run", "directory")
    assert "(nfs4), which cannot hold the journal" in found[0][0].message


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/runs", "nfs4"),
        ("/data/local/runs", "ext4"),
        ("/database", "overlay"),
        ("/with space/x", "cifs"),
        ("/twice", "tmpfs"),
    ],
)
def test_the_innermost_mount_tells_the_file_system(path, kind):
    mounts = (
        "overlay / overlay rw 0 0\nserver:/x /data nfs4 rw 0 0\n/dev/sda1 /data/local ext4 rw 0 0\n"
        "//s/x /with\\040space cifs rw 0 0\n/dev/sdb /twice ext4 rw 0 0\ntmpfs /twice tmpfs rw 0 0\n\n"
    )
    assert file_system(Path(path), mounts) == kind


SPLIT = SOUND.replace('Filter"\nhost = "a"', 'Filter"\nhost = "b"') + '[security]\nkey_file = "cluster.key"\n'


@pytest.fixture
def key_file(folder):
    file = folder / "cluster.key"
    file.write_text("secret")
    file.chmod(0o600)
    return file


@pytest.mark.usefixtures("key_file")
@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([], ""),
        (["hosts.b.base_port=5704"], ""),
        (
            ["hosts.b.base_port=5703"],
            "hosts.b.base_port: its ports 5703 to 5704 are taken by host a ... (from --set); choose 5704 or more",
        ),
        (["actors.generator.replicas=9000", "hosts.a.base_port=60000"], "needs the ports 60000 to 69001"),
        (['actors.filter.hosts=["a", "b"]'], 'actors.filter.hosts: ... exactly one ... write host = "a"'),
    ],
)
def test_ports_of_hosts_at_one_address_are_apart_and_exist(folder, monkeypatch, overrides, told):
    monkeypatch.setattr("agent_rl.topology_checks.hosts.descriptor_limit", lambda: 1 << 20)
    faults = check(folder, SPLIT, overrides)
    assert len(faults) == bool(told)
    assert all(part in fault.render("") for fault in faults for part in told.split(" ... "))


HARNESS = SOUND.partition("[hosts.a]")[0].replace("[alg", '[environments.harness]\ncommand = ["true"]\n[alg')


@pytest.mark.usefixtures("key_file")
@pytest.mark.parametrize(
    ("text", "key"),
    [(SOUND, "run.metrics_port"), (SPLIT, "run.metrics_port"), (HARNESS, "actors.gateway.settings.port")],
)
def test_a_port_at_which_another_run_listens_is_a_fault(folder, text, key):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as gateways listen
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (fault,) = check(folder, text, [f"{key}={port}"])
    assert fault.key == key
    assert fault.message.startswith(f"another process listens at 127.0.0.1:{port}")
    assert check(folder, text, [f"{key}={port}"]) == []


@pytest.mark.parametrize("address", ["10.0.0.2", "127.0.0.1", "localhost"])
def test_links_between_hosts_need_a_key_on_loopback_too(folder, address):
    """Another user of this machine reaches loopback as well as we."""
    key, overrides = folder / "cluster.key", [f"hosts.b.address={address}"]
    (missing,) = check(folder, SPLIT.partition("[security]")[0], overrides)
    (nowhere,) = check(folder, SPLIT, overrides)
    key.write_text("secret")
    key.chmod(0o644)
    (readable,) = check(folder, SPLIT, overrides)
    assert {each.key for each in (missing, nowhere, readable)} == {"security.key_file"}
    assert "hosts talk over TCP, which others reach, on loopback too" in missing.message
    assert "agent-rl keys FILE" in missing.remedy
    assert "there is no file" in nowhere.message
    assert readable.remedy == f"chmod 600 {key}"
    key.chmod(0o600)
    assert check(folder, SPLIT, overrides) == []
    assert check(folder, SOUND, [f"hosts.a.address={address}"]) == []  # one host needs none, wherever it is


def test_peers_that_do_not_fit_are_a_fault_with_its_arithmetic(folder, monkeypatch):
    monkeypatch.setattr("agent_rl.topology_checks.hosts.descriptor_limit", lambda: 1024)
    assert check(folder, SOUND, ["actors.generator.replicas=84"]) == []
    faults = check(folder, SOUND, ["actors.generator.replicas=600"])
    parts, limit = "1 for each of {} that send to it, 2 for each of {} that it sends to", "the limit here is 1,024"
    assert [(fault.key, fault.message) for fault in faults] == [
        (
            "hosts.a",
            f"supervisor.a needs 3,522 file descriptors: 512 of its own, {parts.format(602, 0)}, 4 for each of 602 processes; {limit}",
        ),
        (
            "actors.filter.replicas",
            f"filter.0 needs 2,317 file descriptors: 512 of its own, {parts.format(601, 602)}; {limit}",
        ),
    ]
    assert all(fault.remedy.startswith("raise the limit (ulimit -Hn") for fault in faults)


def test_where_nodes_listen_follows_from_the_hosts_and_the_key(folder):
    """A host that joins must reach every node, also one whose peers are all on its own host."""
    more = '[actors.executor]\nclass = "checked_actors:Learner"\nhost = "b"\nlinks = { reports = "filter" }\n'
    keyed = SOUND + '[security]\nkey_file = "cluster.key"\n'
    there = {name: f"tcp://[::1]:{port}" for port, name in enumerate(("supervisor.b", "filter.0", "executor.0"), 5800)}
    nodes = ("supervisor.a", "generator.0", "generator.1", "filter.0", "learner.0")
    of_a = [node for node in nodes if node not in there]
    sockets = {node: f"ipc:///tmp/x/{node}" for node in nodes}
    for text, overrides, expected in (
        (SOUND, [], sockets),
        (keyed, [], sockets),
        (SPLIT + more, ["hosts.b.address=::1"], ports(of_a, "127.0.0.1") | there),
        (keyed, ["hosts.a.address=10.0.0.1"], ports(nodes, "10.0.0.1")),
    ):
        assert addresses(load(folder, text, overrides)[0], Path("/tmp/x")) == expected


def ports(nodes, address):
    return {node: f"tcp://{address}:{port}" for port, node in enumerate(nodes, 5700)}


def test_the_description_says_what_runs_where(folder):
    text = "\n".join(describe(load(folder)[0]))
    assert "  generator  2 x checked_actors:Generator  on a\n" in text
    assert "learner.reports -> filter: call StepTrained / Recorded" in text
    assert "open at once: 8 groups = 2 steps of 4, 64 rollouts" in text
    topology, _ = load(folder, SPLIT, ['actors.generator.hosts=["a", "b"]', "actors.generator.replicas_per_host=2"])
    lines = describe(topology)
    assert "  generator  4 x checked_actors:Generator  on a, b (2 each)" in lines
    assert "  filter     1 x checked_actors:Filter     on b" in lines
    assert "  a     127.0.0.1  ports 5700 to 5703  generator.0, generator.1, learner.0" in lines
    assert "  b     127.0.0.1  ports 5800 to 5803  generator.2, generator.3, filter.0" in lines


@pytest.mark.usefixtures("key_file")
def test_a_run_needs_each_role_on_a_host_that_stays(folder):
    c = '[hosts.c]\naddress = "10.0.0.3"\noptional = true\n'
    assert check(folder, SPLIT + c, ['actors.generator.hosts=["a", "c"]']) == []
    (fault,) = check(folder, SPLIT + c, ['actors.generator.hosts=["c"]'])
    assert (fault.key, fault.message) == ("hosts.c.optional", "the run stands still without generator of this host")
    assert fault.remedy == "leave the key out, or let another host run generator too"
    with pytest.raises(TopologyError, match=r"actors\.generator: start \(3\) is more than the processes of the role"):
        check(folder, SPLIT, ["actors.generator.start=3"])


def test_socket_paths_fit_however_long_names_and_folders_are(folder, monkeypatch):
    deep = folder / ("d" * 90) / "tmp"
    deep.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(deep))
    monkeypatch.setattr("tempfile.tempdir", None)
    text = SOUND.replace("actors.learner]", f"actors.{'l' * 90}]").replace('"learner"', f'"{"l" * 90}"')
    topology, _ = load(folder, text)
    runtime = runtime_directory(topology)
    table = addresses(topology, runtime)
    assert len(set(table.values())) == len(table)
    assert all(len(os.fsencode(address.removeprefix("ipc://"))) <= SOCKET_PATH_LIMIT for address in table.values())
    assert runtime == runtime_directory(load(folder, text)[0])
    other = load(folder, text, [f"run.directory={folder / 'other'}"])[0]
    assert runtime != runtime_directory(other)


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ([], 3),  # all there are
        (["stages.0.steps=1000"], 3 * 50 + 4),
        (["stages.0.steps=1000", "run.mode=synchronous", "run.checkpoint_every=10"], 3 * 10 + 2),
        (["stages.0.steps=1000", "run.keep_trajectories=400"], 400 + 4),
        (["stages.0.steps=1000", "run.keep_trajectories=all"], 1000),
    ],
)
def test_the_needs_are_what_the_arithmetic_says(folder, changes: list[str], steps: int) -> None:
    topology, _ = load(folder, SOUND, changes)
    algorithm = topology.algorithm
    open_steps = topology.algorithm_of(topology.stages[0]).max_staleness + 1
    text = "\n".join(needs(topology))
    assert steps_kept(topology) == steps
    rollouts = algorithm.groups_per_step * algorithm.samples
    disk = steps * rollouts * 64 * JOURNAL_BYTES
    assert (
        f"{size_text(disk)} = {steps:,} steps kept x {rollouts} rollouts x 64 tokens x {JOURNAL_BYTES} bytes; " in text
    )
    trained = algorithm.groups_per_step * min(algorithm.keep, algorithm.samples)
    memory = size_text(open_steps * trained * 64 * MEMORY_BYTES)
    assert f"{memory} = {open_steps} steps x {trained} rollouts x 64 tokens x {MEMORY_BYTES} bytes" in text
    assert " are free at /" in text


def test_the_needs_count_the_reference_of_a_kl_penalty(folder: Path) -> None:
    def about(*changes: str) -> list[str]:
        topology, _ = load(folder, SOUND, ["algorithm.kl.coefficient=0.1", *changes])
        return [line.partition("reference policy: ")[2] for line in needs(topology) if "reference policy" in line]

    model = folder / "reference"
    model.mkdir()
    save_file({"a": np.zeros((30, 40), np.float32), "b": np.zeros(10, np.float32)}, model / "model.safetensors")
    size = "1,210 weights x 4 bytes"
    assert about(f"algorithm.kl.reference={model}") == [f"4.73 KiB = {size}, on its device"]
    assert about(f"algorithm.kl.reference={model}", "model.dtype=bfloat16")[0].startswith("2.36 KiB = ")
    assert about("algorithm.kl.reference=someone/else") == ["once more the size of the model, on its device"]
    assert about("model.lora.rank=2") == ["a copy of the adapters"]
    host = "in host memory, and as much on its device while it computes with them"
    assert about() == [f"once more the size of the model, {host}"]
    topology, _ = load(folder)
    assert "reference" not in "\n".join(needs(topology))


@pytest.mark.parametrize("directory", ["", "a\0b", "x" * 300, "checked_actors.py"])
def test_a_run_directory_that_cannot_be_is_a_fault(folder, directory, monkeypatch):
    monkeypatch.chdir(folder)
    (fault,) = check(folder, SOUND, [f"run.directory={json.dumps(directory)}"])
    assert fault.key == "run.directory"

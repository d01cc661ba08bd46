"""Topology files: what is read, and that everything wrong is said at once, where it stands."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.config.load import load_topology
from agent_rl.config.source import Fault, TopologyError, parse_value
from agent_rl.config.toml_lines import key_lines

SOUND = Path(__file__).with_name("sound.toml").read_text(encoding="utf-8")
ALGORITHM_TABLE = "[algorithm]\ngroups_per_step = 4\n"


def write(tmp_path, text):
    path = tmp_path / "topology.toml"
    path.write_text(text, encoding="utf-8")
    return path


def faults_of(tmp_path, text, *overrides):
    path = write(tmp_path, text)
    with pytest.raises(TopologyError) as caught:
        load_topology(path, overrides)
    return caught.value.faults


def line_of(text, start):
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.startswith(start))


@pytest.mark.parametrize("mark", ["", "\N{BYTE ORDER MARK}"])
def test_a_sound_file_becomes_a_topology(tmp_path, mark):
    topology = load_topology(write(tmp_path, mark + SOUND))
    assert topology.run.name == "demo"
    assert [stage.name for stage in topology.stages] == ["sft", "long"]
    assert topology.model.initialise.layers == 2
    assert topology.actors["a"].settings == {"depth": 3}
    assert topology.actors["a"].targets("out") == ("b",)
    assert topology.actors["b"].targets("many") == ("a", "b")
    assert topology.hosts_in_use == ("local",)
    assert topology.main_host == "local"


def test_all_faults_are_reported_at_once_each_at_its_line(tmp_path):
    text = (
        SOUND.replace('name = "demo"', 'nmae = "demo"')
        .replace("layers = 2", 'layers = "two"')
        .replace("groups_per_step = 4", "groups_per_step = 0")
        .replace('name = "long"\nsteps = 3', 'name = "long"\nstepz = 3')
        .replace('out = "b"', 'out = "c"')
    )
    faults = faults_of(tmp_path, text)
    found = {fault.key: fault for fault in faults}
    assert found["run.nmae"] == Fault(line_of(text, "nmae"), "run.nmae", "is no known key", "did you mean 'name'?")
    assert found["run.name"].line == line_of(text, "[run]")
    assert found["model.initialise.layers"].line == line_of(text, "initialise")
    assert "'two'" in found["model.initialise.layers"].message
    assert found["algorithm.groups_per_step"].message == "must be greater than 0, not 0"
    assert found["stages.1.stepz"].line == line_of(text, "stepz")
    assert found["stages.1.stepz"].remedy == "did you mean 'steps'?"
    assert found["stages.1.steps"].message == "is missing"
    assert found["actors.a.links.out"].message == "no actor is named 'c'"
    assert len(faults) == 8 - 1
    assert faults == sorted(faults, key=lambda fault: fault.line)


AN_ACTOR, ALGORITHM, HARNESS = "[actors.a]\n", "groups_per_step = 4", "[environments.harness]\ncommand = ['sh']\n"
NO_ADDRESS = "environments.0.harness.network: ... is no address; write"
MISTAKES = [
    # what of the sound file becomes what, and the parts of the message
    ("steps = 2", "steps = 2\nlearning_rate = inf", "stages.0.learning_rate: ... a finite number, not inf"),
    ('kind = "sft"', 'kind = "stf"', "stages.0.kind: 'stf' is unknown; did you mean 'sft'?"),
    ('kind = "sft"\n', "", "stages.0.kind: is missing; it says what the entry is"),
    ("steps = 2\n", "", "stages.0: neither of steps and epochs given; write one of them"),
    ("steps = 2", "steps = 2\nepochs = 1", "stages.0: both of steps and epochs given; write one of them"),
    ("steps = 2", "epochs = 1", "stages.0: epochs are passes over data, and there is no data"),
    ("steps = 2", "steps = 2\nweights = [1]", "stages.0: 1 weights for 0 entries of data; write one for each"),
    ("steps = 2", "steps = 2\nweights = [0]", "stages.0.weights.0: must be greater than 0, not 0"),
    ("steps = 2", "steps = true", "stages.0.steps: must be a whole number, not True; write a whole number, as in 5"),
    ("max_turns = 2", 'max_turns = 2\nfilter = "short"', "stages.1.filter: must be a table"),
    ("max_turns = 2", "max_turns = 2\nreset_optimizer = 1", "reset_optimizer: ... a valid boolean, not 1 ... or f"),
    ('kind = "rl"', 'kind = "select"\nkeep = { below = 0.5, at_least = 0.5 }', "1.keep: ... nothing would be kept"),
    ('links = { out = "b" }', "links = { out = 3 }", "actors.a.links.out: must be"),
    ('out = "b"', 'out = "bb"', "actors.a.links.out: no actor is named 'bb'; did you mean 'b'?"),
    ('class = "somewhere:A"', 'class = "somewhere"', "actors.a.class: must be 'module:Class' ... actors.learner"),
    ('class = "somewhere:A"\n', "", "actors.a.class: is missing, and 'a' is no standard role; there is kv_scheduler"),
    *(
        (AN_ACTOR, f"{AN_ACTOR}{lines}\n", f"actors.a.{told}")
        for lines, told in (
            ('hosts = ["local", "b"]', "hosts: no host is named 'b'; there is local"),
            ('hosts = ["local", "local"]', "hosts: names 'local' 2 times; name it once"),
            ("hosts = []", "hosts: ... at least 1"),
            ('host = "local"\nhosts = ["local"]', "hosts: is given beside host; write either hosts or host"),
            ("replicas = 2\nreplicas_per_host = 2", "replicas_per_host: is given beside replicas; write either"),
            ("replicas_per_host = 0", "replicas_per_host: ... greater than 0"),
            ("silent_seconds = nan", "silent_seconds: must be greater than 0"),
            ("silent_seconds = -inf", "silent_seconds: must be greater than 0"),
            ("silent_seconds = 0", "silent_seconds: must be greater than 0"),
        )
    ),
    (
        AN_ACTOR,
        f'[hosts.b]\n{AN_ACTOR}hosts = ["local", "b"]\nreplicas = 1\n',
        "actors.a.replicas: 1 for 2 hosts: one would have none; write replicas = 2 or more",
    ),
    ("[hosts.local]", "[hosts.lokal]", "actors.a.host: no host is named 'local'; did you mean 'lokal'?"),
    ("[hosts.local]", "[[hosts]]", "hosts: must be a table"),
    ("[model]\n", '[model]\npath = "x"\n', "model: needs exactly one of path and initialise, both are given"),
    ('class = "maths"', "", "environments.0.class: is missing; add it"),
    ('class = "maths"', 'class = "maths"\nweight = 0', "environments.0.weight: must be greater than 0, not 0"),
    ("[algorithm]", '[[environments]]\nclass = "maths"\n[algorithm]', "environments: ... give one another name"),
    *(
        ("[algorithm]", f"{HARNESS}{lines}\n[algorithm]", told)
        for lines, told in (
            ("network = 'pypi.org'", NO_ADDRESS),
            ("network = ['pypi.org']", NO_ADDRESS),
            ("network = ['pypi.org:443', 'x:y']", NO_ADDRESS),
            ("network = ['http://a.b:80']", NO_ADDRESS),
            ("network = 3", NO_ADDRESS),
            ("fork = true\ncontainer = { image = 'a' }", "fork is for jails"),
            ("shows = ['x']\ncontainer = { image = 'a' }", "shows is for jails"),
        )
    ),
    *(
        (ALGORITHM, line, f"algorithm.{told}")
        for line, told in (
            ("keep = 1", "keep: ... needs at least 2 trajectories; write keep = 2 or more"),
            ('samples = "16"', "samples: must be a whole number, not '16'"),
            ('sequence_mask = [0.5, "2"]', "sequence_mask.1: ... a valid number, not '2'; write a number, as in 0.5"),
            ("sequence_mask = [1.1, 1.2]", "sequence_mask: must be two bounds on a ratio"),
            ("clip_low = 1.5", "clip_low: must be less than or equal to 1, not 1.5"),
            ('resampling = "papr"', "resampling: ... did you mean 'paper'?"),
        )
    ),
]


@pytest.mark.parametrize(("old", "new", "told"), MISTAKES)
def test_each_kind_of_mistake_is_said_in_words_of_the_file(tmp_path, old, new, told):
    assert old in SOUND
    faults = faults_of(tmp_path, SOUND.replace(old, new, 1))
    said = [fault.render("") for fault in faults if fault.line is not None]
    assert any(all(part in each for part in told.split(" ... ")) for each in said), faults


@pytest.mark.parametrize("text", ["[run]\nname = = 1", "[run]\nname = [1,\n", "\N{BYTE ORDER MARK}[run]\nname = = 1"])
def test_broken_toml_names_its_line(tmp_path, text):
    (fault,) = faults_of(tmp_path, text)
    assert fault.line == 2
    assert fault.message.startswith("not TOML: ")


@pytest.mark.parametrize(
    ("text", "key", "first", "second"),
    [
        ('[run]\nname = "a"\nseed = 1\nname = "b"\n', "run.name", 2, 4),
        ("[run]\nseed = 1\n[model]\n[run]\nname = 'b'\n[broken", "run", 1, 4),
        ("a.b = 1\n[a]\nc = 1", "a", 1, 2),
        ("t = { x = 1, x = 2 }\n", "t.x", 1, 1),
        ('[x]\n"na me" = 1\n"na me" = 2', "x.na me", 2, 3),
        ("[[s]]\nx = 1\n[s]\ny = 1", "s", 1, 3),
        ("a = 1\n[[a]]\nb = 1", "a", 1, 2),
        ("[run]\nt = { a = 1 }\n[run.t]\nb = 2", "run.t", 2, 3),
        ("[run]\nt = { a = 1 }\nt.b = 2", "run.t", 2, 3),
        ("[[s]]\nx = 1\n[[s]]\nx = 1\nx = 2", "s.1.x", 4, 5),
    ],
)
def test_what_is_given_twice_is_named_with_both_lines(tmp_path, text, key, first, second):
    (fault,) = faults_of(tmp_path, text)
    assert fault == Fault(second, key, f"is given twice, first in line {first}", "remove one of them")


def test_a_fault_is_rendered_with_what_it_has():
    assert Fault(3, "a.b", "is wrong", "mend it").render("x.toml") == "x.toml:3: a.b: is wrong; mend it"
    assert Fault(None, "", "is wrong").render("x.toml") == "x.toml: is wrong"


@pytest.mark.parametrize("left_to_defaults", ["", "[hosts.local]\nbase_port = 6000\n", ALGORITHM_TABLE])
def test_overrides_replace_and_add_keys_also_of_tables_that_the_file_leaves_out(tmp_path, left_to_defaults):
    given = {"stages.1.steps": 5, "run.seed": 7, "algorithm.max_staleness": 0, "stages.1.filter.max_problem_chars": 80}
    given |= {"actors.a.settings.deep.er": [1, 2], "actors.a.links.out": "a", "hosts.local.base_port": 7000}
    given |= {"run.directory": "runs/other", "algorithm.keep": 3}
    path = write(tmp_path, SOUND.replace(left_to_defaults, ""))
    topology = load_topology(path, [f"{key} = {value!r}" for key, value in given.items()])
    for key, value in given.items():
        found = topology.model_dump(mode="json", by_alias=True)
        for part in key.split("."):
            found = found[int(part) if isinstance(found, list) else part]
        assert found == value, key
    assert topology.actors["a"].settings["depth"] == 3


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("stages.1.stepz=5", "stages.1 has no key 'stepz'; did you mean 'steps'?"),
        ("stages.1.filter.idz=x", "has no key 'idz'; did you mean 'ids'?"),
        ("stages.0.max_turns=5", "stages.0 has no key 'max_turns'; ... steps"),
        ("stages.2.steps=5", "stages has no entry '2'; ... entries 0 to 1"),
        ("stages.rl.steps=5", "stages has no entry 'rl'; ... entries 0 to 1"),
        ("actors.aa.replicas=2", "actors has no key 'aa'; did you mean 'a'?"),
        ("algoritm.keep=2", "a topology has no key 'algoritm'; did you mean 'algorithm'?"),
        ("run.name.first=x", "run.name is a value"),
        ("environments.0.tools.0=x", "environments.0.tools has no entry '0'; it has none"),
        ("run.seed", "is not KEY=VALUE; ... --set"),
        ("run..seed=1", "is not KEY=VALUE; ... --set"),
    ],
)
def test_an_override_of_an_unknown_key_names_the_nearest(tmp_path, override, told):
    (fault,) = faults_of(tmp_path, SOUND, override)
    assert fault.key.startswith("--set ")
    assert all(part in fault.render("") for part in told.split(" ... "))


def test_a_wrong_value_from_an_override_is_not_blamed_on_the_file(tmp_path):
    (fault,) = faults_of(tmp_path, SOUND, "stages.1.steps=many")
    assert fault.line is None
    assert fault.message == "must be a whole number, not 'many' (from --set)"


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("0.5", 0.5), ("true", True), ('"5"', "5"), ("plain", "plain"), ("[1]", [1]), ("1\nb = 2", "1\nb = 2")],
)
def test_values_of_overrides_are_toml_or_else_strings(text, value):
    assert parse_value(text) == value


def test_loading_needs_no_heavy_library():
    script = (
        "import sys; from agent_rl.config import addresses, load; from agent_rl.topology_checks import topology; import actors.cli.main; "
        "print([name for name in ('torch', 'transformers', 'vllm', 'zmq', 'trio') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_lines_of_every_way_to_write_a_key():
    text = '''\
# a comment with [brackets] and "quotes"
title = """
[not.a.table]
key = 1
"""
literal = \'\'\'it's "fine" \'\'\'
dotted.inner."quo.ted" = 1

[table] # after
array = [
  1, # one = 1
  { deep = 2, list = ["]", '}'] },
  [ 3, 4 ],
]
inline = { a = 1, b = { c = 2 } }
time = 1979-05-27 07:32:00

[[rows]]
x = 1
[rows.sub]
y = 2
[[rows.inner]]
z = 3
[[rows]]
x = 4
"spaced key" = 5'''
    lines = key_lines(text)
    assert {path: line for path, line in lines.items() if len(path) == 1} == {
        ("title",): 2,
        ("literal",): 6,
        ("dotted",): 7,
        ("table",): 9,
        ("rows",): 18,
    }
    assert lines["dotted", "inner", "quo.ted"] == 7
    assert lines["table", "array", 0] == 11
    assert lines["table", "array", 1, "deep"] == 12
    assert lines["table", "array", 1, "list", 1] == 12
    assert lines["table", "array", 2, 1] == 13
    assert lines["table", "inline", "b", "c"] == 15
    assert lines["table", "time"] == 16
    assert lines["rows", 0, "sub", "y"] == 21
    assert lines["rows", 0, "inner", 0, "z"] == 23
    assert lines["rows", 1] == 24
    assert lines["rows", 1, "spaced key"] == 26


def leaves(value, path=()):
    """Every path of a parsed document."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))


scalars = st.one_of(
    st.integers(-9, 9).map(str),
    st.sampled_from(
        ["true", '"a # b"', "'[x]'", '"\\"]"', '""', '"""a\n"b"\n"""', "'''\n'x' = 1'''", "1.5", '"""x"""""']
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: "[" + ", # note ]\n".join(parts) + "\n]"),
        st.lists(inner, max_size=3).map(
            lambda parts: "{ " + ", ".join(f"k{index} = {part}" for index, part in enumerate(parts)) + " }"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["plain", "table", "rows"]), values), max_size=6))
def test_the_scanner_finds_exactly_the_keys_tomllib_reads(parts):
    text = "".join(
        f"a{index} = {value}\n"
        if kind == "plain" and not index
        else {
            "plain": f"[p{index}.q]\n'v' = {value}\n",
            "table": f"[t{index}]\nv.w = {value}\n",
            "rows": f"[[r]]\nv={value}\n",
        }[kind]
        for index, (kind, value) in enumerate(parts)
    )
    lines = key_lines(text)
    assert set(lines) == set(leaves(tomllib.loads(text)))
    total = text.count("\n") + 1
    assert all(1 <= line <= total for line in lines.values())

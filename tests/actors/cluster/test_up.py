"""``agent-rl up``: what it sends where, what it refuses before anything starts. Shells stand in for ssh and hosts."""

import socket
import stat
from functools import partial

import pytest

from actors.cli.main import main
from actors.cluster.orders import Orders
from actors.cluster.places import is_here
from agent_rl.messages import pipes
from agent_rl.messages.pipes import Order
from transport import CurveKeys, Registry
from transport.stream import Unpacker, packed

# Two hosts without addresses.
TOPOLOGY = """\
[run]
name = "two"
directory = "runs/two"
[model.initialise]
[[environments]]
class = "examples.quickstart.arithmetic:Arithmetic"
[[stages]]
kind = "rl"
steps = 3
max_response_tokens = 40
max_turns = 2
[hosts.rollout]
[hosts.trainer]
base_port = 6100
[actors.kv_scheduler]
host = "trainer"
[actors.roc_filter]
host = "trainer"
[actors.learner]
host = "trainer"
settings.device = "cuda"
[actors.tool_executor]
host = "rollout"
[actors.rollout_generator]
host = "rollout"
links.weights = "learner"
settings = { device = "cuda:1", threads = 3, engine_settings = { tensor_parallel_size = 2 } }
"""
ELSEWHERE = ("198.51.100.1", "198.51.100.2")  # addresses of documents, which no machine has
SSH = """
for word in "$@"; do last=$word; printf '[%s]' "$word"; done > "$WORDS/$(echo "$*" | tr -cd '0-9.' | cut -c1-20).words"
exec sh -c "$last"
"""
HOST = """dd bs=65536 count=1 "of=$$.order" 2> /dev/null; echo "agent-rl: the host starts" >&2; exit 0"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The topology as ``two.toml`` of the working directory."""
    path = tmp_path / "two.toml"
    path.write_text(TOPOLOGY)
    monkeypatch.chdir(tmp_path)
    return path


def with_addresses(trainer, rollout):
    text = TOPOLOGY.replace("[hosts.rollout]\n", f'[hosts.rollout]\naddress = "{rollout}"\n')
    text = text.replace("[hosts.trainer]\n", f'[hosts.trainer]\naddress = "{trainer}"\n')
    return text + '[security]\nkey_file = "cluster.key"\n'


def test_hosts_on_other_machines_get_the_files_over_ssh(file, tmp_path, monkeypatch, capsys):
    file.write_text(with_addresses(*ELSEWHERE))
    CurveKeys.generate().save(tmp_path / "cluster.key")
    (tmp_path / "more.toml").write_text("[run]\nseed = 4\n")
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "host").write_text(HOST)
    (tmp_path / "words").mkdir()
    monkeypatch.setenv("WORDS", str(tmp_path / "words"))
    there = tmp_path / "there is"
    options = ["--ssh", f"sh {tmp_path}/ssh -F 'my file'", "--user", "me", "--workdir", str(there)]
    code = main(
        ["up", "two.toml", "more.toml", "--set", "run.mode=synchronous", *options, "--command", f"sh {tmp_path}/host"]
    )
    assert code == 0, capsys.readouterr()
    calls = sorted(path.read_text() for path in (tmp_path / "words").iterdir())
    assert len(calls) == 2
    for address, call in zip(ELSEWHERE, calls, strict=True):
        assert call.startswith("[-F][my file][-T][-o][BatchMode=yes][-o][ConnectTimeout=10]")  # those of the user win
        assert f"[me@{address}][mkdir -p '{there}' && cd '{there}' && exec sh {tmp_path}/host up-host]" in call
    unpacker = Unpacker(Registry.of(pipes))
    for path in there.glob("*.order"):
        unpacker.feed(path.read_bytes())
    orders = {order.host: order for order in unpacker}
    assert {name: order.main for name, order in orders.items()} == {"trainer": True, "rollout": False}
    order = orders["rollout"]
    assert order.files == ("two.toml", "more.toml")
    assert order.texts == {"two.toml": file.read_text(), "more.toml": "[run]\nseed = 4\n"}
    assert order.key == (tmp_path / "cluster.key").read_text()
    assert order.overrides == ("run.mode=synchronous",)
    assert order.again == "agent-rl up two.toml more.toml --set run.mode=synchronous"


OTHERS = "no other machine reaches this address"


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        (with_addresses("198.51.100.1", "127.0.0.1"), "two.toml:13: hosts.", OTHERS),
        (with_addresses("localhost", "198.51.100.1"), "two.toml:15: hosts.", OTHERS),
        (with_addresses(*ELSEWHERE), "security.key_file: there is no file cluster.key", "make a key with"),
        (
            TOPOLOGY.replace("[hosts.rollout]", "max_turn = 2\n[hosts.rollout]"),
            "two.toml:12: stages.0.max_turn:",
            "is no",
        ),
    ],
    ids=["another's loopback", "the main host's loopback", "no key", "a wrong file"],
)
def test_what_cannot_go_well_is_refused_in_a_line_before_anything_starts(file, capsys, text, place, said):
    file.write_text(text)
    assert main(["up", "two.toml", "--ssh", "false"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert place in line
    assert said in line


def test_a_name_that_is_no_text_is_one_clear_line(file, capsys):
    """Its bytes arrive as Python keeps them, and no message can hold them."""
    other = file.rename(file.with_name("b\udcff.toml"))
    assert main(["up", str(other)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("b\\udcff.toml' is not UTF-8, and hosts hear of it as text: give it another name")


def test_which_addresses_are_this_machine(monkeypatch):
    addresses = ("127.0.0.1", "localhost", "::1", "198.51.100.1", "no-such-machine.invalid")
    assert [is_here(address) for address in addresses] == [True, True, True, False, False]
    own = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.5", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: own)
    assert is_here("a-name-of-this-machine")


def started(monkeypatch, tmp_path, order):
    """Call ``up-host`` with an order on its standard input; its exit code."""
    (tmp_path / "input").write_bytes(order)
    with (tmp_path / "input").open("rb") as file:
        monkeypatch.setattr("actors.cli.up.Orders", partial(Orders, file.fileno()))
        monkeypatch.setattr(Orders, "follow", lambda _: None)  # the end of the input would stop this process
        return main(["up-host"])


def order_of(release, **changes):
    fields = {"host": "rollout", "main": False, "files": ("far/two.toml",), "overrides": (), "again": "", "key": "k"}
    text = with_addresses(*ELSEWHERE)
    fields |= {"release": release, "texts": {"far/two.toml": text}, "terminal": None} | changes
    return packed(Order(**fields))


def test_another_release_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("actors.cli.up._release", lambda: "2.0")
    assert started(monkeypatch, tmp_path, order_of("1.0")) == 2
    assert "this machine has release 2.0, and `up` was called with 1.0; install the same" in capsys.readouterr().err


def test_a_host_has_its_files_before_it_checks_them(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("actors.cli.up._release", lambda: "1.0")
    assert started(monkeypatch, tmp_path, order_of("1.0", overrides=("run.directory=/proc/1/no",))) == 2
    assert "far/two.toml" in capsys.readouterr().err
    key = tmp_path / "far" / "cluster.key"
    assert (key.read_text(), stat.S_IMODE(key.stat().st_mode)) == ("k", 0o600)


def test_up_host_is_not_for_people(tmp_path, monkeypatch, capsys):
    assert started(monkeypatch, tmp_path, b"hello\n") == 2
    assert "started by `agent-rl up` of the same release; there is nothing to type" in capsys.readouterr().err
    main(["--help"])
    assert "up-host" not in capsys.readouterr().out

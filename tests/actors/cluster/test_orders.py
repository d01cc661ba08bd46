"""What `up` sends to a host, and how the host follows it."""

import os
import signal
import stat

import pytest

from actors.cluster import orders
from actors.cluster.display import HostDisplay
from actors.cluster.orders import OrderError, Orders, place
from agent_rl.messages.pipes import Alive, Kill, Order, Say, Stop, Terminal
from agent_rl.observe.live import LiveView, SteadyConsole
from transport.stream import packed

ORDER = Order(
    release="1",
    host="b",
    main=False,
    files=("two.toml",),
    overrides=("run.seed=3",),
    again="agent-rl up two.toml",
    texts={"two.toml": 'name = "ü"\n'},
    key="secret",
    terminal=Terminal(120, 40, "xterm", "256"),
)


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb", buffering=0) as file:
        yield reading, file
    os.close(reading)


def follow(found):
    """Follow orders to their end; the signals that came, and the texts."""
    came = []
    found.follow(came.append).join(timeout=30)
    return came, list(found.said())


def test_an_order_arrives_as_it_was_sent(pipe):
    reading, writing = pipe
    writing.write(packed(ORDER) + packed(Stop()))
    writing.close()
    found = Orders(reading)
    assert found.first() == ORDER
    assert follow(found) == ([signal.SIGTERM], [])  # what came with the order is not lost; the end kills nothing


@pytest.mark.parametrize("data", [b"", b"\n", packed(ORDER)[:-1], packed(Stop()), b"\0\0\0\1?", b"hello\n"])
def test_what_is_no_order_is_refused(pipe, data):
    reading, writing = pipe
    writing.write(data)
    writing.close()
    with pytest.raises(OrderError, match="started by `agent-rl up` of the same release"):
        Orders(reading).first()


TERM = signal.SIGTERM


@pytest.mark.parametrize(
    ("messages", "closed", "came", "said"),
    [
        ((Alive(), Say("one two"), Alive(), Stop(), Kill()), True, [TERM, TERM, signal.SIGINT], ["one two"]),
        ((), True, [TERM], ["the connection to `agent-rl up` has ended"]),
        ((Say("one"), b"hello\n"), False, [TERM], ["one", "what `agent-rl up` says cannot be read: length: "]),
        ((), False, [TERM], ["nothing has come from `agent-rl up` for 0.05 s"]),
    ],
    ids=["orders", "the end", "what cannot be read", "silence"],
)
def test_orders_and_their_end_are_signals(pipe, monkeypatch, messages, closed, came, said):
    monkeypatch.setattr(orders, "SILENT_SECONDS", 0.05)
    reading, writing = pipe
    writing.write(b"".join(each if isinstance(each, bytes) else packed(each) for each in messages))
    if closed:
        writing.close()
    signals, texts = follow(Orders(reading))
    assert signals == came
    assert [text.startswith(start) for text, start in zip(texts, said, strict=False)] == [True] * len(said)


def test_a_file_is_written_once_and_the_one_before_is_kept(tmp_path):
    path = tmp_path / "folder" / "cluster.key"
    assert place(path, "one", 0o600) == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.stat().st_ino
    assert place(path, "one", 0o600) == ""
    assert path.stat().st_ino == before  # as on a file system that both machines share
    assert place(path, "two", 0o600) == f"{path} was another file here, which is now cluster.key.old"
    assert (path.read_text(), path.with_name("cluster.key.old").read_text()) == ("two", "one")


def test_the_table_of_the_main_host_is_drawn_for_the_terminal_of_up(capsys):
    said = [["b: hello"], [], ["c: the end"]]
    view = LiveView("two", ["learner.0"], ["rl"], 0.0)
    display = HostDisplay(
        view,
        SteadyConsole(),
        lambda _: None,
        said=lambda: said.pop(0),
        main=True,
        terminal=Terminal(70, 30, "xterm", None),
    )
    with display:
        display.refresh(1.0)
        display.refresh(2.0)
    out = capsys.readouterr().out
    assert out.index("b: hello") < out.index("learner.0") < out.index("c: the end")
    assert "\x1b[" in out  # drawn in place, though standard output is no terminal
    assert max(len(line) for line in out.splitlines() if "\x1b" not in line) <= 70


def test_another_host_shows_notices_alone(capsys):
    said = [["one"], []]
    view = LiveView("two", ["learner.0"], ["rl"], 0.0)
    with HostDisplay(
        view, SteadyConsole(), lambda _: None, said=lambda: said.pop(0), main=False, terminal=None
    ) as display:
        display.refresh(100.0)
        display.notice("mine")
    assert capsys.readouterr().out == "one\nmine\n"

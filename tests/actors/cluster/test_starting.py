"""All hosts together: how they start, what is shown of them, and how they end. Shells stand in for the hosts."""

import signal
import sys
from functools import partial

import pytest
import trio

from actors.cluster import starting
from actors.cluster.starting import HostCommand, Hosts
from agent_rl.messages.pipes import Order
from tests.actors.cluster.fake_host import SCRIPT

STARTS = 'read -r order; echo "agent-rl: the host starts" >&2; echo "$order" > order.$0\n'
OBEYS = """
while read -r word text; do
    case $word in
        stop) echo "$0 stops"; exit ${CODE:-75};;
        kill) exit 130;;
        say) echo "said: $text";;
    esac
done
exit 9
"""
IGNORES = "while true; do read -r word || sleep 0.05; done"


@pytest.fixture(autouse=True)
def soon(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("RETRY_SECONDS", "TOLD_SECONDS", "DRAIN_SECONDS", "CUT_SECONDS"):
        monkeypatch.setattr(starting, name, 10.0 if name == "DRAIN_SECONDS" else 0.05)


def order(name, *, main):
    return Order("1", name, main, (), (), again="", texts={}, key=None, terminal=None)


def host(name, script, *, main=False):
    return HostCommand(order(name, main=main), [sys.executable, str(SCRIPT), script, name], f"{name}.example.org")


def two(a, b=STARTS + OBEYS, **signals):
    """As `run`, of a main host and another one."""
    return run(host("a", a, main=True), host("b", b), **signals)


def run(*commands, when=None, signals=()):
    """The exit code of hosts, and what was said on stderr. ``signals`` come one by one when ``when`` waits no more."""
    said = []

    async def received():
        for number in signals:
            await when()
            yield number
        await trio.sleep_forever()

    async def main():
        with trio.fail_after(60):
            return await Hosts(commands, said.append).run(received())

    return trio.run(main), said


async def file(path, name):
    """Wait until a file is there."""
    while not (path / name).exists():  # noqa: ASYNC110 - another process makes it
        await trio.sleep(0.01)


def shown(said, capfd):
    """What was said on stderr, or by the main host, before its table or after."""
    return [line.removeprefix("said: ") for line in (*said, *capfd.readouterr().out.splitlines())]


def test_a_finished_main_host_ends_all_others_and_gives_the_exit_code(tmp_path, capfdbinary):
    assert two(STARTS + "printf 'table\\033[A'; exit 0") == (0, ["b: b stops"])
    assert capfdbinary.readouterr().out == b"table\033[A"  # as it came
    assert (tmp_path / "order.b").read_text() == "b\n"


@pytest.mark.parametrize(("main", "other", "code"), [(1, 75, 1), (75, 75, 0), ("$(kill -KILL $$)", 0, 137)])
def test_the_exit_code_is_that_of_the_main_host(main, other, code):
    assert two(f"{STARTS} exit {main}", f"CODE={other}; {STARTS}{OBEYS}")[0] == code


REFUSED = "ssh: connect to host 10.0.0.9 port 22: Connection refused"
NO_START = "agent-rl: the host b (b.example.org) could not be started (exit code 255); all hosts are stopped"
NO_MORE = "agent-rl: the host b ended with exit code 2; all hosts are stopped"
LOST = "agent-rl: the connection to the main host a (a.example.org) is lost; it stops its actors"


@pytest.mark.parametrize(
    ("main", "other", "code", "lines"),
    [
        (STARTS + OBEYS, f"echo '{REFUSED}' >&2; exit 255", 2, (f"b: {REFUSED}", NO_START, "a stops")),
        (STARTS + OBEYS, f"{STARTS} echo 'b: no room' >&2; exit 2", 2, (NO_MORE, "a stops")),
        (f"{STARTS} exit 255", STARTS + OBEYS, 1, (LOST, "b: b stops")),
    ],
    ids=["it cannot be started", "it fails later", "the connection to the main host"],
)
def test_what_fails_is_named_in_its_own_words_and_stops_all(capfd, main, other, code, lines):
    ended, said = two(main, other)
    assert ended == code
    found = shown(said, capfd)
    assert all(any(line.startswith(each) for line in found) for each in lines), found


def test_a_program_that_is_not_there_is_named():
    code, said = run(HostCommand(order("a", main=True), ["/no/such/ssh"], place="here"))
    assert (code, said[0]) == (2, "a: /no/such/ssh: No such file or directory")


def test_an_interrupt_stops_the_main_host_which_tells_the_others(tmp_path, capfd):
    assert two(STARTS + OBEYS, when=partial(file, tmp_path, "order.b"), signals=[signal.SIGINT]) == (0, ["b: b stops"])
    assert capfd.readouterr().out == "a stops\n"


def test_a_second_interrupt_kills_all(tmp_path):
    ignores = f"{STARTS} while read -r word text; do [ $word != kill ] || exit 130; done"
    assert two(ignores, ignores, when=partial(file, tmp_path, "order.b"), signals=[signal.SIGINT] * 2)[0] == 130


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ("exit 255", "the connection to b.example.org is lost"),
        ("kill -KILL $$", "it was killed by SIGKILL"),  # a host that dies is none that fails: the run goes on
    ],
)
def test_a_host_whose_connection_is_lost_or_that_was_killed_is_started_again(tmp_path, capfd, ends, why):
    lost = f"{STARTS} [ -e again ] && {{ touch back; {OBEYS} }}; touch again; {ends}"
    code, said = two(STARTS + OBEYS, lost, when=partial(file, tmp_path, "back"), signals=[signal.SIGINT])
    assert code == 0
    assert f"b: {why}; it is started again in 0.05 s" in shown(said, capfd)


def test_an_interrupt_before_the_main_host_begins_has_the_exit_code_of_an_interrupt(tmp_path):
    early = "read -r order; touch early; trap 'exit 75' TERM; sleep 60 & wait"
    when = partial(file, tmp_path, "early")
    assert run(host("a", early, main=True), when=when, signals=[signal.SIGINT])[0] == 130


def test_a_host_that_does_not_answer_is_cut_off(monkeypatch):
    monkeypatch.setattr(starting, "DRAIN_SECONDS", 0.2)
    assert two(f"{STARTS} exit 0", STARTS + IGNORES) == (
        0,
        [
            "agent-rl: the host b does not stop in order; its actors are killed",
            "agent-rl: the host b does not answer; look at it, and at the network",
        ],
    )


def test_a_sign_of_life_comes_now_and_then(monkeypatch, tmp_path):
    monkeypatch.setattr(starting, "BEAT_SECONDS", 0.02)
    counts = f'{STARTS} for i in 1 2 3; do read -r line && [ -z "$line" ] || exit 3; done; exit 0'
    assert run(host("a", counts, main=True))[0] == 0


@pytest.mark.real_time
async def test_hosts_end_with_the_process_that_started_them(tmp_path):
    """The kernel closes the pipes of a process that dies, however it dies."""
    script = f"""
import sys, trio
from actors.cluster.starting import HostCommand, Hosts
from agent_rl.messages.pipes import Order
async def nothing():
    await trio.sleep_forever()
    yield 0
order = Order("1", "a", True, (), (), again="", texts={{}}, key=None, terminal=None)
a = HostCommand(order, [sys.executable, {str(SCRIPT)!r}, {STARTS + "cat; touch gone"!r}, "a"], "here")
trio.run(Hosts([a], print).run, nothing())
"""
    with trio.fail_after(60):
        process = await trio.lowlevel.open_process([sys.executable, "-c", script])
        await file(tmp_path, "order.a")
        process.kill()
        await process.wait()
        await file(tmp_path, "gone")

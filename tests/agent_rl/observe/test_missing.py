"""Notices about links that lead to nobody."""

from agent_rl.figures import ActorFigures
from agent_rl.messages import ActorStatus
from agent_rl.observe.silence import Missing

GONE = "none of tool_executor.0 is heard"


def status(actor: str, missing: str) -> ActorStatus:
    return ActorStatus(actor, "generator", "running", "", ActorFigures(), "", 0.0, 0.0, (), missing)


def test_actors_that_miss_the_same_peers_are_one_notice_and_so_is_their_return() -> None:
    missing = Missing()
    assert missing.heard(status("gen.0", "")) == []
    (notice,) = missing.heard(status("gen.0", GONE))
    assert notice.text == f"gen.0 waits: {GONE}"
    assert missing.heard(status("gen.0", GONE)) == []
    assert missing.heard(status("gen.1", GONE)) == []
    assert missing.heard(status("gen.0", "")) == []
    (notice,) = missing.heard(status("gen.1", ""))
    assert notice.text == "gen.1 goes on"

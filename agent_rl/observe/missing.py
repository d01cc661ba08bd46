"""Says when actors have nobody left to send to, and when they have somebody again. Statuses in, notices out."""

from __future__ import annotations

from agent_rl.messages import ActorStatus
from agent_rl.observe.silence import Notice


class Missing:
    """The texts of ``ActorStatus.missing``, each with the actors that say it. A text is a notice once."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def heard(self, status: ActorStatus) -> list[Notice]:
        """Take in a status."""
        before = self._said.pop(status.actor, "")
        known = set(self._said.values())
        if status.missing:
            self._said[status.actor] = status.missing
        if status.missing == before:
            return []
        notices = []
        if before and before not in known:
            notices.append(Notice(f"{status.actor} goes on", status.actor))
        if status.missing and status.missing not in known:
            notices.append(Notice(f"{status.actor} waits: {status.missing}", status.actor))
        return notices

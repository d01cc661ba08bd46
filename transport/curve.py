"""The cluster's key pair, and the admission of clients that hold it (ZeroMQ's ZAP, RFC 27)."""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = b"cluster"


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """One CURVE key pair that all processes of a cluster share, in Z85 (40 characters each).

    Every node uses the pair as server key and as client key. A process that has the keys belongs to the cluster.
    """

    public: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        for name, key in (("public", self.public), ("secret", self.secret)):
            if len(key) != 40 or not key.isascii():
                raise ValueError(f"the {name} key is not a Z85 key of 40 characters")

    @classmethod
    def generate(cls) -> CurveKeys:
        """A new pair, from the system's randomness."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    @classmethod
    def load(cls, path: Path) -> CurveKeys:
        """Read a file of ``save``. Raises PermissionError when other users may read it, ValueError for another file."""
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise PermissionError(f"{path} may be read by others (mode {mode:04o}): run chmod 600 {path}")
        lines = path.read_text().split()
        if len(lines) != 2:
            raise ValueError(f"{path} holds no key pair")
        return cls(*lines)

    def save(self, path: Path) -> None:
        """Write the pair to a new file that only its owner may read. Raises FileExistsError."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self.text())

    def text(self) -> str:
        """The content of a file of ``save``."""
        return f"{self.public}\n{self.secret}\n"


class Admission:
    """Answers ZAP requests: admits only clients with the cluster's public key."""

    def __init__(self, keys: CurveKeys, on_refused: Callable[[str], None]) -> None:
        self._key = z85.decode(keys.public)
        self._on_refused = on_refused

    def answer(self, request: Sequence[bytes]) -> list[bytes] | None:
        """The reply to a request; None when the frames are not a ZAP request."""
        if len(request) < 6 or request[0] != b"1.0":
            return None
        number, address, mechanism, credentials = request[1], request[3], request[5], request[6:]
        admitted = mechanism == b"CURVE" and len(credentials) == 1 and hmac.compare_digest(credentials[0], self._key)
        if not admitted:
            self._on_refused(address.decode(errors="replace").removeprefix("::ffff:"))
        status = (b"200", b"OK", b"member") if admitted else (b"400", b"not a member of this cluster", b"")
        return [b"1.0", number, *status, b""]

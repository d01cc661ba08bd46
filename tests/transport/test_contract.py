"""Both networks fulfil the contract: memory in virtual time, ZeroMQ over ipc in short real time."""

import tempfile
from pathlib import Path

import pytest

from tests.transport.contract.announce import AnnounceContract
from tests.transport.contract.call import CallContract
from tests.transport.contract.liveness import LivenessContract
from tests.transport.contract.push import PushContract
from transport import Limits, ZmqNetwork
from transport.memory import MemoryNetwork


class LinkContract(PushContract, CallContract, AnnounceContract, LivenessContract):
    """The whole contract: derive from it, and define the network."""


class TestMemory(LinkContract):
    def network(self, _names):
        return MemoryNetwork()

    def address(self, name):
        return name


@pytest.mark.real_time
class TestZmq(LinkContract):
    limits = Limits(heartbeat_interval=0.05, silent_after=0.6, lost_after=1.2, credit_report_after=0.2, linger=0.2)
    ways_to_cut = ((("a", "b"),),)  # the other network cuts all

    @pytest.fixture(autouse=True)
    def _directory(self):
        # not tmp_path: a socket's path is short
        with tempfile.TemporaryDirectory(prefix="link") as directory:
            self.directory = Path(directory)
            yield
            assert not list(self.directory.iterdir())  # every socket file was removed

    def network(self, names):
        return ZmqNetwork({name: f"ipc://{self.directory / name}" for name in names})

    def address(self, name):
        return f"ipc://{self.directory / name}"

"""The contract of every network, as a suite of tests: derive from LinkContract and define how to make the network.

::

    class TestMyNetwork(LinkContract):
        def network(self, names): return MyNetwork(...)
        def run(self, main): trio.run(main)

The helpers can be used separately: ``World`` starts and kills nodes, ``FaultyNetwork`` loses and doubles frames of any
network, ``Recorder`` is a handler that stores its messages. The tests are in ``transport/contract``.
"""

from __future__ import annotations

from transport.contract.announce import AnnounceContract
from transport.contract.base import (
    REGISTRY,
    Block,
    ContractBase,
    FaultyNetwork,
    Item,
    Question,
    Recorder,
    Running,
    Unheard,
    World,
    raises,
)
from transport.contract.call import CallContract
from transport.contract.liveness import LivenessContract
from transport.contract.push import PushContract


class LinkContract(PushContract, CallContract, AnnounceContract, LivenessContract):
    """The whole contract."""


__all__ = [
    "REGISTRY",
    "AnnounceContract",
    "Block",
    "CallContract",
    "ContractBase",
    "FaultyNetwork",
    "Item",
    "LinkContract",
    "LivenessContract",
    "PushContract",
    "Question",
    "Recorder",
    "Running",
    "Unheard",
    "World",
    "raises",
]

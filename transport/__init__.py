"""Links between processes: ZeroMQ and msgpack on trio, and the same in memory. This package knows no RL.

There are three kinds of link: *push* (one way, at least once, with credit and acknowledgement), *call* (request and
reply with a deadline) and *announce* (the newest value wins). See ``docs/architecture.md``.
"""

from transport.codec import Registry, decode, encode
from transport.curve import CurveKeys, turn_away
from transport.errors import (
    BindError,
    CallFailed,
    CallRefused,
    CallTimeout,
    CreditWait,
    DecodeError,
    EncodeError,
    IncarnationRefused,
    InsecureLink,
    KeyRefused,
    LinkEvent,
    MalformedFrames,
    MessageRejected,
    PeerBack,
    PeerDraining,
    PeerGone,
    PeerLeft,
    PeerLost,
    PeerReplaced,
    PeerSilent,
    TransportError,
    Unauthenticated,
    UnknownPeer,
)
from transport.handles import AnnounceLink, CallLink, PushLink
from transport.inbound import Delivery, DeliveryKind, Handler, current_delivery
from transport.limits import Limits
from transport.network import Network, Port
from transport.node import Node
from transport.zeromq import ZmqNetwork, keep_freed_memory

__all__ = ["AnnounceLink", "CallLink", "CurveKeys", "Limits", "Network", "Node", "Port", "PushLink", "ZmqNetwork"]
__all__ += ["Delivery", "DeliveryKind", "Handler", "Registry", "current_delivery", "decode", "encode"]
__all__ += ["BindError", "CallFailed", "CallRefused", "CallTimeout", "DecodeError", "EncodeError", "InsecureLink"]
__all__ += ["PeerLost", "TransportError", "UnknownPeer"]
__all__ += ["CreditWait", "IncarnationRefused", "KeyRefused", "LinkEvent", "MalformedFrames", "MessageRejected"]
__all__ += ["PeerBack", "PeerDraining", "PeerGone", "PeerLeft", "PeerReplaced", "PeerSilent", "Unauthenticated"]
__all__ += ["keep_freed_memory", "turn_away"]

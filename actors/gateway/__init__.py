"""The gateway: agents ask it for turns by HTTP, and it asks the generators that have their rollouts."""

from actors.gateway.gateway import Gateway, GatewaySettings

__all__ = ["Gateway", "GatewaySettings"]

"""Processes: the entry of an actor, the supervisor of a host, and how hosts end a run together."""

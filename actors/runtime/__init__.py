"""Processes: the entry point of an actor, the supervisor of a host, and how several hosts end a run together."""

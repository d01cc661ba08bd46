"""Engines: they write the tokens of a rollout generator."""

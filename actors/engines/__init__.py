"""Engines: who writes the tokens of a rollout generator."""

"""Proof, before anything starts, that a topology is sound."""

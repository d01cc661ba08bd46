"""Boxed answers: what a rollout answers, and whether that equals the ground truth."""

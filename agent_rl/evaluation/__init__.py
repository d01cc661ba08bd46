"""Evaluate a model on problems in files: pass@1, pass@k and maj@k with intervals, and compare two results."""

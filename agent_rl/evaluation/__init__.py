"""Evaluation of a model on problems in files: pass@1, pass@k and maj@k with intervals, and a paired comparison of two results."""

"""The contract of links as tests. Import it from ``transport/testing.py``."""

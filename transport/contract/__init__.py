"""The contract of links as tests; ``transport/testing.py`` is the door to it."""

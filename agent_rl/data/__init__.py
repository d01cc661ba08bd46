"""Preparing data: rows in, rows out, one at a time, with a count of what became of them."""

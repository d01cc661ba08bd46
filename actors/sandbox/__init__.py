"""The sandbox of model code: warm interpreters that fork one isolated child for each call, and their trio client.

This package imports nothing: the warm interpreters load it and must stay small.
"""

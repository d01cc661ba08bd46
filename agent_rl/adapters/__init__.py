"""Environments of other projects: a class for actors, and a script for an interpreter that has the project."""

from pathlib import Path

FOLDER = str(Path(__file__).parent)

"""The code of warm interpreters and their children. Standard library only."""

"""The quickstart's task: arithmetic that a tiny model can only solve with its tool."""

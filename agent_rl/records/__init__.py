"""What a run leaves on disk: journal, rows of metrics, summary, and whether they agree."""

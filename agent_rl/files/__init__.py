"""Files on disk: atomic writes, one kind of error for each task, removal of unused directories."""

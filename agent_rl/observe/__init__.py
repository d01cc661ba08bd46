"""What people and programs see of a run: live table, metrics, silence, report."""

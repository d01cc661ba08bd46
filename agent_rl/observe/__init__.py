"""What people and programs see of a run: live table, metrics, notices of silent actors, report."""

"""What becomes of a group: judged, selected, made part of a step, dropped for a named reason."""

"""The filter's parts: verdicts, and what a restarted filter reads back from its journal."""

"""How the hosts of a run are started over ssh, shown and stopped together."""

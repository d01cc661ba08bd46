"""The parts of bench_rehearsal: a generator whose engine writes long scripted turns, and what actors use."""

"""Parts of bench_policies."""

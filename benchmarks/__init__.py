"""What Stethos costs, measured: `python -m benchmarks` from the repository's root."""

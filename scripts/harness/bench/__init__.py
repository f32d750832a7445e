"""Code of the benchmarks, the demo and the figures."""

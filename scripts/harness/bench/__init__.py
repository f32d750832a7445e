# SPDX-License-Identifier: MIT OR Apache-2.0
"""Code of the benchmarks, the demo and the figures."""

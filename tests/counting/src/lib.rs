//! A libcuda whose launch only counts, for cost benchmarks.

"""What the benchmarks share: methods, problems, data, models, timing and reports."""

"""The rivals' own benchmarks: gap and feasibility against seconds, ours and theirs."""

"""Section 5 of the paper: networks with orthonormal kernels and an l1 term."""

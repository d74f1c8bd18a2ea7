"""The mathematics of arrays of matrices: products, the guarded step, its parts."""

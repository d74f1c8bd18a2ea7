"""`cdx.minimize` against other solvers, problem by problem."""

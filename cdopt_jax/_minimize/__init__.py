"""The solver behind `cdopt_jax.minimize`.

A call goes through `minimize` (options), `problem` (what the methods see), `run` (the
host's side of a run), `programs` (what is compiled, and kept) and `loop` (what is
compiled); each method has a file of its own.
"""

"""The solver behind `cdopt_jax.minimize`.

A call goes through `minimize` (options), `setup` (what is static, and the arrays),
`phased_run` and `run` (the host's side of a run), `programs` (what is compiled, and
kept) and `loop` (what is compiled). Inside a trace it goes through `implicit` and
`traced` instead. A `problem` is what the methods see: `points`, the objective, the
`leaves` of the parameters and the `manifold`. Each method has a file of its own.
"""

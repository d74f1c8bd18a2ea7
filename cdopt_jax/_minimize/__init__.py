"""The solver behind `cdopt_jax.minimize`: a landscape, methods on it, and a driver."""

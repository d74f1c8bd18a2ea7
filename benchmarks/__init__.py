"""Experiments with `cdopt_jax`: data, models, methods behind one signature, a runner.

``python -m benchmarks.ocnn`` is the experiment that needs no arguments.
"""

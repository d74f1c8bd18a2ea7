"""Benchmarks of `cdopt_jax`, in folders by the question that they answer.

``python -m benchmarks`` lists the commands, ``python -m benchmarks NAME`` runs one, and
``python -m benchmarks.ocnn`` is the experiment that needs no arguments.
"""

"""What one would do without the constraint."""

import optax

from benchmarks.methods.signature import Method, Task


def adam(task: Task, *, learning_rate: float = 1e-2) -> Method:
    """Adam on the same objective, blind to the constraint."""
    return Method(
        transform=optax.with_extra_args_support(
            optax.adam(task.schedule(learning_rate))
        ),
        point=lambda params: params,
        differentiates_regularizer=True,
        minimises="φ + γ‖w‖₁ unconstrained, subgradient",
        settings={"learning_rate": learning_rate},
    )

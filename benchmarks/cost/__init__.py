"""What does it cost: a step, its products, and a whole training step."""

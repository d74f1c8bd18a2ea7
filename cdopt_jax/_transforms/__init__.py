"""The gradient transformations, one in each file."""

"""Unitary matrices: four problems with known optima, ours and the rivals'."""

"""Muon and its kind on constrained matrices: three tasks, ours and the rivals'."""

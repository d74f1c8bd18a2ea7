"""From a tree of parameters to its constrained leaves as matrices, and back."""

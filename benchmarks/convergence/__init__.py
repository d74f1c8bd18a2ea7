"""Does it converge as well: one runner, and five questions that are put to it."""

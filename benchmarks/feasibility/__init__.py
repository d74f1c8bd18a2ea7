"""Does it stay feasible: against every optimiser, rate and noise, and in each dtype."""

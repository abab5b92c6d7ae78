"""Value types and pure functions that every other part shares. Depends on NumPy and pymoo only."""

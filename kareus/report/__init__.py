"""What a user sees of the results: figures of comparison, data frames, charts, numbers in words."""

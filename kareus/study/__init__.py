"""A study from request to stored frontiers: measure, search, compose, solve, compare."""

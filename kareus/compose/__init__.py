"""From partition options to iteration plans: instructions, the time-cost solver, baselines.

`instruction` sums partitions into instructions, `iteration` chooses one option per instruction for
every deadline, `baselines` does both for all four methods, `limits` are what users ask of a plan,
`constraints` plans within them, `selection` picks one plan of a frontier.
"""

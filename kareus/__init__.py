"""Plan and run large-model training for less energy and time: the Kareus engine."""

import os

# The searches' matrices are small: threads of the linear algebra only wait for one another (a
# study took 25 times as long on two cores). It must be said before NumPy and SciPy are loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

__version__ = "0.1.0"

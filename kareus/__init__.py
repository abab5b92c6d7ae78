"""Plan and run large-model training for less energy and time: the Kareus engine."""

__version__ = "0.1.0"

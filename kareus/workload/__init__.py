"""From a model and a parallelism to partitions: what is measured, searched and composed."""

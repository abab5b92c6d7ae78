"""The simulator: time and energy of a partition from a calibrated model of the GPU.

`parameters` says what is calibrated, `terms` holds the physics, `model` puts a partition together,
`calibration` is one GPU's table, `source` gives measurements, `calibrate` makes tables from
recorded data and `validate` checks them against it.
"""

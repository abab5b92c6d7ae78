"""GPUs as they are: clocks, energy, and what keeps a machine from being measured.

- `nvml`, `visible`: the devices, their readings, which of them CUDA shows
- `clocks`, `registry`, `watchdog`: clocks locked, known to be locked, and released whatever happens
- `energy`: energy of a window, from the GPU's counter; of a processor's packages
- `preflight`: checks before any measurement, with remedies

Units are converted here and nowhere else: MHz, seconds, joules, watts, degrees Celsius.
"""

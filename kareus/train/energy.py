"""Energy of a rank's GPU over a step, from its counter; None where there is none."""

import logging

from kareus.device.nvml import Device, visible_devices
from kareus.errors import DeviceError

_LOGGER = logging.getLogger(__name__)


class EnergyMeter:
    """Reads a GPU's energy counter.

    Args:
        device: The GPU; None for no reading.
    """

    def __init__(self, device: Device | None) -> None:
        self._device = device

    @staticmethod
    def of_gpu(index: int | None) -> "EnergyMeter":
        """Return the meter of a visible GPU.

        Args:
            index: Which of those this process sees; None for a meter that reads nothing.
        """
        if index is None:
            return EnergyMeter(None)
        try:
            device = visible_devices()[index]
            device.energy_j()
        except (DeviceError, IndexError) as error:
            _LOGGER.warning("energy is not measured: %s", error)
            return EnergyMeter(None)
        return EnergyMeter(device)

    def read_j(self) -> float | None:
        """Return the counter in joules; None without one."""
        if self._device is None:
            return None
        try:
            return self._device.energy_j()
        except DeviceError:
            _LOGGER.exception("energy is not measured from here on")
            self._device = None
            return None

    def since_j(self, before_j: float | None) -> float | None:
        """Return the energy since an earlier reading; None where it was not measured.

        The counter moves about every 0.1 s: a window in which it did not was too short.
        """
        now_j = self.read_j()
        if now_j is None or before_j is None or now_j <= before_j:
            return None
        return now_j - before_j

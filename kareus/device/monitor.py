"""Watches one GPU over a measuring window: energy, achieved clock, temperature, throttling.

A thread samples the device; the energy counter is read at the window's two ends. What a GPU does
not offer is None, with the reason among the flags.
"""

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from kareus.device.energy import (
    DISAGREEMENT,
    EnergySource,
    counter_uncertainty_j,
    disagreement,
    integrate_power,
)
from kareus.device.nvml import Device, MissingReadingError
from kareus.errors import DeviceError

T = TypeVar("T")
_INTERVAL_S = 0.05
_MIN_COMPARED_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowReading:
    """What a window of one GPU read.

    Attributes:
        duration_s: Its length.
        energy_j: Energy; None where it could not be measured.
        energy_spread_j: Standard deviation the counter's steps cause; None without counter.
        energy_source: What the energy was read from.
        power_integral_j: The integral of sampled power, for comparison; None without it.
        achieved_clock_mhz: Median of the SM clock; None without a reading.
        lowest_clock_mhz: Its minimum; None likewise.
        temperature_c: Temperature at the end; None without a reading.
        start_temperature_c: Temperature at the start; None likewise.
        throttle_reasons: Everything that held the clock down in it.
        flags: What is doubtful, in words.
    """

    duration_s: float
    energy_j: float | None
    energy_spread_j: float | None
    energy_source: EnergySource
    power_integral_j: float | None
    achieved_clock_mhz: float | None
    lowest_clock_mhz: float | None
    temperature_c: float | None
    start_temperature_c: float | None
    throttle_reasons: tuple[str, ...]
    flags: tuple[str, ...]


class DeviceMonitor:
    """Reads a GPU between `begin` and `end`; may be used again.

    Args:
        device: The GPU.
        interval_s: Between two samples.
    """

    def __init__(self, device: Device, *, interval_s: float = _INTERVAL_S) -> None:
        self._device = device
        self._interval_s = interval_s
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start a window; returns once the counter is read."""
        assert self._thread is None, "a window is open"
        self._stop = threading.Event()
        self._power: list[tuple[float, float]] = []
        self._clocks_mhz: list[float] = []
        self._reasons: list[str] = []
        self._missing: dict[str, str] = {}
        self._start_temperature_c = self._try("temperature", self._device.temperature_c)
        self._thread = threading.Thread(target=self._sample, name="gpu-monitor", daemon=True)
        self._start_j = self._try("energy", self._device.energy_j)
        self._start_s = time.monotonic()
        self._thread.start()

    def end(self) -> WindowReading:
        """End the window and return what it read."""
        assert self._thread is not None, "no window is open"
        end_j = self._try("energy", self._device.energy_j)
        end_s = time.monotonic()
        self._stop.set()
        self._thread.join()
        self._thread = None
        temperature_c = self._try("temperature", self._device.temperature_c)
        duration_s = end_s - self._start_s
        integral_j = integrate_power(self._power)
        if integral_j is not None:
            # Samples begin and end a little inside the window.
            integral_j *= duration_s / (self._power[-1][0] - self._power[0][0])
        energy_j, source, spread_j = self._energy(end_j, integral_j, duration_s)
        flags = [f"{what} not read: {why}" for what, why in self._missing.items()]
        if (
            source is EnergySource.COUNTER
            and energy_j is not None
            and integral_j is not None
            and duration_s >= _MIN_COMPARED_S
        ):
            difference = disagreement(energy_j, integral_j)
            if difference > DISAGREEMENT:
                flags.append(
                    f"energy counter and integrated power disagree by {difference:.0%} "
                    f"({energy_j:.1f} J, {integral_j:.1f} J)"
                )
        return WindowReading(
            duration_s=duration_s,
            energy_j=energy_j,
            energy_spread_j=spread_j,
            energy_source=source,
            power_integral_j=integral_j,
            achieved_clock_mhz=statistics.median(self._clocks_mhz) if self._clocks_mhz else None,
            lowest_clock_mhz=min(self._clocks_mhz, default=None),
            temperature_c=temperature_c,
            start_temperature_c=self._start_temperature_c,
            throttle_reasons=tuple(self._reasons),
            flags=tuple(flags),
        )

    def _energy(
        self, end_j: float | None, integral_j: float | None, duration_s: float
    ) -> tuple[float | None, EnergySource, float | None]:
        """The window's energy, its source and spread: the counter, where there is one."""
        if self._start_j is not None and end_j is not None:
            energy_j = end_j - self._start_j
            if energy_j > 0:
                spread_j = counter_uncertainty_j(energy_j / duration_s)
                return energy_j, EnergySource.COUNTER, spread_j
            self._missing["energy"] = (
                f"the counter moved by {energy_j:g} J in {duration_s:.2f} s; use a longer window"
            )
            return None, EnergySource.NOT_MEASURED, None
        if integral_j is not None:
            return integral_j, EnergySource.POWER, None
        return None, EnergySource.NOT_MEASURED, None

    def _sample(self) -> None:
        """Fill the lists until the window ends."""
        device = self._device
        while True:
            moment_s = time.monotonic()
            power_w = self._try("power", device.power_w)
            if power_w is not None:
                self._power.append((moment_s, power_w))
            clock_mhz = self._try("clock", device.clock_mhz)
            if clock_mhz is not None:
                self._clocks_mhz.append(clock_mhz)
            for reason in self._try("throttle reasons", device.throttle_reasons) or ():
                if reason not in self._reasons:
                    self._reasons.append(reason)
            if self._stop.wait(max(0.0, moment_s + self._interval_s - time.monotonic())):
                return

    def _try(self, what: str, read: Callable[[], T]) -> T | None:
        """A reading, or None and a note why there is none."""
        try:
            return read()
        except MissingReadingError:
            self._missing[what] = "not offered by this GPU"
        except DeviceError as error:
            self._missing[what] = str(error)
        return None

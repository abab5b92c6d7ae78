"""The process that sets one GPU's clock and watches the GPU meanwhile.

    training process ──4 bytes per request──> this process ──NVML──> GPU
                                                   └──> log: what was set when, what the GPU read

Of several requests that wait only the newest is set: an instruction that is over needs no clock.
End of file on its input means the training process has ended: the clock is released.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from kareus.device.clocks import ClockKeeper
from kareus.device.nvml import Device, visible_devices
from kareus.errors import DeviceError, KareusError
from kareus.train.clocks import REQUEST

SAMPLE_S = 0.1
_INPUT, _OUTPUT = 0, 1


class ClockLog:
    """Writes lines from two threads.

    Args:
        file: Where to.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def write(self, **values: object) -> None:
        """Write a line."""
        with self._lock:
            self._file.write(json.dumps({"time_ns": time.monotonic_ns(), **values}) + "\n")


def serve(device: Device, keeper: ClockKeeper, clock_mhz: int, log: ClockLog) -> None:
    """Set clocks as they are asked for until the input ends.

    Args:
        device: The GPU.
        keeper: Holds its clock.
        clock_mhz: The first clock.
        log: Where to write.

    Raises:
        DeviceError: A clock cannot be set.
    """
    locked_mhz = _lock(device, keeper, clock_mhz, log)
    os.write(_OUTPUT, b"ready\n")
    rest = b""
    while received := os.read(_INPUT, 4096):
        rest += received
        whole = len(rest) // REQUEST.size * REQUEST.size
        requests = [mhz for (mhz,) in REQUEST.iter_unpack(rest[:whole])]
        rest = rest[whole:]
        for superseded in requests[:-1]:
            log.write(event="superseded", clock_mhz=superseded)
        if requests and requests[-1] != locked_mhz:
            locked_mhz = _lock(device, keeper, requests[-1], log)
        elif requests:
            log.write(event="kept", clock_mhz=locked_mhz)


def sample(device: Device, log: ClockLog, stop: threading.Event) -> None:
    """Write down what the GPU reads until told to stop; what it does not offer is null.

    In a thread of its own: no clock waits for a reading.
    """
    while not stop.is_set():
        readings: dict[str, object] = {}
        for name, read in (
            ("clock_mhz", device.clock_mhz),
            ("power_w", device.power_w),
            ("temperature_c", device.temperature_c),
            ("throttle_reasons", device.throttle_reasons),
        ):
            try:
                readings[name] = read()
            except DeviceError:
                readings[name] = None
        log.write(event="sample", **readings)
        stop.wait(SAMPLE_S)


def _lock(device: Device, keeper: ClockKeeper, clock_mhz: int, log: ClockLog) -> int:
    begin_ns = time.monotonic_ns()
    keeper.lock(clock_mhz, only=device)
    log.write(event="set", clock_mhz=clock_mhz, took_s=(time.monotonic_ns() - begin_ns) / 1e9)
    return clock_mhz


def main() -> int:
    """Run the process; its standard input carries the requests."""
    parser = argparse.ArgumentParser(prog="python -m kareus.train.clock_process")
    parser.add_argument("--device", type=int, required=True)
    parser.add_argument("--clock", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    # Ctrl-C ends the training process, and that ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        devices = visible_devices()
        if not 0 <= options.device < len(devices):
            raise DeviceError(
                f"process {options.device} of this node has no GPU of its own: {len(devices)} are "
                "visible; start one process per GPU"
            )
        device = devices[options.device]
        with (
            options.log.open("a", encoding="utf-8", buffering=1) as file,
            ClockKeeper([device]) as keeper,
        ):
            log, stop = ClockLog(file), threading.Event()
            sampler = threading.Thread(target=sample, args=(device, log, stop), daemon=True)
            sampler.start()
            try:
                serve(device, keeper, options.clock, log)
            finally:
                stop.set()
                sampler.join()
            keeper.release()
            log.write(event="released")
    except KareusError as error:
        with contextlib.suppress(OSError):  # nobody may be left to read it
            os.write(_OUTPUT, json.dumps({"error": str(error)}).encode() + b"\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Which GPUs `CUDA_VISIBLE_DEVICES` shows, in all the forms it is written.

CUDA numbers the devices it shows from 0 in the order of the list. A list that cannot be mapped to
whole GPUs is refused: CUDA itself would silently show fewer devices than were named.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kareus.errors import DeviceError

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
_BUS_ORDER = "PCI_BUS_ID"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceIdentity:
    """What names a GPU.

    Attributes:
        index: Its number for the driver (order of the PCI bus), from 0.
        uuid: Its unique name, `GPU-...`.
        name: The model.
    """

    index: int
    uuid: str
    name: str


def select_visible(
    text: str | None, devices: Sequence[DeviceIdentity], *, order: str | None = None
) -> tuple[DeviceIdentity, ...]:
    """Return the GPUs a value of `CUDA_VISIBLE_DEVICES` shows, in CUDA's numbering.

    Args:
        text: The value; None if it is not set (all GPUs).
        devices: The machine's GPUs in the order of the driver.
        order: The value of `CUDA_DEVICE_ORDER`; None if it is not set.

    Raises:
        DeviceError: It shows no GPU, names one that does not exist, or names part of a GPU (MIG).
    """
    if text is None:
        _check_order(devices, order, "it is not set")
        return tuple(devices)
    shown: list[DeviceIdentity] = []
    entries = [entry.strip() for entry in text.split(",")]
    by_number = False
    for position, entry in enumerate(entries):
        if not entry:
            if any(entries[position:]):
                raise _refused(text, f"entry {position} is empty", "remove the extra comma")
            break  # A trailing comma.
        if entry == "-1":
            break  # The documented end of the list.
        by_number |= entry.isdecimal()
        device = _device_of(entry, text, devices)
        if device in shown:
            raise _refused(text, f"it names GPU {device.index} twice", "name each GPU once")
        shown.append(device)
    if not shown:
        raise _refused(text, "it hides every GPU", "unset it, or list GPUs such as 0,1")
    if by_number:
        _check_order(devices, order, "it uses numbers")
    return tuple(shown)


def _device_of(entry: str, text: str, devices: Sequence[DeviceIdentity]) -> DeviceIdentity:
    """The GPU an entry names."""
    if entry.upper().startswith("MIG"):
        raise _refused(
            text,
            f"{entry} is a MIG instance, whose clock and energy are those of the whole GPU",
            "disable MIG (nvidia-smi -mig 0) and name whole GPUs",
        )
    if entry.upper().startswith("GPU-"):
        matches = [d for d in devices if d.uuid.lower().startswith(entry.lower())]
        if len(matches) == 1:
            return matches[0]
        what = "no GPU" if not matches else f"{len(matches)} GPUs"
        raise _refused(text, f"{entry} names {what} of this machine", "see nvidia-smi -L")
    if not re.fullmatch(r"\d+", entry):
        raise _refused(text, f"{entry!r} is neither a number nor a UUID", "see nvidia-smi -L")
    if int(entry) >= len(devices):
        raise _refused(
            text, f"there is no GPU {int(entry)}", f"this machine has 0 to {len(devices) - 1}"
        )
    return devices[int(entry)]


def _check_order(devices: Sequence[DeviceIdentity], order: str | None, how: str) -> None:
    """Refuse numbers where CUDA's order may differ from the driver's."""
    if len({device.name for device in devices}) > 1 and order != _BUS_ORDER:
        raise DeviceError(
            f"{VISIBLE_VARIABLE}: {how}, but this machine mixes GPU models, which CUDA orders by "
            f"speed: set {ORDER_VARIABLE}={_BUS_ORDER}, or name GPUs by UUID"
        )


def _refused(text: str, reason: str, remedy: str) -> DeviceError:
    shown = text if len(text) <= 80 else text[:77] + "..."
    return DeviceError(f"{VISIBLE_VARIABLE}={shown!r}: {reason}; {remedy}")

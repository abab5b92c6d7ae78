"""What to check before measuring: each thing with its state, and the remedy where it lacks.

Checks that change a clock put it back at once. Nothing here touches a GPU that somebody else holds.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kareus.device.clocks import CLOCK_TOLERANCE_MHZ, ClockKeeper, settled_claims, wait_settled
from kareus.device.nvml import (
    LOCK_REMEDY,
    ClockPermissionError,
    Device,
    MissingReadingError,
    driver_version,
    uses_daemon,
    visible_devices,
)
from kareus.device.registry import ClockClaim, ClockRegistry, ProcessId
from kareus.errors import DeviceError

_RELEASE = "kareus doctor --release-clocks"
_COUNTER_WAIT_S = 1.0
_POLL_S = 0.02


class CheckState(StrEnum):
    """How a check went: `missing` stops a measurement, `warning` does not."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What, in a few words.
        state: How it went.
        found: What was found.
        remedy: What to do about it; None where nothing need be done.
    """

    name: str
    state: CheckState
    found: str
    remedy: str | None = None


def preflight(
    *,
    num_gpus: int | None = None,
    model: str | None = None,
    clocks_mhz: Sequence[int] = (),
    static_power_w: float | None = None,
    static_power_measured: bool = False,
    set_clocks: bool = True,
    settle_s: float = 2.0,
    registry: ClockRegistry | None = None,
) -> tuple[Check, ...]:
    """Check everything a measurement on this machine's GPUs needs.

    Sets, reads back and resets the clock of every GPU that nobody holds.

    Args:
        num_gpus: GPUs needed; None for any number.
        model: The GPU the workload was planned for, as the catalogue names it; None for any.
        clocks_mhz: Clocks to be measured; empty for none in particular.
        static_power_w: Power drawn while blocked on communication; None if nobody knows.
        static_power_measured: False where that is an assumption.
        set_clocks: Whether to try setting clocks; if not, only who holds them is looked at.
        settle_s: How long a clock may take to hold.
        registry: The claims of this machine; None for the usual place.

    Returns:
        Checks in the order they were made; those of GPUs last.
    """
    registry = registry or ClockRegistry()
    try:
        version = driver_version()
        devices = visible_devices()
    except DeviceError as error:
        found, _, remedy = str(error).partition("; ")
        if not remedy:
            found, _, remedy = str(error).partition(": ")
        return (
            Check(name="NVIDIA GPUs", state=CheckState.MISSING, found=found, remedy=remedy or None),
        )
    checks = [Check(name="NVIDIA driver", state=CheckState.OK, found=version)]
    names = ", ".join(sorted({device.name for device in devices}))
    enough = num_gpus is None or len(devices) >= num_gpus
    checks.append(
        Check(
            name="Visible GPUs",
            state=CheckState.OK if enough else CheckState.MISSING,
            found=f"{len(devices)} ({names})" + ("" if enough else f", {num_gpus} are needed"),
            remedy=None
            if enough
            else "use fewer ranks (tp x cp), or show more GPUs in CUDA_VISIBLE_DEVICES",
        )
    )
    if len({device.name for device in devices}) > 1:
        checks.append(
            Check(
                name="Same model",
                state=CheckState.MISSING,
                found=names,
                remedy="show GPUs of one model only, with CUDA_VISIBLE_DEVICES",
            )
        )
    if model is not None:
        checks.append(_model_check(model, devices[0].name))
    checks.append(_static_power_check(static_power_w, static_power_measured))
    try:
        claims = {claim.uuid: claim for claim in settled_claims(registry)}
    except DeviceError as error:
        claims = {}
        checks.append(Check(name="Locked clocks", state=CheckState.MISSING, found=str(error)))
    devices = devices if num_gpus is None else devices[:num_gpus]
    for device in devices:
        checks += _device_checks(device, clocks_mhz)
    checks += _clock_checks(
        devices, claims, set_clocks=set_clocks, settle_s=settle_s, registry=registry
    )
    return tuple(checks)


def require(checks: Sequence[Check]) -> None:
    """Refuse to go on where something is missing.

    Raises:
        DeviceError: It names everything that is missing, with the remedies.
    """
    missing = [check for check in checks if check.state is CheckState.MISSING]
    if missing:
        words = "; ".join(
            f"{check.name}: {check.found}" + (f" ({check.remedy})" if check.remedy else "")
            for check in missing
        )
        raise DeviceError(f"nothing was measured, since the preflight failed: {words}")


def _model_check(planned: str, found: str) -> Check:
    """Whether the GPUs are those the workload names."""
    plain = [text.lower().replace("nvidia", "").strip() for text in (planned, found)]
    # The driver says `A100-SXM4-40GB`, `H100 80GB HBM3`, `A40`; the family decides.
    same = plain[0].replace("-", " ").split()[0] == plain[1].replace("-", " ").split()[0]
    return Check(
        name="GPU model",
        state=CheckState.OK if same else CheckState.WARNING,
        found=f"{found}, planned for {planned}",
        remedy=None if same else "give the GPU that is measured with --gpu",
    )


def _static_power_check(static_power_w: float | None, measured: bool) -> Check:
    remedy = "measure it with kareus profile --static-power"
    if static_power_w is None:
        return Check(
            name="Static power", state=CheckState.WARNING, found="not known", remedy=remedy
        )
    if measured:
        return Check(name="Static power", state=CheckState.OK, found=f"{static_power_w:g} W")
    return Check(
        name="Static power",
        state=CheckState.WARNING,
        found=f"{static_power_w:g} W, assumed",
        remedy=remedy,
    )


def _device_checks(device: Device, clocks_mhz: Sequence[int]) -> Iterator[Check]:
    """All checks of one GPU but that of its lock."""
    label = f"GPU {device.index}"
    yield _mig_check(device, f"{label} MIG")
    yield _energy_check(device, f"{label} energy")
    yield _persistence_check(device, f"{label} persistence")
    yield _processes_check(device, f"{label} processes")
    unsupported = _unsupported(device, clocks_mhz)
    if unsupported:
        yield Check(
            name=f"{label} clocks",
            state=CheckState.MISSING,
            found=f"not supported: {', '.join(map(str, unsupported))} MHz",
            remedy="plan for this GPU's own clocks: name its model with --gpu",
        )


def _mig_check(device: Device, name: str) -> Check:
    try:
        enabled = device.mig_enabled()
    except DeviceError as error:
        return Check(name=name, state=CheckState.WARNING, found=str(error))
    if not enabled:
        return Check(name=name, state=CheckState.OK, found="off")
    return Check(
        name=name,
        state=CheckState.MISSING,
        found="on: clock and energy would be those of the whole GPU",
        remedy=f"nvidia-smi -i {device.index} -mig 0",
    )


def _energy_check(device: Device, name: str) -> Check:
    """Whether the counter is there and moves."""
    try:
        first_j = device.energy_j()
    except MissingReadingError:
        return _power_check(device, name)
    except DeviceError as error:
        return Check(
            name=name, state=CheckState.MISSING, found=str(error), remedy="check nvidia-smi"
        )
    deadline_s = time.monotonic() + _COUNTER_WAIT_S
    while time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
        if device.energy_j() > first_j:
            return Check(name=name, state=CheckState.OK, found="its counter moves")
    return Check(
        name=name,
        state=CheckState.MISSING,
        found=f"its counter stands still ({first_j:g} J)",
        remedy="reload the NVIDIA driver, or use another GPU (CUDA_VISIBLE_DEVICES)",
    )


def _power_check(device: Device, name: str) -> Check:
    """Whether sampled power can stand in for a missing counter."""
    try:
        power_w = device.power_w()
    except DeviceError:
        return Check(
            name=name,
            state=CheckState.MISSING,
            found="neither an energy counter nor a power reading",
            remedy="use another GPU (CUDA_VISIBLE_DEVICES), or --source simulator",
        )
    return Check(
        name=name,
        state=CheckState.WARNING,
        found=f"no counter; integrated from sampled power ({power_w:.0f} W now)",
        remedy="use windows of 5 s or more, or a GPU with a counter (Volta or later)",
    )


def _persistence_check(device: Device, name: str) -> Check:
    try:
        persistent = device.persistent()
    except DeviceError as error:
        return Check(name=name, state=CheckState.WARNING, found=str(error))
    if persistent:
        return Check(name=name, state=CheckState.OK, found="on")
    return Check(
        name=name,
        state=CheckState.WARNING,
        found="off: the driver may unload between runs and forget the locked clock",
        remedy=f"nvidia-smi -i {device.index} -pm 1",
    )


def _processes_check(device: Device, name: str) -> Check:
    try:
        running = device.compute_processes()
    except DeviceError as error:
        return Check(name=name, state=CheckState.WARNING, found=str(error))
    if not running:
        return Check(name=name, state=CheckState.OK, found="none")
    return Check(
        name=name,
        state=CheckState.WARNING,
        found=f"others compute on it: {', '.join(map(str, running))}",
        remedy="end them, since their energy would be counted too",
    )


def _unsupported(device: Device, clocks_mhz: Sequence[int]) -> list[int]:
    try:
        supported_mhz = device.supported_clocks_mhz()
    except DeviceError:
        return []
    return [clock for clock in clocks_mhz if clock not in supported_mhz]


def _clock_checks(
    devices: Sequence[Device],
    claims: Mapping[str, ClockClaim],
    *,
    set_clocks: bool,
    settle_s: float,
    registry: ClockRegistry,
) -> Iterator[Check]:
    """Set a clock, read it back, reset it; not where somebody else has locked it."""
    free = []
    for device in devices:
        found = _holder_check(device, claims.get(device.uuid))
        if found is None:
            free.append(device)
        else:
            yield found
    if not free:
        return
    if not set_clocks:
        for device in free:
            yield Check(name=_lock_name(device), state=CheckState.OK, found="free; not tried")
        return
    with ClockKeeper(free, registry=registry) as keeper:
        for device in free:
            yield _trial_check(device, keeper, settle_s=settle_s)


def _lock_name(device: Device) -> str:
    return f"GPU {device.index} clock lock"


def _holder_check(device: Device, claim: ClockClaim | None) -> Check | None:
    """Who holds a GPU's clock; None if nobody does."""
    name = _lock_name(device)
    if claim is not None:
        if claim.owner == ProcessId.of():
            return Check(name=name, state=CheckState.OK, found="held by this process")
        return Check(
            name=name,
            state=CheckState.MISSING,
            found=claim.describe() + (", which is gone" if claim.stale else ""),
            remedy=_RELEASE if claim.stale else "wait for that job, or cancel it",
        )
    try:
        foreign = device.limited_by_user()
    except DeviceError:
        return None
    if not foreign:
        return None
    return Check(
        name=name,
        state=CheckState.MISSING,
        found="another program has locked it",
        remedy=f"end that program, or release the clock: {_RELEASE}",
    )


def _trial_check(device: Device, keeper: ClockKeeper, *, settle_s: float) -> Check:
    """Whether a free GPU keeps a clock it is given."""
    name = _lock_name(device)
    try:
        # Needs the same permission as locking, and changes nothing here.
        device.reset_clock()
        supported_mhz = device.supported_clocks_mhz()
        # Low enough that a GPU which ignores it is seen even while idle.
        wanted_mhz = supported_mhz[len(supported_mhz) // 2]
        keeper.lock(wanted_mhz, only=device)
        found_mhz = wait_settled(device, wanted_mhz, timeout_s=settle_s)
    except ClockPermissionError:
        how = "zeusd refuses" if uses_daemon() else "this process may not set clocks"
        return Check(name=name, state=CheckState.MISSING, found=how, remedy=LOCK_REMEDY)
    except DeviceError as error:
        return Check(name=name, state=CheckState.MISSING, found=str(error))
    if found_mhz > wanted_mhz + CLOCK_TOLERANCE_MHZ:
        return Check(
            name=name,
            state=CheckState.MISSING,
            found=f"set to {wanted_mhz} MHz, but it runs at {found_mhz} MHz",
            remedy="reset the GPU (nvidia-smi -r), or ask who else sets its clock",
        )
    return Check(
        name=name,
        state=CheckState.OK,
        found=f"set to {wanted_mhz} MHz, read back {found_mhz} MHz, reset",
    )

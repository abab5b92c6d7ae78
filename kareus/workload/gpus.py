"""The GPU catalogue: what the engine must know of a device, with the source of every figure.

Sources: NVIDIA data sheets and architecture white papers of A100, A40, H100, H200 and B200 for SMs,
memory bandwidth, NVLink (half of the bidirectional figure is one direction) and board power; memory
as `nvidia-smi` reports it; the top clock is the highest `nvidia-smi -q -d SUPPORTED_CLOCKS` lists.

Peak throughput is SMs x FLOP per clock and SM x top clock, dense bf16 with fp32 accumulation:
1024 multiply-adds (2048 FLOP) on A100, 512 on A40, 2048 on H100/H200, 4096 on B200. For A100 and
A40 this is the data sheet's figure (312 and 149.7 TFLOP/s); the sheets of H100/H200 (989 TFLOP/s)
and B200 (2250 TFLOP/s) state it at 1830 and 1856 MHz, below the top clock.

Static power (drawn while blocked on point-to-point communication) is measured for A100-SXM4-40GB
and A40 (arXiv 2601.17654). A100-SXM4-80GB is assumed to draw what its 40 GB sibling does (same
chip and board limit). The others are assumed to draw the A100's share of their board power,
85 W / 400 W: nobody has published the measurement, so it is an assumption and marked as one.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kareus.core.workload import Gpu
from kareus.errors import ConfigError, NotFoundError
from kareus.workload.names import find, suggestion

_A100_STATIC_SHARE = 85.0 / 400.0
_MIB = 1 << 20

NUM_CLOCKS = 18
"""Clocks of a derived grid: as many as the A100's."""

_LOWEST_SHARE = 900.0 / 1410.0  # the A100's grid ends at this share of its top clock
_DEVICE_STEP_MHZ = 15  # NVIDIA data-centre GPUs offer SM clocks in steps of 15 MHz


def derive_clocks_mhz(top_mhz: int) -> tuple[int, ...]:
    """Return the clock grid for a top clock, ascending: 18 values with it as the last.

    The grid covers the A100's share of the clock range (from 64 % of the top clock) in equal steps,
    rounded to the device's own grid of 15 MHz; for 1410 MHz it is 900, 930, ..., 1410.
    """
    span_mhz = top_mhz * (1.0 - _LOWEST_SHARE)
    step_mhz = max(1, round(span_mhz / (NUM_CLOCKS - 1) / _DEVICE_STEP_MHZ)) * _DEVICE_STEP_MHZ
    lowest_mhz = top_mhz - (NUM_CLOCKS - 1) * step_mhz
    return tuple(range(lowest_mhz, top_mhz + 1, step_mhz))


def select_clocks_mhz(supported_mhz: Sequence[int]) -> tuple[int, ...]:
    """Return the clocks to search among those a device supports, ascending.

    For each value of the derived grid the nearest supported clock; the top clock is kept.

    Raises:
        ConfigError: If there is no clock.
    """
    if not supported_mhz:
        raise ConfigError("the device lists no supported SM clock: name the GPU with --gpu")
    clocks = sorted(set(supported_mhz))
    wanted = derive_clocks_mhz(clocks[-1])
    return tuple(sorted({min(clocks, key=lambda clock: abs(clock - w)) for w in wanted}))


def scale_sms(num_sms_on_a100: int, gpu: Gpu) -> int:
    """Return the SM allocation that is the same share of this GPU as on the A100's 108 SMs.

    Rounded to the nearest whole SM, at least one.
    """
    return max(1, (2 * num_sms_on_a100 * gpu.num_sms + 108) // (2 * 108))


def _gpu(
    name: str,
    *,
    num_sms: int,
    flop_per_clock_and_sm: int,
    top_mhz: int,
    static_power_w: float | None,
    measured: bool,
    power_limit_w: float,
    memory_mib: int,
    memory_bandwidth_gb_s: float,
    link_bandwidth_gb_s: float,
    clocks_mhz: tuple[int, ...] | None = None,
    calibrated: bool = False,
) -> Gpu:
    """A catalogue entry; a static power of None is assumed from the board's limit."""
    if static_power_w is None:
        static_power_w = round(_A100_STATIC_SHARE * power_limit_w)
    return Gpu(
        name=name,
        num_sms=num_sms,
        clocks_mhz=clocks_mhz or derive_clocks_mhz(top_mhz),
        static_power_w=static_power_w,
        static_power_measured=measured,
        power_limit_w=power_limit_w,
        memory_bytes=memory_mib * _MIB,
        peak_flops=num_sms * flop_per_clock_and_sm * top_mhz * 1e6,
        memory_bandwidth_bytes_s=memory_bandwidth_gb_s * 1e9,
        link_bandwidth_bytes_s=link_bandwidth_gb_s * 1e9,
        calibrated=calibrated,
    )


_ENTRIES = (
    _gpu(
        "A100-SXM4-40GB",
        num_sms=108,
        flop_per_clock_and_sm=2048,
        top_mhz=1410,
        static_power_w=85.0,
        measured=True,
        power_limit_w=400.0,
        memory_mib=40960,
        memory_bandwidth_gb_s=1555.0,
        link_bandwidth_gb_s=300.0,
        calibrated=True,
    ),
    _gpu(
        "A100-SXM4-80GB",
        num_sms=108,
        flop_per_clock_and_sm=2048,
        top_mhz=1410,
        static_power_w=85.0,
        measured=False,
        power_limit_w=400.0,
        memory_mib=81920,
        memory_bandwidth_gb_s=2039.0,
        link_bandwidth_gb_s=300.0,
    ),
    _gpu(
        "A40",
        num_sms=84,
        flop_per_clock_and_sm=1024,
        top_mhz=1740,
        static_power_w=70.0,
        measured=True,
        power_limit_w=300.0,
        memory_mib=46068,  # 48 GB with ECC on
        memory_bandwidth_gb_s=696.0,
        link_bandwidth_gb_s=56.25,  # an NVLink bridge between two cards
        clocks_mhz=tuple(range(900, 1741, 30)),
    ),
    _gpu(
        "H100-SXM5-80GB",
        num_sms=132,
        flop_per_clock_and_sm=4096,
        top_mhz=1980,
        static_power_w=None,
        measured=False,
        power_limit_w=700.0,
        memory_mib=81559,
        memory_bandwidth_gb_s=3350.0,
        link_bandwidth_gb_s=450.0,
    ),
    _gpu(
        "H200-SXM5-141GB",
        num_sms=132,
        flop_per_clock_and_sm=4096,
        top_mhz=1980,
        static_power_w=None,
        measured=False,
        power_limit_w=700.0,
        memory_mib=143771,
        memory_bandwidth_gb_s=4800.0,
        link_bandwidth_gb_s=450.0,
    ),
    _gpu(
        "B200-SXM-180GB",
        num_sms=148,
        flop_per_clock_and_sm=8192,
        top_mhz=1965,
        static_power_w=None,
        measured=False,
        power_limit_w=1000.0,
        memory_mib=183359,
        memory_bandwidth_gb_s=8000.0,
        link_bandwidth_gb_s=900.0,
    ),
)

GPUS: Mapping[str, Gpu] = MappingProxyType({gpu.name: gpu for gpu in _ENTRIES})

_NVLINK_GROUP = {"A40": 2}


def nvlink_group_size(gpu: Gpu) -> int:
    """Return how many GPUs NVLink joins: two bridged A40, else the eight of a node's NVSwitch."""
    return _NVLINK_GROUP.get(gpu.name, 8)


# Names NVML gives where they are not the catalogue's with "NVIDIA " before it.
_DEVICE_NAMES = {
    "H100 80GB HBM3": "H100-SXM5-80GB",
    "H200": "H200-SXM5-141GB",
    "B200": "B200-SXM-180GB",
}


def load_gpu(name: str) -> Gpu:
    """Return the GPU of a catalogue name, or of the name the driver gives to such a device.

    Names are compared without case, hyphens and underscores.

    Raises:
        NotFoundError: If the catalogue has no such GPU; close matches are suggested.
    """
    wanted = name.strip()
    if wanted.lower().startswith("nvidia "):
        wanted = wanted[len("nvidia ") :]
    found = find(wanted, GPUS)
    if found is None:
        alias = find(wanted, _DEVICE_NAMES)
        if alias is None:
            shown = repr(name if len(name) <= 80 else name[:77] + "...")
            raise NotFoundError(f"unknown GPU {shown}: {suggestion(wanted, GPUS)}")
        found = _DEVICE_NAMES[alias]
    return GPUS[found]


def adapt_to_device(gpu: Gpu, *, supported_clocks_mhz: Sequence[int], num_sms: int) -> Gpu:
    """Return the GPU with the clocks and SMs of an actual device.

    The catalogue's clock grid is kept where the device supports all of it; otherwise it is derived
    from what the device supports.

    Raises:
        ConfigError: If the device lists no clock.
    """
    clocks_mhz = gpu.clocks_mhz
    if not set(clocks_mhz) <= set(supported_clocks_mhz):
        clocks_mhz = select_clocks_mhz(supported_clocks_mhz)
    return dataclasses.replace(gpu, clocks_mhz=clocks_mhz, num_sms=num_sms)

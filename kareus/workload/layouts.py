"""All ways to lay a training step on a fixed number of GPUs: the explorer's candidates.

Fixed are the GPUs, the sequences of a global batch and the sequence length; free are tp, cp, pp and
the microbatch size, from which dp and the number of microbatches follow:
`tp x cp x pp x dp = GPUs` and `microbatch size x microbatches x dp = global batch`.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kareus.core.workload import Model, Workload
from kareus.errors import ConfigError
from kareus.workload.build import MAX_TP, Severity, WorkloadSettings, check_workload
from kareus.workload.memory import estimate_memory
from kareus.workload.models import load_model

DEFAULT_MICROBATCH_SIZES = (2, 4, 8, 16)
DEFAULT_CPS = (1, 2, 4)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One layout.

    Attributes:
        settings: The layout.
        workload: What it is once checked; None where it was pruned.
        pruned: Why it is left out: an error's words, or too little memory; None if it is kept.
        peak_memory_bytes: What the fullest stage needs per GPU; None where it cannot be built.
    """

    settings: WorkloadSettings
    workload: Workload | None
    pruned: str | None
    peak_memory_bytes: float | None


def enumerate_candidates(
    base: WorkloadSettings,
    *,
    num_gpus: int,
    global_batch_size: int,
    cps: Sequence[int] = DEFAULT_CPS,
    microbatch_sizes: Sequence[int] = DEFAULT_MICROBATCH_SIZES,
    model: Model | None = None,
) -> tuple[Candidate, ...]:
    """Return every layout of a step on the GPUs, kept ones and pruned ones with the reason.

    Args:
        base: Model, GPU, sequence length and recompute; its degrees, batch and stage layers are
            replaced.
        num_gpus: GPUs of the job; all are used.
        global_batch_size: Sequences per iteration over all replicas.
        cps: Context-parallel degrees tried.
        microbatch_sizes: Microbatch sizes tried.
        model: A model already loaded, instead of `base.model`.

    Returns:
        Ordered by tp, cp, pp and microbatch size. Degrees that do not multiply up to the GPUs or
        the batch are no layout and not listed.

    Raises:
        ConfigError: If a number is below 1 or there is no layout at all.
        NotFoundError: If the model is unknown.
    """
    degrees_and_sizes = (
        ("GPUs", num_gpus),
        ("global batch", global_batch_size),
        *(("context-parallel degree", cp) for cp in cps),
        *(("microbatch size", size) for size in microbatch_sizes),
    )
    for name, value in degrees_and_sizes:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} = {value!r}: give a whole number of at least 1")
    if model is None:
        model = load_model(base.model)
    # Once each.
    cps, microbatch_sizes = tuple(dict.fromkeys(cps)), tuple(dict.fromkeys(microbatch_sizes))
    candidates = []
    degrees = itertools.product(range(1, MAX_TP + 1), cps, range(1, model.num_layers + 1))
    for tp, cp, pp in degrees:
        dp, left_over = divmod(num_gpus, tp * cp * pp)
        if left_over or dp == 0 or model.num_heads % tp:
            continue
        for size in microbatch_sizes:
            num_microbatches, left_over = divmod(global_batch_size, size * dp)
            if left_over or num_microbatches == 0:
                continue
            settings = replace(
                base,
                tp=tp,
                cp=cp,
                pp=pp,
                dp=dp,
                microbatch_size=size,
                num_microbatches=num_microbatches,
                stage_layers=None,
            )
            candidates.append(_candidate(settings, model))
    if not candidates:
        raise ConfigError(
            f"no layout of {global_batch_size} sequences on {num_gpus} GPUs: tp x cp x pp x dp "
            f"must be the GPUs and the batch a multiple of dp x a microbatch of "
            f"{', '.join(map(str, microbatch_sizes))}"
        )
    return tuple(candidates)


def _candidate(settings: WorkloadSettings, model: Model) -> Candidate:
    """A layout checked, and pruned if it cannot be or does not fit."""
    workload, findings = check_workload(settings, model=model)
    if workload is None:
        error = next(f.message for f in findings if f.severity is Severity.ERROR)
        return Candidate(settings=settings, workload=None, pruned=error, peak_memory_bytes=None)
    estimate = estimate_memory(workload)
    if not estimate.fits:
        gib = 2**30
        reason = (
            f"needs about {estimate.peak_bytes / gib:.1f} GiB per GPU, "
            f"{workload.gpu.name} has {estimate.limit_bytes / gib:.1f} GiB"
        )
        return Candidate(
            settings=settings,
            workload=None,
            pruned=reason,
            peak_memory_bytes=estimate.peak_bytes,
        )
    return Candidate(
        settings=settings,
        workload=workload,
        pruned=None,
        peak_memory_bytes=estimate.peak_bytes,
    )

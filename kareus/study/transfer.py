"""What other studies in the store tell about a new one's partitions (opt-in).

Which studies a new one starts from is settled when it is created and stored with its request, so
that it gives the same result however often it is stopped and resumed.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kareus.core.measurement import Measurement
from kareus.core.partition import Partition
from kareus.core.workload import Workload
from kareus.errors import ConfigError, NotFoundError
from kareus.search.threads import one_thread
from kareus.store import Store, StudyRecord, StudyState
from kareus.study.documents import request_of, workload_of
from kareus.study.request import StudyRequest
from kareus.workload.partitions import build_partitions

if TYPE_CHECKING:
    from kareus.search.surrogate import Prior

_MOST_DONORS = 3


def find_donors(
    records: Iterable[StudyRecord], request: StudyRequest, workload: Workload
) -> tuple[str, ...]:
    """Return the studies a new one can start from, newest first.

    The newest finished ones on the same GPU and from the same kind of source that search a
    partition of the same name for another workload.

    Args:
        records: The studies there are, newest first.
        request: What is asked for.
        workload: Of the new study.
    """
    searched = _searched(workload)
    found: list[str] = []
    for record in records:
        if record.state is not StudyState.DONE or record.source is not request.source:
            continue
        # Planned again from another study's measurements, which is a donor itself.
        if request_of(record).constraints is not None:
            continue
        theirs = workload_of(record)
        if theirs.gpu == workload.gpu and theirs != workload and searched & _searched(theirs):
            found.append(record.id)
        if len(found) == _MOST_DONORS:
            break
    return tuple(found)


def load_priors(
    store: Store, request: StudyRequest, partitions: Mapping[str, Partition]
) -> "dict[str, Prior]":
    """Return a prior per searched partition that the request's donors measured.

    Raises:
        ConfigError: The request is to start from other studies and has none, one is gone, or they
            measured too little.
        MeasurementError: A donor's measurements cannot be used.
    """
    if not request.transfer:
        return {}
    if not request.donors:
        raise ConfigError("the study names no study to start from: run it without --transfer")
    # SciPy and Numba load where they are used.
    from kareus.search.transfer import LEAST_MEASURED, Donor, TransferPrior

    donors: dict[str, list[Donor]] = {}
    for study in request.donors:
        try:
            workload = workload_of(store.study(study))
        except NotFoundError as error:
            raise ConfigError(
                f"study {study}, which this one starts from, was deleted: start a new one"
            ) from error
        theirs = build_partitions(workload)
        for name in sorted(_searched(workload) & {*partitions}):
            measured = tuple(
                one for one in store.measurements(study, name) if isinstance(one, Measurement)
            )
            if len({one.configuration for one in measured}) >= LEAST_MEASURED:
                donor = Donor(
                    study=study,
                    partition=theirs[name],
                    measurements=measured,
                    static_power_w=workload.gpu.static_power_w,
                )
                donors.setdefault(name, []).append(donor)
    wanted = {name: found for name, found in donors.items() if partitions[name].searched}
    if not wanted:
        raise ConfigError(
            f"{', '.join(request.donors)} measured too little to start from: run it without "
            "--transfer"
        )
    with one_thread():
        return {name: TransferPrior(partitions[name], found) for name, found in wanted.items()}


def _searched(workload: Workload) -> set[str]:
    """Names of the partitions of a workload that are searched."""
    return {name for name, one in build_partitions(workload).items() if one.searched}

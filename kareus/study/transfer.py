"""What other studies in the store tell about a new one's partitions (opt-in)."""

from collections.abc import Mapping

from kareus.core.measurement import Measurement, SourceKind
from kareus.core.partition import Partition
from kareus.core.workload import Workload
from kareus.errors import ConfigError
from kareus.search.surrogate import Prior
from kareus.search.transfer import Donor, TransferPrior
from kareus.store import Store, StudyState
from kareus.study.documents import request_of, workload_of
from kareus.study.request import StudyRequest
from kareus.workload.partitions import build_partitions

_MOST_DONORS = 3


def find_priors(
    store: Store,
    study: str,
    request: StudyRequest,
    workload: Workload,
    partitions: Mapping[str, Partition],
) -> tuple[dict[str, Prior], list[str]]:
    """Return a prior per searched partition, and sentences that say where from.

    Donors are the newest finished studies before this one, on the same GPU and from the same kind
    of source, that have a partition of the same name and another workload.

    Raises:
        ConfigError: Transfer was asked for and there is no study to start from.
    """
    if not request.transfer:
        return {}, []
    this = store.study(study)
    donors: dict[str, list[Donor]] = {}
    names: list[str] = []
    for other in store.studies(archived=None):
        if (
            other.id == study
            or other.state is not StudyState.DONE
            or other.source is not this.source
            or other.created_at >= this.created_at
            or len(names) == _MOST_DONORS
            # Planned again from another study's measurements, which is a donor itself.
            or request_of(other).constraints is not None
        ):
            continue
        donor_workload = workload_of(other)
        if donor_workload.gpu != workload.gpu or donor_workload == workload:
            continue
        donor_partitions = build_partitions(donor_workload)
        useful = [
            name for name, one in partitions.items() if one.searched and name in donor_partitions
        ]
        if not useful:
            continue
        names.append(other.id)
        for name in useful:
            measured = tuple(
                result
                for result in store.measurements(other.id, name)
                if isinstance(result, Measurement)
            )
            if measured:
                donors.setdefault(name, []).append(
                    Donor(
                        study=other.id,
                        partition=donor_partitions[name],
                        measurements=measured,
                        static_power_w=donor_workload.gpu.static_power_w,
                    )
                )
    if not donors:
        raise ConfigError(
            f"no finished {SourceKind(this.source).value} study on {workload.gpu.name} to start "
            "from: run without --transfer first"
        )
    note = f"Searches start from what {', '.join(names)} measured."
    return {name: TransferPrior(partitions[name], found) for name, found in donors.items()}, [note]

"""What a user asks a study to do, as a value that is stored with the study."""

from dataclasses import dataclass

from kareus.compose.limits import Constraints
from kareus.core.measurement import SourceKind
from kareus.core.pipeline import PipelineOrder
from kareus.workload.build import WorkloadSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRequest:
    """The settings of a study; together with its measurements they fix its result.

    Attributes:
        settings: The workload's settings, as the user gave them.
        source: Where measurements come from.
        budget: `published`, `fast`, `exhaustive`, or a number of measurements for the whole study.
        seed: Of the search and, with the simulator, of its noise.
        name: Free name; None for one made from the workload.
        search: How partitions are searched: `kareus`, `published` or `random`.
        num_plans: Plans per frontier.
        measurements: With the replay source: a dataset id or the path of recorded measurements.
        calibration: With the simulator: path of a calibration file; None for the GPU's own.
        temperature_c: With the simulator: GPU temperature, a warmer one draws more; None for that
            of its calibration.
        transfer: Whether to start from what other studies measured on the same GPU.
        donors: Ids of those studies; settled when the study is created.
        order: The pipeline order.
        num_chunks: Model chunks per stage; above 1 with the interleaved order only.
        constraints: What every plan has to keep to; None for free.
    """

    settings: WorkloadSettings
    source: SourceKind = SourceKind.SIMULATOR
    budget: str = "published"
    seed: int = 0
    name: str | None = None
    search: str = "kareus"
    num_plans: int = 50
    measurements: str | None = None
    calibration: str | None = None
    temperature_c: float | None = None
    transfer: bool = False
    donors: tuple[str, ...] = ()
    order: PipelineOrder = PipelineOrder.ONE_F_ONE_B
    num_chunks: int = 1
    constraints: Constraints | None = None

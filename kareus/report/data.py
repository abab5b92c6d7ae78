"""The numbers behind every picture, as pandas frames. Figures only draw what stands here.

Units are in the column names (`_s`, `_j`, `_w`, `_mhz`, `_pct`); unknown is missing (NaN), never 0.
`plan_id` is the stable name of a plan in charts, tables and URLs: `METHOD-NUMBER`.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd

from kareus.core.configuration import LaunchPoint
from kareus.core.frontier import non_dominated
from kareus.core.measurement import Measurement, SourceKind
from kareus.core.partition import Direction, Execution
from kareus.core.plan import InstructionOption, Method, Plan, PlanPoint
from kareus.core.timeline import TimelineRow, describe_configuration
from kareus.errors import ConfigError
from kareus.report.comparison import METHOD_NAMES, Frontiers, difference
from kareus.report.format import DASH

SOURCE_WORDS: Mapping[SourceKind, str] = {
    SourceKind.SIMULATOR: "simulated",
    SourceKind.MEASURED: "measured",
    SourceKind.REPLAY: "replayed",
}


class Scope(StrEnum):
    """Which energy is shown: one GPU of each stage, or all GPUs of the job."""

    PIPELINE = "pipeline"
    JOB = "job"


@dataclass(frozen=True, kw_only=True, slots=True)
class FrontierSetting:
    """What the plans of a study share.

    Attributes:
        num_stages: Pipeline stages.
        static_power_w: Static power of one GPU.
        gpus_per_stage: GPUs that execute one stage.
        source: Where the measurements come from.
        extrapolated: Whether the simulator is not calibrated for the GPU.
        uncertainty: Assumed relative error of time and energy; None where none is stated.
        scope: The scope of `energy_j` and of everything drawn from it.
    """

    num_stages: int
    static_power_w: float
    gpus_per_stage: int
    source: SourceKind
    extrapolated: bool = False
    uncertainty: float | None = None
    scope: Scope = Scope.PIPELINE

    @property
    def factor(self) -> int:
        """What a pipeline energy is multiplied with in this scope."""
        return self.gpus_per_stage if self.scope is Scope.JOB else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ParityPoint:
    """One recorded plan or configuration beside its prediction."""

    label: str
    method: str
    recorded_time_s: float
    predicted_time_s: float
    recorded_energy_j: float
    predicted_energy_j: float


def plan_id(plan: PlanPoint) -> str:
    """Return a plan's stable name, such as `kareus-14`."""
    return f"{plan.method.value}-{plan.number}"


def parse_plan_id(text: str) -> tuple[Method, int]:
    """Return the method and number a plan's stable name stands for.

    Raises:
        ConfigError: It is not such a name.
    """
    method, _, number = text.rpartition("-")
    if method not in list(Method) or not number.isdecimal():
        raise ConfigError(f"{text!r} is not the name of a plan, such as 'kareus-14'")
    return Method(method), int(number)


def source_mark(source: SourceKind, *, extrapolated: bool = False) -> str:
    """Return the word that stands wherever a number stands."""
    return "extrapolated" if extrapolated else SOURCE_WORDS[source]


def frontier_frame(frontiers: Frontiers, setting: FrontierSetting) -> pd.DataFrame:
    """Return one row per plan, by method in their usual order, fastest first.

    Columns: plan_id, method, method_name, plan, iteration_time_s, energy_j (in the setting's
    scope), dynamic_energy_j, static_energy_j, average_power_w (same scope), pipeline_energy_j,
    job_energy_j, gap_pct, source, filled (measured values only), and the band of the assumed
    uncertainty: energy_low_j, energy_high_j (missing where none is stated).
    """
    rows = []
    for method in Method:
        for plan in sorted(frontiers.get(method, ()), key=lambda plan: plan.iteration_time_s):
            energy_j = plan.pipeline_energy_j * setting.factor
            rows.append(
                {
                    "plan_id": plan_id(plan),
                    "method": method.value,
                    "method_name": METHOD_NAMES[method],
                    "plan": plan.number,
                    "iteration_time_s": plan.iteration_time_s,
                    "energy_j": energy_j,
                    "dynamic_energy_j": plan.effective_energy_j * setting.factor,
                    "static_energy_j": energy_j - plan.effective_energy_j * setting.factor,
                    "average_power_w": energy_j / plan.iteration_time_s,
                    "pipeline_energy_j": plan.pipeline_energy_j,
                    "job_energy_j": plan.pipeline_energy_j * setting.gpus_per_stage,
                    "gap_pct": np.nan
                    if plan.bound_j is None
                    else 100.0 * (plan.pipeline_energy_j / plan.bound_j - 1.0),
                    "source": source_mark(setting.source, extrapolated=setting.extrapolated),
                    "filled": setting.source is SourceKind.MEASURED,
                    "energy_low_j": _band(energy_j, setting.uncertainty, -1),
                    "energy_high_j": _band(energy_j, setting.uncertainty, +1),
                }
            )
    return pd.DataFrame(rows, columns=_FRONTIER_COLUMNS)


_FRONTIER_COLUMNS = [
    "plan_id",
    "method",
    "method_name",
    "plan",
    "iteration_time_s",
    "energy_j",
    "dynamic_energy_j",
    "static_energy_j",
    "average_power_w",
    "pipeline_energy_j",
    "job_energy_j",
    "gap_pct",
    "source",
    "filled",
    "energy_low_j",
    "energy_high_j",
]


def end_labels(frame: pd.DataFrame, *, separation: float = 0.055) -> pd.DataFrame:
    """Return where each method's name stands: at its most frugal plan, none over another.

    A name that would lie on the end of another line stands to the right of that end.

    Args:
        frame: A frontier frame.
        separation: Least distance between two names, as a share of the energies' range, bands
            included.

    Returns:
        Columns method, method_name, iteration_time_s, energy_j (where the name stands).
    """
    columns = ["method", "method_name", "iteration_time_s", "energy_j"]
    if frame.empty:
        return pd.DataFrame(columns=columns)
    ends = frame.loc[frame.groupby("method")["iteration_time_s"].idxmax(), columns]
    ends = ends.sort_values("energy_j", ignore_index=True)
    low_j = frame["energy_low_j"].fillna(frame["energy_j"]).min()
    high_j = frame["energy_high_j"].fillna(frame["energy_j"]).max()
    step = separation * max(float(high_j - low_j), 1e-12)
    reach_s = 0.35 * float(np.ptp(frame["iteration_time_s"]))
    heights: list[float] = []
    places: list[float] = []
    for row, (time_s, energy_j) in enumerate(
        zip(ends["iteration_time_s"], ends["energy_j"], strict=True)
    ):
        height = float(energy_j)
        for earlier in range(row):
            beside = abs(float(ends["iteration_time_s"].iloc[earlier]) - time_s) <= reach_s
            if beside and height - heights[earlier] < step:
                height = heights[earlier] + step
        heights.append(height)
        in_the_way = [
            float(other_s)
            for other_s, other_j in zip(ends["iteration_time_s"], ends["energy_j"], strict=True)
            if time_s <= other_s <= time_s + reach_s and abs(other_j - height) < step
        ]
        places.append(max([float(time_s), *in_the_way]))
    ends["energy_j"] = heights
    ends["iteration_time_s"] = places
    return ends


def guide_frame(
    plan: PlanPoint, baseline: Sequence[PlanPoint], setting: FrontierSetting
) -> pd.DataFrame:
    """Return the guide lines from a plan to a baseline's frontier, at equal time and energy.

    One row per line that exists. Where no plan of the baseline is as fast and none needs as little
    energy, one line leads to its fastest plan instead. Columns: kind (`time`, `energy`, `fastest`),
    iteration_time_s, energy_j (the plan), end_time_s, end_energy_j (on the frontier),
    time_reduction_pct, energy_reduction_pct (positive where the plan needs less).
    """
    columns = [
        "kind",
        "iteration_time_s",
        "energy_j",
        "end_time_s",
        "end_energy_j",
        "time_reduction_pct",
        "energy_reduction_pct",
    ]
    if not baseline:
        return pd.DataFrame(columns=columns)
    found = difference(plan, baseline)
    start = (plan.iteration_time_s, plan.pipeline_energy_j * setting.factor)
    rows: list[tuple[object, ...]] = []
    if found.iso_time_plan is not None:
        end_j = found.iso_time_plan.pipeline_energy_j * setting.factor
        rows.append(("time", *start, plan.iteration_time_s, end_j, 0.0, found.iso_time_energy_pct))
    if found.iso_energy_plan is not None:
        end_s = found.iso_energy_plan.iteration_time_s
        rows.append(("energy", *start, end_s, start[1], found.iso_energy_time_pct, 0.0))
    if not rows:
        fastest = min(baseline, key=lambda other: other.iteration_time_s)
        end = (fastest.iteration_time_s, fastest.pipeline_energy_j * setting.factor)
        reductions = (found.fastest_time_pct, found.fastest_energy_pct)
        rows.append(("fastest", *start, *end, *reductions))
    return pd.DataFrame(rows, columns=columns)


def split_frame(plan: PlanPoint, frontiers: Frontiers, setting: FrontierSetting) -> pd.DataFrame:
    """Return static and dynamic energy of a plan and of what it is measured against.

    Beside the plan: Megatron-LM's plan, and of Megatron-LM + Perseus the least-energy plan that is
    not slower (its fastest, where all are slower). Columns: label, method, order, kind (`dynamic`
    or `static`), energy_j in the setting's scope, iteration_time_s.
    """
    shown: list[tuple[str, PlanPoint]] = [(f"Plan {plan.number}", plan)]
    perseus = frontiers.get(Method.PERSEUS, ())
    if perseus and plan.method is not Method.PERSEUS:
        found = difference(plan, perseus)
        fastest = min(perseus, key=lambda other: other.iteration_time_s)
        shown.append((METHOD_NAMES[Method.PERSEUS], found.iso_time_plan or fastest))
    megatron = frontiers.get(Method.MEGATRON, ())
    if megatron and plan.method is not Method.MEGATRON:
        shown.append((METHOD_NAMES[Method.MEGATRON], megatron[0]))
    rows = []
    for order, (label, other) in enumerate(shown):
        dynamic_j = other.effective_energy_j * setting.factor
        static_j = other.pipeline_energy_j * setting.factor - dynamic_j
        rows += [
            {
                "label": label,
                "method": other.method.value,
                "order": order,
                "kind": kind,
                "energy_j": energy_j,
                "iteration_time_s": other.iteration_time_s,
            }
            for kind, energy_j in (("dynamic", dynamic_j), ("static", static_j))
        ]
    return pd.DataFrame(rows)


def timeline_frame(rows: Sequence[TimelineRow]) -> pd.DataFrame:
    """Return one row per instruction of a planned iteration.

    Columns: stage (0-based), lane (its words), position, direction, letter (F or B), microbatch,
    chunk, start_s, end_s, duration_s, slack_s, clock_mhz, execution, energy_j, dynamic_energy_j,
    average_power_w (one GPU), critical, configurations (words, one partition per line).
    """
    return pd.DataFrame(
        [
            {
                "stage": row.stage,
                "lane": f"Stage {row.stage}",
                "position": row.position,
                "direction": row.direction.value,
                "letter": "F" if row.direction is Direction.FORWARD else "B",
                "microbatch": row.microbatch,
                "chunk": row.chunk,
                "start_s": row.start_s,
                "end_s": row.start_s + row.duration_s,
                "duration_s": row.duration_s,
                "slack_s": row.slack_s,
                "clock_mhz": row.clock_mhz,
                "execution": row.execution.value,
                "energy_j": row.energy_j,
                "dynamic_energy_j": row.effective_energy_j,
                "average_power_w": row.average_power_w,
                "critical": row.critical,
                "configurations": "; ".join(
                    f"{name} {describe_configuration(configuration)}"
                    for name, configuration in row.configurations
                )
                if row.execution is Execution.NANOBATCH
                else "sequential",
            }
            for row in rows
        ]
    )


def bubble_share(frame: pd.DataFrame) -> float:
    """Return the share of stage-time in which a stage waits, 0 to 1."""
    total_s = float(frame["end_s"].max()) * frame["stage"].nunique()
    return 1.0 - float(frame["duration_s"].sum()) / total_s


def configuration_frame(plan: Plan, rows: Sequence[TimelineRow]) -> pd.DataFrame:
    """Return one row per distinct setting of each stage's forwards and backwards.

    Args:
        plan: The plan.
        rows: Its timeline.

    Returns:
        Columns stage, instruction, microbatches (such as `0-2, 5`), count, clock_mhz, execution,
        time_s, dynamic_energy_j, then one column per partition: `norm_0, 12 SMs`, `none, 20 SMs`,
        or a dash where the instruction does not have it or is sequential.
    """
    groups: dict[tuple[int, Direction, InstructionOption], list[int]] = {}
    for row in rows:
        option = plan.choices[row.stage][row.position]
        groups.setdefault((row.stage, row.direction, option), []).append(row.microbatch)
    partitions = list(
        dict.fromkeys(
            name
            for _, _, option in groups
            if option.execution is Execution.NANOBATCH
            for name, _ in option.configurations
        )
    )
    ordered = sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] != "forward"))
    table = []
    for (stage, direction, option), microbatches in ordered:
        settings = dict(option.configurations) if option.execution is Execution.NANOBATCH else {}
        table.append(
            {
                "stage": stage,
                "instruction": direction.value,
                "microbatches": ranges(microbatches),
                "count": len(microbatches),
                "clock_mhz": option.clock_mhz,
                "execution": option.execution.value,
                "time_s": option.time_s,
                "dynamic_energy_j": option.effective_energy_j,
                **{
                    name: describe_configuration(settings[name]) if name in settings else DASH
                    for name in partitions
                },
            }
        )
    return pd.DataFrame(table)


def convergence_frame(traces: Mapping[str, Iterable[tuple[int, float]]]) -> pd.DataFrame:
    """Return the searches' figure of merit over measurements.

    Args:
        traces: Per series (a partition, or a way of searching), (measurements so far, hypervolume).

    Returns:
        Columns series, num_measurements, hypervolume.
    """
    rows = [(series, *point) for series, trace in traces.items() for point in trace]
    return pd.DataFrame(rows, columns=["series", "num_measurements", "hypervolume"])


def partition_frame(measurements: Iterable[Measurement], *, static_power_w: float) -> pd.DataFrame:
    """Return one row per configuration of a partition, averaged over repeats.

    Configurations whose energy could not be measured keep a missing energy and are on no frontier.
    Columns: point_id, clock_mhz, launch_point, sm_allocation, time_s, energy_j, dynamic_energy_j,
    repeats, source, filled, on_frontier (time against total energy), on_clock_frontier (time
    against dynamic energy at its own clock).
    """
    frame = pd.DataFrame(
        [
            {
                "clock_mhz": m.configuration.clock_mhz,
                "launch_point": _launch_words(m.configuration.launch_point),
                "sm_allocation": np.nan
                if m.configuration.sm_allocation is None
                else float(m.configuration.sm_allocation),
                "time_s": m.time_s,
                "energy_j": np.nan if m.energy_j is None else m.energy_j,
                "source": SOURCE_WORDS[m.source],
                "filled": m.source is SourceKind.MEASURED,
            }
            for m in measurements
        ],
        columns=[
            "clock_mhz",
            "launch_point",
            "sm_allocation",
            "time_s",
            "energy_j",
            "source",
            "filled",
        ],
    )
    keys = ["clock_mhz", "launch_point", "sm_allocation", "source", "filled"]
    frame = (
        frame.groupby(keys, dropna=False, as_index=False)
        .agg(time_s=("time_s", "mean"), energy_j=("energy_j", "mean"), repeats=("time_s", "size"))
        .reset_index(drop=True)
    )
    frame["dynamic_energy_j"] = frame["energy_j"] - static_power_w * frame["time_s"]
    frame["on_frontier"] = False
    frame["on_clock_frontier"] = False
    known = frame.index[frame["energy_j"].notna()]
    _mark(frame, known, "energy_j", "on_frontier")
    for _, group in frame.loc[known].groupby("clock_mhz"):
        _mark(frame, group.index, "dynamic_energy_j", "on_clock_frontier")
    frame["point_id"] = [
        f"{int(clock)}-{point}-{'none' if np.isnan(sms) else int(sms)}"
        for clock, point, sms in zip(
            frame["clock_mhz"], frame["launch_point"], frame["sm_allocation"], strict=True
        )
    ]
    return frame


def parity_frame(points: Iterable[ParityPoint]) -> pd.DataFrame:
    """Return predicted against recorded values, one row per point and quantity.

    Columns: label, method, quantity (`time` in s, `energy` in J), recorded, predicted, error_pct
    (predicted above recorded is positive).
    """
    rows = []
    for point in points:
        for quantity, recorded, predicted in (
            ("time", point.recorded_time_s, point.predicted_time_s),
            ("energy", point.recorded_energy_j, point.predicted_energy_j),
        ):
            rows.append(
                {
                    "label": point.label,
                    "method": point.method.replace("_", "-"),
                    "quantity": quantity,
                    "recorded": recorded,
                    "predicted": predicted,
                    "error_pct": 100.0 * (predicted / recorded - 1.0),
                }
            )
    return pd.DataFrame(
        rows, columns=["label", "method", "quantity", "recorded", "predicted", "error_pct"]
    )


def ranges(numbers: Iterable[int]) -> str:
    """Return whole numbers with runs drawn together: `0-2, 5`."""
    runs = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        values = [value for _, value in run]
        runs.append(str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}")
    return ", ".join(runs)


def _band(energy_j: float, uncertainty: float | None, sign: int) -> float:
    """Return an edge of the uncertainty band; missing where none is stated."""
    return np.nan if uncertainty is None else energy_j * (1.0 + sign * uncertainty)


def _launch_words(point: LaunchPoint | None) -> str:
    """Return a launch point's name; a dash where nothing is launched."""
    return DASH if point is None else point.value


def _mark(frame: pd.DataFrame, index: "pd.Index[int]", energy: str, column: str) -> None:
    """Mark the non-dominated rows of a part of the frame."""
    points = frame.loc[index, ["time_s", energy]].to_numpy(dtype=np.float64)
    frame.loc[index[non_dominated(points)], column] = True

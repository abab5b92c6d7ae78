"""Measure and search the partitions of a study, remembering every result.

A result is stored as it comes and never asked for twice: the searches are functions of their seed
and of what they were told, so a study that was stopped anywhere is told the stored results in the
same order again and goes on where it was.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from kareus.core.configuration import Configuration
from kareus.core.measurement import (
    FailedMeasurement,
    Measurement,
    MeasurementSource,
    PartitionOption,
)
from kareus.core.partition import Direction, Execution, Partition
from kareus.core.pipeline import InstructionRecipe
from kareus.errors import MeasurementError
from kareus.search.allocation import StudyAllocator
from kareus.search.budget import Budget, BudgetKind, partition_budget
from kareus.search.kind import SearchKind
from kareus.search.loop import PartitionSearch, make_search
from kareus.search.smoothing import posterior_means
from kareus.search.surrogate import Prior
from kareus.search.threads import one_thread
from kareus.store import PartitionProgress, Phase, Progress, SearchRecord, Store

Result = Measurement | FailedMeasurement

# Units that recorded measurements may lack: the composition counts without them and says so.
_DISPENSABLE = (Execution.LEAD, Execution.TRAIL)


class Recorder:
    """Asks a source for results, each once, and stores them as they come.

    Args:
        store: Where results are kept.
        study: The study's id.
        source: Where new ones come from.
        seed: Stored beside each result.
        check: Called between measurements; raises where the study should stop.
    """

    def __init__(
        self,
        store: Store,
        study: str,
        source: MeasurementSource,
        *,
        seed: int,
        check: Callable[[], None],
    ) -> None:
        self.source = source
        self._store = store
        self._study = study
        self._seed = seed
        self._check = check
        self._known: dict[str, dict[tuple[Configuration, int], Result]] = {}
        for result in store.measurements(study):
            self._remember(result)

    @property
    def num_results(self) -> int:
        """Results there are, those of earlier runs included."""
        return sum(len(results) for results in self._known.values())

    def results_of(self, partition: str) -> tuple[Result, ...]:
        """Return what is known of a partition, in the order it came."""
        return tuple(self._known.get(partition, {}).values())

    def measure(
        self, partition: Partition, wanted: Iterable[tuple[Configuration, int]]
    ) -> list[Result]:
        """Return one result per (configuration, repeat), in order; measure those not known."""
        pairs = list(wanted)
        known = self._known.setdefault(partition.name, {})
        for repeat in sorted({repeat for _, repeat in pairs}):
            missing = [
                configuration
                for configuration, number in pairs
                if number == repeat and (configuration, repeat) not in known
            ]
            for result in self.source.measure(partition, missing, repeat=repeat):
                self._store.add_measurements(self._study, [result], seed=self._seed)
                self._remember(result)
                self._check()
        return [known[pair] for pair in pairs]

    def _remember(self, result: Result) -> None:
        """Keep a result under its partition, configuration and repeat."""
        of_partition = self._known.setdefault(result.partition, {})
        of_partition[result.configuration, result.repeat] = result


class Measuring:
    """The measuring phase of one study.

    Args:
        recorder: Gives results.
        partitions: Everything to measure, by name.
        recipes: What instructions consist of, for the partitions' weights.
        num_microbatches: Executions of each instruction per iteration.
        budget: How many measurements.
        search: How partitions are searched.
        seed: Of the searches.
        static_power_w: Static power in watts.
        priors: What other studies tell, by partition name.
        store, study: Where progress of the searches is kept.
        progress: Told after every batch.
    """

    def __init__(
        self,
        recorder: Recorder,
        partitions: Mapping[str, Partition],
        recipes: Mapping[tuple[int, Direction], InstructionRecipe],
        *,
        num_microbatches: int,
        budget: Budget,
        search: SearchKind,
        seed: int,
        static_power_w: float,
        priors: Mapping[str, Prior],
        store: Store,
        study: str,
        progress: Callable[[Progress], None],
    ) -> None:
        self._recorder = recorder
        self._recipes = recipes
        self._num_microbatches = num_microbatches
        self._budget = budget
        self._static_power_w = static_power_w
        self._store = store
        self._study = study
        self._progress = progress
        self._started = time.monotonic()
        self._already_there = recorder.num_results
        self.notes: list[str] = []
        self._candidates: dict[str, tuple[Configuration, ...]] = {}
        self._partitions: dict[str, Partition] = {}
        for name, partition in partitions.items():
            candidates = recorder.source.space(partition)
            if candidates:
                self._partitions[name] = partition
                self._candidates[name] = candidates
            elif partition.execution in _DISPENSABLE:
                self.notes.append(f"{name} was not recorded.")
            elif partition.execution is Execution.NANOBATCH:
                raise MeasurementError(
                    f"partition {name} has no recorded measurement: record it, or check the "
                    "workload's options"
                )
            else:
                self.notes.append(f"{name} was not recorded: methods that need it are left out.")
        self._searches: dict[str, PartitionSearch] = {
            name: make_search(
                search,
                partition,
                self._candidates[name],
                static_power_w=static_power_w,
                seed=seed,
                budget=partition_budget(partition, budget),
                prior=priors.get(name),
                repeats=recorder.source.repeatable,
            )
            for name, partition in self._partitions.items()
            if partition.searched
        }
        self._planned = {name: self._plan(name) for name in self._partitions}
        self._done = {name: len(recorder.results_of(name)) for name in self._partitions}
        self._traces: dict[str, tuple[float, ...]] = {}
        self.last_progress = Progress(phase=Phase.MEASURING)

    def run(self) -> dict[str, tuple[PartitionOption, ...]]:
        """Measure everything and return each partition's options (posterior means).

        Raises:
            MeasurementError: A partition has no usable measurement.
        """
        self._report()
        with one_thread():
            for name, partition in self._partitions.items():
                self._measure_baselines(name, partition)
                if self._budget.kind is not BudgetKind.NUMBER and name in self._searches:
                    self._search(name)
            if self._budget.num_measurements is not None:
                self._allocate(self._budget.num_measurements)
            self._report()
            return {name: self._options(name) for name in self._partitions}

    def run_baselines(self) -> dict[str, tuple[PartitionOption, ...]]:
        """Measure only what the baselines need and return each partition's options."""
        with one_thread():
            for name, partition in self._partitions.items():
                self._measure_baselines(name, partition)
            return {name: self._options(name) for name in self._partitions}

    def _plan(self, name: str) -> int:
        """Measurements planned for a partition, baselines included."""
        allowed = set(self._candidates[name])
        baselines = len(allowed.intersection(self._partitions[name].baseline_configurations()))
        if name not in self._searches or self._budget.num_measurements is not None:
            return baselines
        budget = partition_budget(self._partitions[name], self._budget)
        return baselines + min(budget.total, len(allowed))

    def _measure_baselines(self, name: str, partition: Partition) -> None:
        """Measure what the baselines need: every clock, or every clock's default and `none`."""
        allowed = set(self._candidates[name])
        wanted = [one for one in partition.baseline_configurations() if one in allowed]
        results = self._recorder.measure(partition, ((one, 0) for one in wanted))
        if name in self._searches and results:
            self._searches[name].tell(results)
        self._report(name)

    def _search(self, name: str) -> None:
        """Search one partition until its budget is spent."""
        search = self._searches[name]
        while batch := search.ask():
            search.tell(self._measure_batch(name, batch))
            self._report(name)

    def _allocate(self, num_measurements: int) -> None:
        """Spend one budget of the whole study where it helps the iteration most."""
        allocator = StudyAllocator(
            self._searches, weights=self._weights(), num_measurements=num_measurements
        )
        while request := allocator.ask():
            name, batch = request
            allocator.tell(name, self._measure_batch(name, batch))
            self._report(name)

    def _measure_batch(self, name: str, batch: Sequence[Configuration]) -> list[Result]:
        search = self._searches[name]
        return self._recorder.measure(
            self._partitions[name], ((one, search.next_repeat(one)) for one in batch)
        )

    def _weights(self) -> dict[str, float]:
        """Executions per iteration times the fastest default time, per searched partition."""
        executions = dict.fromkeys(self._searches, 0)
        for recipe in self._recipes.values():
            for name, count in recipe.nanobatch:
                if name in executions:
                    executions[name] += count * self._num_microbatches
        return {
            name: count
            * min(
                (r.time_s for r in self._recorder.results_of(name) if isinstance(r, Measurement)),
                default=0.0,
            )
            for name, count in executions.items()
        }

    def _options(self, name: str) -> tuple[PartitionOption, ...]:
        """The partition's options: posterior means of everything measured."""
        if name in self._searches:
            return self._searches[name].options()
        measured = [
            result for result in self._recorder.results_of(name) if isinstance(result, Measurement)
        ]
        return posterior_means(
            self._partitions[name], measured, static_power_w=self._static_power_w
        )

    def _report(self, name: str | None = None) -> None:
        """Tell how far the study is; keep the state of the search that moved."""
        elapsed_s = time.monotonic() - self._started
        fresh = self._recorder.num_results - self._already_there
        each_s = elapsed_s / fresh if fresh > 0 else None
        if name is not None:
            self._done[name] = len(self._recorder.results_of(name))
            if name in self._searches:
                trace = self._searches[name].hypervolume_trace
                self._traces[name] = tuple(value for _, value in trace)
                self._store.save_search(
                    self._study,
                    SearchRecord(
                        partition=name,
                        state="running",
                        planned=max(self._planned[name], self._done[name]),
                        done=self._done[name],
                        hypervolume=self._traces[name],
                    ),
                )
        done = sum(self._done.values())
        planned = sum(max(self._planned[one], count) for one, count in self._done.items())
        if self._budget.num_measurements is not None:
            planned = max(sum(self._planned.values()) + self._budget.num_measurements, done)
        self.last_progress = Progress(
            phase=Phase.MEASURING,
            done=done,
            planned=planned,
            partitions=tuple(
                PartitionProgress(
                    name=one,
                    done=count,
                    planned=max(self._planned[one], count),
                    hypervolume=self._traces.get(one, ()),
                    seconds_left=(
                        None if each_s is None else each_s * max(self._planned[one] - count, 0)
                    ),
                )
                for one, count in self._done.items()
            ),
            seconds_left=None if each_s is None else each_s * (planned - done),
        )
        self._progress(self.last_progress)

"""The methods compared: every one takes a space and returns what it recommends at each count.

Legend: a checkpoint is a number of measurements. Peers recommend what they measured; ours the
posterior means. Proposal time is CPU time of proposing, per batch (per generation for NSGA-II, per
eight trials for TPE), measuring excluded.
"""

import importlib.util
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kareus.core.configuration import Configuration
from kareus.core.measurement import PartitionOption
from kareus.core.partition import MeasuringBudget
from kareus.search.kind import SearchKind
from kareus.search.loop import make_search
from tests.benchmarks.search_spaces import BenchSpace

_POPULATION = 24
_BATCH = 8


@dataclass(kw_only=True)
class Run:
    """What one method did on one space with one seed.

    Attributes:
        options: What it recommends after each checkpoint's measurements.
        proposal_s: CPU seconds of each proposal.
    """

    options: dict[int, tuple[PartitionOption, ...]] = field(default_factory=dict)
    proposal_s: list[float] = field(default_factory=list)


Method = Callable[[BenchSpace, int, Sequence[int]], Run]


class _Recorder:
    """Measures each configuration once and notes what is known at the checkpoints."""

    def __init__(self, space: BenchSpace, checkpoints: Sequence[int]) -> None:
        self.space, self.checkpoints, self.run = space, list(checkpoints), Run()
        self._options: dict[Configuration, PartitionOption] = {}

    @property
    def full(self) -> bool:
        return len(self._options) >= min(max(self.checkpoints), len(self.space.truth))

    def objectives(self, configuration: Configuration) -> tuple[float, float]:
        """(time, effective energy) as measured; asked again it counts and costs nothing."""
        if configuration not in self._options and not self.full:
            measurement = self.space.measure(configuration, 0)
            assert measurement.energy_j is not None
            self._options[configuration] = PartitionOption(
                configuration=configuration,
                time_s=measurement.time_s,
                energy_j=measurement.energy_j,
            )
            if len(self._options) in self.checkpoints:
                self.run.options[len(self._options)] = tuple(self._options.values())
        option = self._options.get(configuration)
        if option is None:
            return np.inf, np.inf
        return option.time_s, option.effective_energy_j(self.space.static_power_w)


def _own(
    kind: SearchKind,
    space: BenchSpace,
    seed: int,
    checkpoints: Sequence[int],
    budget: Callable[[int], MeasuringBudget],
) -> Run:
    """Run one search to each count."""
    run = Run()
    for checkpoint in checkpoints:
        search = make_search(
            kind,
            space.partition,
            tuple(space.truth),
            static_power_w=space.static_power_w,
            seed=seed,
            budget=budget(checkpoint),
        )
        while True:
            start = time.process_time()
            batch = search.ask()
            run.proposal_s.append(time.process_time() - start)
            if not batch:
                break
            search.tell([space.measure(one, search.next_repeat(one)) for one in batch])
        run.options[checkpoint] = search.options()
    return run


def _even(total: int) -> MeasuringBudget:
    """24 and then batches of 8."""
    num_batches = max(total - 24, 0) // _BATCH
    return MeasuringBudget(
        initial=total - num_batches * _BATCH, num_batches=num_batches, batch_size=_BATCH
    )


def _published_split(total: int) -> MeasuringBudget:
    """The published split, 96 + 4 x 32 of 224, scaled."""
    batch_size = round(total / 7)
    return MeasuringBudget(initial=total - 4 * batch_size, num_batches=4, batch_size=batch_size)


def kareus(space: BenchSpace, seed: int, checkpoints: Sequence[int]) -> Run:
    """Ours."""
    return _own(SearchKind.KAREUS, space, seed, checkpoints, _even)


def random(space: BenchSpace, seed: int, checkpoints: Sequence[int]) -> Run:
    """Drawn without replacement."""
    return _own(SearchKind.RANDOM, space, seed, checkpoints, _even)


def published(space: BenchSpace, seed: int, checkpoints: Sequence[int]) -> Run:
    """The published method with its own split of each count."""
    return _own(SearchKind.PUBLISHED, space, seed, checkpoints, _published_split)


def nsga2(space: BenchSpace, seed: int, checkpoints: Sequence[int]) -> Run:
    """pymoo's NSGA-II on integer variables; measured configurations are not measured again."""
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.evaluator import Evaluator
    from pymoo.core.problem import Problem
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.operators.repair.rounding import RoundingRepair
    from pymoo.operators.sampling.rnd import IntegerRandomSampling
    from pymoo.problems.static import StaticProblem

    partition = space.partition
    axes: tuple[Sequence[Any], ...] = (
        partition.clocks_mhz,
        partition.sm_allocations,
        partition.launch_points,
    )
    problem = Problem(
        n_var=3, n_obj=2, xl=np.zeros(3), xu=np.array([len(axis) - 1 for axis in axes]), vtype=int
    )
    algorithm = NSGA2(
        pop_size=min(_POPULATION, len(space.truth)),
        sampling=IntegerRandomSampling(),
        crossover=SBX(prob=0.9, eta=15, vtype=float, repair=RoundingRepair()),
        mutation=PM(prob=0.9, eta=20, vtype=float, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )
    algorithm.setup(problem, seed=seed, verbose=False)
    recorder = _Recorder(space, checkpoints)
    for _ in range(500):
        if recorder.full or not algorithm.has_next():
            break
        start = time.process_time()
        population = algorithm.ask()
        recorder.run.proposal_s.append(time.process_time() - start)
        if population is None or len(population) == 0:
            break
        values = []
        for place in population.get("X").round().astype(int):
            clock, sms, launch = (axis[index] for axis, index in zip(axes, place, strict=True))
            configuration = Configuration(clock_mhz=clock, sm_allocation=sms, launch_point=launch)
            values.append(recorder.objectives(configuration))
        finite = np.array(values)
        finite[~np.isfinite(finite)] = 1e9
        Evaluator().eval(StaticProblem(problem, F=finite), population)
        start = time.process_time()
        algorithm.tell(infills=population)
        recorder.run.proposal_s[-1] += time.process_time() - start
    return recorder.run


def tpe(space: BenchSpace, seed: int, checkpoints: Sequence[int]) -> Run:
    """Optuna's multi-objective TPE; measured configurations are not measured again."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    partition = space.partition
    names = [one.value for one in partition.launch_points]
    recorder = _Recorder(space, checkpoints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        study = optuna.create_study(
            directions=["minimize", "minimize"],
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=_POPULATION),
        )
        times: list[float] = []
        for _ in range(20 * max(checkpoints)):
            if recorder.full:
                break
            start = time.process_time()
            trial = study.ask()
            clock = trial.suggest_int("clock", 0, len(partition.clocks_mhz) - 1)
            sms = trial.suggest_int("sms", 0, len(partition.sm_allocations) - 1)
            launch = trial.suggest_categorical("launch", names)
            times.append(time.process_time() - start)
            configuration = Configuration(
                clock_mhz=partition.clocks_mhz[clock],
                sm_allocation=partition.sm_allocations[sms],
                launch_point=partition.launch_points[names.index(launch)],
            )
            study.tell(trial, recorder.objectives(configuration))
    batches = [times[start : start + _BATCH] for start in range(0, len(times), _BATCH)]
    recorder.run.proposal_s.extend(sum(batch) for batch in batches)
    return recorder.run


METHODS: dict[str, Method] = {
    "random": random,
    "nsga2": nsga2,
    "tpe": tpe,
    "published": published,
    "kareus": kareus,
}
_NEEDS = {"tpe": "optuna"}


def absent() -> dict[str, str]:
    """Return the methods whose package is not installed, with what to install."""
    return {
        method: f"{package} is not installed (pip install 'kareus[bench]')"
        for method, package in _NEEDS.items()
        if importlib.util.find_spec(package) is None
    }

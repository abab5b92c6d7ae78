import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.compose.instruction import TIME_GRID_S
from kareus.compose.iteration import solve_iteration
from kareus.compose.parametric import relax
from kareus.compose.problem import build_problem
from kareus.core.frontier import non_dominated
from kareus.core.partition import Direction
from kareus.core.pipeline import Pipeline, PipelineOrder, build_pipeline, one_f_one_b
from kareus.core.plan import Method
from kareus.errors import ConfigError
from tests.benchmarks.solver_instances import STATIC_POWER_W, synthetic_options
from tests.compose.linear_oracle import least_effective_energy_j
from tests.compose.synthetic import option, random_options

STATIC_W = 85.0


@st.composite
def pipelines(draw: st.DrawFn, most: int = 40) -> Pipeline:
    order = draw(st.sampled_from(PipelineOrder))
    chunks = 2 if order is PipelineOrder.INTERLEAVED else 1
    stages = draw(st.integers(1, 4))
    microbatches = draw(st.integers(1, max(1, most // (2 * stages * chunks))))
    return build_pipeline(order, stages, microbatches, num_chunks=chunks)


def _relaxed(pipeline: Pipeline, options, *, num_deadlines: int = 4):
    return relax(
        build_problem(pipeline, options),
        held_power_w=pipeline.num_stages * STATIC_W,
        num_deadlines=num_deadlines,
        extra_deadlines=np.empty(0, dtype=np.int64),
    )


@settings(deadline=None, max_examples=60)
@given(pipelines(), st.integers(1, 12), st.integers(0, 10_000), st.floats(0, 1))
def test_relaxation_agrees_with_highs(pipeline, num_options, seed, share) -> None:
    options = random_options(pipeline.kinds, num_options, seed)
    relaxation = _relaxed(pipeline, options)
    fastest, slowest = relaxation.times_s[-1], relaxation.times_s[0]
    deadline = fastest + share * (slowest - fastest)
    # HiGHS may find the very fastest deadline infeasible by a rounding error.
    expected = least_effective_energy_j(pipeline, options, float(deadline) * (1 + 1e-12))
    assert expected is not None
    assert relaxation.effective_energy_j(deadline) == pytest.approx(expected, rel=1e-9)


def test_relaxation_agrees_with_highs_on_a_middle_instance() -> None:
    pipeline = one_f_one_b(4, 12)
    options = random_options(pipeline.kinds, 30, 5)
    relaxation = _relaxed(pipeline, options)
    for share in (0.01, 0.2, 0.5, 0.9):
        deadline = relaxation.times_s[-1] + share * (relaxation.times_s[0] - relaxation.times_s[-1])
        expected = least_effective_energy_j(pipeline, options, float(deadline))
        assert relaxation.effective_energy_j(deadline) == pytest.approx(expected, rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(pipelines(), st.integers(2, 12), st.integers(0, 10_000))
def test_windows_are_consistent_and_optimal(pipeline, num_options, seed) -> None:
    options = random_options(pipeline.kinds, num_options, seed)
    problem = build_problem(pipeline, options)
    relaxation = _relaxed(pipeline, options)
    for k, deadline in enumerate(relaxation.deadlines):
        starts, ends = relaxation.starts[k], relaxation.ends[k]
        assert starts.min() >= 0
        assert ends.max() <= deadline
        energy = 0.0
        for node in range(problem.num_nodes):
            before = problem.pred[problem.pred_ptr[node] : problem.pred_ptr[node + 1]]
            assert np.all(ends[before] <= starts[node])
            own = slice(*problem.hull_ptr[problem.kind[node] : problem.kind[node] + 2])
            times, energies = problem.hull_time[own], problem.hull_energy_j[own]
            assert ends[node] - starts[node] >= times[0]
            energy += np.interp(ends[node] - starts[node], times, energies)
        assert energy == pytest.approx(
            relaxation.effective_energy_j(deadline * TIME_GRID_S), rel=1e-9
        )


def test_prices_rise_and_meet_the_static_power_at_the_most_frugal_time() -> None:
    pipeline = one_f_one_b(3, 6)
    relaxation = _relaxed(pipeline, random_options(pipeline.kinds, 15, 3))
    assert np.all(np.diff(relaxation.prices_w) >= 0)
    held = 3 * STATIC_W
    total = relaxation.energies_j + held * relaxation.times_s
    assert relaxation.frugal_s == relaxation.times_s[np.argmin(total)]


def _brute_force(pipeline: Pipeline, options) -> list[tuple[float, float]]:
    """The true frontier in (iteration time, pipeline energy), by enumeration."""
    held = pipeline.num_stages * STATIC_W
    found = []
    for chosen in itertools.product(*(options[kind] for kind in pipeline.kinds)):
        time_s = pipeline.makespan_s([o.time_s for o in chosen])
        found.append((time_s, sum(o.effective_energy_j for o in chosen) + held * time_s))
    return [found[k] for k in non_dominated(found)]


@settings(deadline=None, max_examples=25)
@given(st.sampled_from([(1, 1), (1, 2), (2, 1)]), st.integers(0, 10_000))
def test_plans_agree_with_brute_force_on_tiny_iterations(shape, seed) -> None:
    pipeline = one_f_one_b(*shape)
    options = random_options(pipeline.kinds, 4, seed)
    exact = _brute_force(pipeline, options)
    plans = solve_iteration(
        pipeline,
        options,
        static_power_w=STATIC_W,
        method=Method.KAREUS,
        extra_deadlines_s=[time for time, _ in exact],
    )
    fastest_time, _ = exact[0]
    assert plans[0].iteration_time_s == fastest_time
    for plan in plans:
        best = min(e for t, e in exact if t <= plan.iteration_time_s)
        assert plan.pipeline_energy_j >= best * (1 - 1e-12)
        if plan.bound_j is not None:
            assert plan.bound_j <= best * (1 + 1e-9)
    frugal = min(range(len(exact)), key=lambda k: exact[k][1])
    for time_s, energy_j in exact[: frugal + 1]:
        ours = min(p.pipeline_energy_j for p in plans if p.iteration_time_s <= time_s)
        # Beyond the relaxation's most frugal time no deadline is looked at.
        assert ours <= energy_j * (1 + 1e-12) or time_s > plans[-1].iteration_time_s


def test_rounding_is_near_the_optimum_where_it_is_not_enumerated(monkeypatch) -> None:
    monkeypatch.setattr("kareus.compose.exact.MAX_ENTRIES", 1)
    pipeline = one_f_one_b(2, 2)
    excess = []
    for seed in range(3):
        options = random_options(pipeline.kinds, 4, seed)
        exact = _brute_force(pipeline, options)
        plans = solve_iteration(
            pipeline,
            options,
            static_power_w=STATIC_W,
            method=Method.KAREUS,
            extra_deadlines_s=[time for time, _ in exact],
        )
        excess += [
            min(p.pipeline_energy_j for p in plans if p.iteration_time_s <= time_s) / energy_j - 1
            for time_s, energy_j in exact
            if time_s <= plans[-1].iteration_time_s
        ]
    assert np.mean(excess) < 0.005


@settings(deadline=None, max_examples=25)
@given(pipelines(), st.integers(1, 10), st.integers(0, 10_000))
def test_plans_are_real(pipeline, num_options, seed) -> None:
    options = random_options(pipeline.kinds, num_options, seed)
    held = pipeline.num_stages * STATIC_W
    plans = solve_iteration(
        pipeline, options, static_power_w=STATIC_W, method=Method.PERSEUS, num_plans=7
    )
    assert [plan.number for plan in plans] == list(range(len(plans)))
    assert list(non_dominated([(p.iteration_time_s, p.pipeline_energy_j) for p in plans])) == list(
        range(len(plans))
    )
    for plan in plans:
        flat = [o for stage in plan.choices for o in stage]
        assert all(o in options[kind] for o, kind in zip(flat, pipeline.kinds, strict=True))
        assert [len(stage) for stage in plan.choices] == [len(s) for s in pipeline.stages]
        assert plan.iteration_time_s == pipeline.makespan_s([o.time_s for o in flat])
        assert plan.effective_energy_j == pytest.approx(sum(o.effective_energy_j for o in flat))
        assert plan.pipeline_energy_j == pytest.approx(
            plan.effective_energy_j + held * plan.iteration_time_s
        )
        assert plan.gap is None or plan.gap >= -1e-9


def test_extra_deadlines_and_candidates_are_met() -> None:
    pipeline = one_f_one_b(2, 6)
    options = random_options(pipeline.kinds, 20, 11)
    few = {kind: own[::4] for kind, own in options.items()}
    baseline = solve_iteration(
        pipeline, few, static_power_w=STATIC_W, method=Method.PERSEUS, num_plans=20
    )
    # A single plan of its own, so that only the candidates can help.
    plans = solve_iteration(
        pipeline,
        options,
        static_power_w=STATIC_W,
        method=Method.KAREUS,
        num_plans=1,
        candidates=baseline,
    )
    for other in baseline:
        assert any(
            p.iteration_time_s <= other.iteration_time_s
            and p.pipeline_energy_j <= other.pipeline_energy_j
            for p in plans
        )


def test_gaps_are_small() -> None:
    pipeline = one_f_one_b(3, 8)
    plans = solve_iteration(
        pipeline,
        random_options(pipeline.kinds, 60, 2),
        static_power_w=STATIC_W,
        method=Method.KAREUS,
        num_plans=20,
    )
    gaps = [plan.gap for plan in plans if plan.gap is not None]
    assert len(gaps) == len(plans)
    assert np.mean(gaps) < 0.01


def test_solving_twice_gives_the_same_plans() -> None:
    pipeline = one_f_one_b(2, 4)
    options = random_options(pipeline.kinds, 12, 4)
    first, second = (
        solve_iteration(pipeline, options, static_power_w=STATIC_W, method=Method.KAREUS)
        for _ in range(2)
    )
    assert first == second


def test_nothing_to_choose_gives_one_plan_without_bound() -> None:
    pipeline = one_f_one_b(2, 3)
    options = {kind: (option(1.0, 100.0),) for kind in pipeline.kinds}
    (plan,) = solve_iteration(pipeline, options, static_power_w=STATIC_W, method=Method.MEGATRON)
    assert plan.iteration_time_s == 8.0
    assert plan.effective_energy_j == 12 * 100.0
    assert plan.bound_j is None
    assert plan.gap is None


def test_bad_input_is_refused() -> None:
    pipeline = one_f_one_b(2, 3)
    options = random_options(pipeline.kinds, 3, 0)
    with pytest.raises(ConfigError, match="num_plans = 0"):
        solve_iteration(
            pipeline, options, static_power_w=STATIC_W, method=Method.KAREUS, num_plans=0
        )
    with pytest.raises(ConfigError, match="static power"):
        solve_iteration(pipeline, options, static_power_w=-1.0, method=Method.KAREUS)
    del options[1, Direction.BACKWARD]
    with pytest.raises(ConfigError, match="stage 1 has no options for its backward"):
        solve_iteration(pipeline, options, static_power_w=STATIC_W, method=Method.KAREUS)


@pytest.mark.parametrize(("shape", "most_pct"), [((2, 8), 0.15), ((4, 16), 0.18), ((8, 32), 0.18)])
def test_gaps_on_the_benchmark_instances(shape, most_pct) -> None:
    plans = solve_iteration(
        one_f_one_b(*shape),
        synthetic_options(shape[0], 0),
        static_power_w=STATIC_POWER_W,
        method=Method.KAREUS,
    )
    assert 100 * np.mean([plan.gap for plan in plans]) <= most_pct


def test_without_static_power_the_slowest_plan_is_the_most_frugal() -> None:
    pipeline = one_f_one_b(2, 4)
    options = random_options(pipeline.kinds, 8, 1)
    plans = solve_iteration(pipeline, options, static_power_w=0.0, method=Method.KAREUS)
    assert plans[-1].pipeline_energy_j == pytest.approx(
        sum(options[kind][-1].effective_energy_j for kind in pipeline.kinds)
    )


def test_equal_times_and_negative_energies_are_survived() -> None:
    pipeline = one_f_one_b(2, 3)
    own = tuple(option(t, e) for t, e in ((1.0, 5.0), (1.0, 3.0), (2.0, -4.0), (3.0, -4.0)))
    plans = solve_iteration(
        pipeline, dict.fromkeys(pipeline.kinds, own), static_power_w=0.1, method=Method.KAREUS
    )
    assert plans[0].iteration_time_s == 8.0
    assert {o for plan in plans for stage in plan.choices for o in stage} <= {own[1], own[2]}


@pytest.mark.parametrize("scale", [1e-6, 1e3])
def test_very_short_and_very_long_instructions(scale) -> None:
    pipeline = one_f_one_b(2, 4)
    options = {
        kind: tuple(option(o.time_s * scale, o.effective_energy_j) for o in own)
        for kind, own in random_options(pipeline.kinds, 10, 2).items()
    }
    plans = solve_iteration(
        pipeline, options, static_power_w=STATIC_W / scale, method=Method.KAREUS, num_plans=10
    )
    assert len(plans) > 3
    assert all(plan.gap is not None and -1e-9 <= plan.gap < 0.05 for plan in plans)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.core.configuration import Configuration
from kareus.core.measurement import Measurement, SourceKind
from kareus.study.carry_over import carry_over

STATIC_W = 80.0


def one(
    partition: str, clock: int, time_s: float, dynamic_j: float | None, repeat: int = 0
) -> Measurement:
    """A measurement of that dynamic energy."""
    return Measurement(
        partition=partition,
        configuration=Configuration(clock_mhz=clock),
        time_s=time_s,
        energy_j=None if dynamic_j is None else dynamic_j + STATIC_W * time_s,
        source=SourceKind.SIMULATOR,
        repeat=repeat,
    )


STUDIED = [
    one("a", 1000, 1.0, 10.0),
    one("a", 1000, 1.2, 10.0, repeat=1),
    one("a", 1400, 0.8, 20.0),
    one("b", 1000, 2.0, 30.0),
    one("c", 1000, 3.0, 40.0),
]


def found(run: list[Measurement]) -> dict[tuple[str, int], object]:
    """Time and dynamic energy after the run."""
    carried = carry_over(STUDIED, run, static_power_w=STATIC_W)
    return {
        (m.partition, m.configuration.clock_mhz): (
            m.time_s,
            (m.energy_j or 0.0) - STATIC_W * m.time_s,
        )
        for m in carried.measurements
    }


def test_the_runs_own_replace_all_repeats() -> None:
    carried = carry_over(STUDIED, [one("a", 1000, 2.2, 15.0)], static_power_w=STATIC_W)
    assert carried.num_run == 1
    same = [m for m in carried.measurements if m.configuration.clock_mhz == 1000]
    assert [m.time_s for m in same if m.partition == "a"] == [2.2]
    assert len(carried.measurements) == 4


def test_others_follow_the_ratios_of_their_partition_else_of_all() -> None:
    # Mean of the repeats of `a` at 1000 MHz: 1.1 s.
    values = found([one("a", 1000, 2.2, 15.0), one("b", 1000, 2.0, 15.0)])
    assert values["a", 1400] == (pytest.approx(1.6), pytest.approx(30.0))
    assert values["b", 1000] == (pytest.approx(2.0), pytest.approx(15.0))
    assert values["c", 1000] == (pytest.approx(3.0 * 1.5), pytest.approx(40.0))  # 1.5 and 0.5


def test_a_run_as_planned_changes_nothing() -> None:
    values = found([one("b", 1000, 2.0, 30.0)])
    assert values["c", 1000] == (pytest.approx(3.0), pytest.approx(40.0))
    assert values["a", 1400] == (pytest.approx(0.8), pytest.approx(20.0))


def test_without_energy_the_dynamic_energy_stays() -> None:
    carried = carry_over(STUDIED, [one("a", 1000, 2.2, None)], static_power_w=STATIC_W)
    assert carried.dynamic_ratio is None and carried.time_ratio == pytest.approx(2.0)
    values = found([one("a", 1000, 2.2, None)])
    assert values["a", 1000] == (pytest.approx(2.2), pytest.approx(10.0))
    assert values["c", 1000] == (pytest.approx(6.0), pytest.approx(40.0))


def test_what_has_no_energy_at_all_is_left_out() -> None:
    assert ("d", 1000) not in found([one("d", 1000, 1.0, None)])
    assert found([one("d", 1000, 1.0, 5.0)])["d", 1000] == (1.0, pytest.approx(5.0))


def test_power_below_static_says_nothing_about_the_others() -> None:
    values = found([one("a", 1000, 1.1, -5.0)])
    assert values["a", 1400] == (pytest.approx(0.8), pytest.approx(20.0))


POSITIVE = st.floats(min_value=1e-4, max_value=1e2)
SHARES = st.floats(min_value=0.05, max_value=5.0)  # of the static energy; noise may go below it
VALUES = st.lists(st.tuples(POSITIVE, SHARES), min_size=4, max_size=4)


@given(VALUES, st.lists(st.tuples(POSITIVE, st.none() | SHARES), min_size=2, max_size=2))
def test_energies_stay_positive(
    studied: list[tuple[float, float]], run: list[tuple[float, float | None]]
) -> None:
    def made(number: int, time_s: float, share: float | None) -> Measurement:
        dynamic_j = None if share is None else (share - 1) * STATIC_W * time_s
        return one("ab"[number % 2], 1000 + number // 2, time_s, dynamic_j)

    carried = carry_over(
        [made(number, *values) for number, values in enumerate(studied)],
        [made(number, *values) for number, values in enumerate(run)],
        static_power_w=STATIC_W,
    )
    assert len(carried.measurements) == len(studied)
    assert all(
        m.time_s > 0 and m.energy_j is not None and m.energy_j > 0 for m in carried.measurements
    )

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.report import format as fmt

T = "\u2009"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4.405, f"4.41{T}s"),
        (4.4, f"4.40{T}s"),
        (0.0123, f"12.3{T}ms"),
        (1.5e-5, f"15.0{T}µs"),
        (0.9996, f"1.00{T}s"),
        (1234.0, f"1{T}230{T}s"),
        (0.0, f"0{T}s"),
        (-3.2, f"\u22123.20{T}s"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_times(value, text):
    assert fmt.time(value) == text


def test_prefixes_follow_size():
    assert fmt.energy(999.4) == f"999{T}J"
    assert fmt.energy(999.6) == f"1.00{T}kJ"
    assert fmt.energy(5.71e10) == f"57.1{T}GJ"
    assert fmt.power(3920) == f"3.92{T}kW"
    assert fmt.clock(1410) == f"1{T}410{T}MHz"
    assert fmt.electricity(3.6e6) == f"1.00{T}kWh"
    assert fmt.mass(6345.3) == f"6.35{T}t"
    assert fmt.mass(0.5) == f"500{T}g"
    assert fmt.money(12.3, "EUR") == f"12.30{T}EUR"
    assert fmt.money(12345.6, "EUR") == f"12{T}346{T}EUR"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (42.4, f"42{T}s"),
        (60, f"1{T}min"),
        (200, f"3{T}min 20{T}s"),
        (18720, f"5{T}h 12{T}min"),
        (86400 * 12 + 4 * 3600, f"12{T}d 4{T}h"),
        (None, "–"),
    ],
)
def test_durations(seconds, text):
    assert fmt.duration(seconds) == text


def test_reductions_are_words():
    assert fmt.reduction(11.83, "energy") == f"11.8{T}% less energy"
    assert fmt.reduction(-2.0, "energy") == f"2.0{T}% more energy"
    assert fmt.reduction(0.04, "energy") == "the same energy"
    assert fmt.reduction(None, "energy") == "–"
    assert fmt.speed(9.21) == f"9.2{T}% faster"
    assert fmt.speed(-9.21) == f"9.2{T}% slower"
    assert fmt.speed(0.0) == "as fast"


@given(st.floats(1e-5, 1e14))
def test_three_figures_are_what_is_shown(value):
    text = fmt.energy(value)
    digits, unit = text.split(T)
    factor = {"µ": 1e-6, "m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit[:-1]]
    assert float(digits) * factor == pytest.approx(value, rel=5.01e-3)
    assert len(digits.replace(".", "")) == 3
    assert 1 <= float(digits) < 1000

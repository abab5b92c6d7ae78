"""Numbers as a reader meets them: three significant figures, SI prefixes, typographic signs.

A thin space (U+2009) before the unit, a real minus sign (U+2212), a dash for what is unknown.
Reductions are positive percentages with a word; a bare sign is never left to decode.
"""

import math

THIN_SPACE = "\u2009"
MINUS = "\u2212"
DASH = "–"

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))


def number(value: float | None, *, digits: int = 3) -> str:
    """Return a number with that many significant figures, thousands apart by thin spaces."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0.0:
        return "0"
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    decimals = digits - 1 - exponent
    rounded = round(value, decimals)
    text = f"{abs(rounded):,.{max(0, decimals)}f}".replace(",", THIN_SPACE)
    return f"{MINUS if value < 0 else ''}{text}"


def quantity(value: float | None, unit: str, *, digits: int = 3) -> str:
    """Return a value with its unit and the prefix that fits, such as `4.41 s` or `12.0 kJ`.

    Args:
        value: In the bare unit; None or not finite gives a dash.
        unit: `s` (prefixes below one only), `J`, `W`, `Hz`, `B`, ... ; `kg` and `kWh` are shown as
            they are.
        digits: Significant figures.
    """
    if value is None or not math.isfinite(value):
        return DASH
    if unit in ("kg", "kWh", "MHz", "%"):
        return f"{number(value, digits=digits)}{THIN_SPACE}{unit}"
    size = abs(float(f"{value:.{digits - 1}e}"))
    factor, prefix = 1.0, ""
    if size > 0.0:
        for factor, prefix in _PREFIXES:  # noqa: B007 (the last one is the smallest there is)
            if size >= factor and not (unit == "s" and factor > 1.0):
                break
    return f"{number(value / factor, digits=digits)}{THIN_SPACE}{prefix}{unit}"


def time(value_s: float | None) -> str:
    """Return a time in seconds, ms or µs."""
    return quantity(value_s, "s")


def energy(value_j: float | None) -> str:
    """Return an energy in J, kJ, MJ, ..."""
    return quantity(value_j, "J")


def power(value_w: float | None) -> str:
    """Return a power in W, kW, MW, ..."""
    return quantity(value_w, "W")


def clock(value_mhz: float | None) -> str:
    """Return a clock in MHz, whole."""
    if value_mhz is None or not math.isfinite(value_mhz):
        return DASH
    return f"{value_mhz:,.0f}".replace(",", THIN_SPACE) + f"{THIN_SPACE}MHz"


def duration(value_s: float | None) -> str:
    """Return a long time for people: `42 s`, `3 min 20 s`, `5 h 12 min`, `12 d 4 h`."""
    if value_s is None or not math.isfinite(value_s):
        return DASH
    seconds = round(value_s)
    if seconds < 60:
        return f"{seconds}{THIN_SPACE}s"
    for size, unit, next_size, next_unit in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            rest = seconds % size // next_size
            head = f"{seconds // size:,}".replace(",", THIN_SPACE) + f"{THIN_SPACE}{unit}"
            return f"{head} {rest}{THIN_SPACE}{next_unit}" if rest else head
    raise AssertionError("a minute or more has a size")


def percent(value: float | None) -> str:
    """Return the size of a percentage, one decimal below 100: `11.8 %`. The sign is dropped."""
    if value is None or not math.isfinite(value):
        return DASH
    size = abs(value)
    decimals = 1 if size < 99.95 else 0
    return f"{size:.{decimals}f}{THIN_SPACE}%"


def is_nothing(value: float) -> bool:
    """Return whether a percentage shows as zero."""
    return abs(value) < 0.05


def reduction(value_pct: float | None, what: str) -> str:
    """Return a reduction in words: `11.8 % less energy`, `2.0 % more energy`, `the same energy`.

    Args:
        value_pct: Positive is less; None gives a dash.
        what: The noun.
    """
    if value_pct is None or not math.isfinite(value_pct):
        return DASH
    if is_nothing(value_pct):
        return f"the same {what}"
    return f"{percent(value_pct)} {'less' if value_pct > 0 else 'more'} {what}"


def speed(value_pct: float | None) -> str:
    """Return a time reduction in words: `9.2 % faster`, `3.0 % slower`, `as fast`."""
    if value_pct is None or not math.isfinite(value_pct):
        return DASH
    if is_nothing(value_pct):
        return "as fast"
    return f"{percent(value_pct)} {'faster' if value_pct > 0 else 'slower'}"


def money(value: float | None, currency: str) -> str:
    """Return an amount of money, such as `1 230 EUR`; cents below 100."""
    if value is None or not math.isfinite(value):
        return DASH
    decimals = 2 if abs(value) < 100 else 0
    text = f"{abs(value):,.{decimals}f}".replace(",", THIN_SPACE)
    return f"{MINUS if value < 0 else ''}{text}{THIN_SPACE}{currency}"


def mass(value_kg: float | None) -> str:
    """Return a mass in g, kg or t."""
    if value_kg is None or not math.isfinite(value_kg):
        return DASH
    size = abs(float(f"{value_kg:.2e}"))
    if size >= 1000:
        return f"{number(value_kg / 1000)}{THIN_SPACE}t"
    if 0 < size < 1:
        return f"{number(value_kg * 1000)}{THIN_SPACE}g"
    return f"{number(value_kg)}{THIN_SPACE}kg"


def electricity(value_j: float | None) -> str:
    """Return an energy given in joules as Wh, kWh, MWh, ... (what bills are written in)."""
    return quantity(None if value_j is None else value_j / 3600.0, "Wh")

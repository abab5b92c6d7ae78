"""The covariance of a partition's configurations, and its slopes for the fit; compiled.

Legend: x points, shape (n, 4): clock and SMs (between 0 and 1 over the space), slot (its number),
guide (about 0 to 1); c clock - 0.5.

    k(x, x') = 1 + 4 c c' + a1 M(clock) + a2 M(SMs, slot) + a3 M(clock, SMs, slot)
               + a4 M(clock, guide) + a5 [SMs, slot equal]

with M a Matern-5/2 kernel of scaled distance: a trend in the clock, a part that clocks share, a
part of their own. The guide is another quantity the targets follow (for energy: time). The last
term is what neither neighbours nor the guide tell of an SM allocation and slot, the same at all
clocks. Two different slots are one length apart whatever their position, since savings of launch
points do not add up along the computation.
"""

import math

import numpy as np

from kareus.compiled import compiled

# Order of the values `covariance` and `slopes` take: amplitudes a and lengths l per term. The terms
# a2, a3 and a5 are left out together where a2 is 0, a4 where it is 0.
PARAMETERS = (
    "a1",
    "l1_clock",
    "a2",
    "l2_sms",
    "l2_slot",
    "a3",
    "l3_clock",
    "l3_sms",
    "l3_slot",
    "a4",
    "l4_clock",
    "l4_guide",
    "a5",
)
_TREND_0 = 1.0
_TREND_1 = 4.0
_ROOT5 = math.sqrt(5.0)


@compiled
def _matern(squared):  # type: ignore[no-untyped-def]
    """Matern-5/2 of a squared scaled distance, and its derivative with respect to that."""
    scaled = _ROOT5 * math.sqrt(squared)
    decay = math.exp(-scaled)
    return (1.0 + scaled + scaled * scaled / 3.0) * decay, (-5.0 / 6.0) * (1.0 + scaled) * decay


@compiled
def covariance(first, second, values):  # type: ignore[no-untyped-def]
    """Return the covariance between two sets of points without noise, shape (n, m).

    Args:
        first: Shape (n, 4).
        second: Shape (m, 4).
        values: Of `PARAMETERS`, shape (13,).
    """
    a1, l1_clock, a2, l2_sms, l2_slot, a3, l3_clock, l3_sms, l3_slot, a4, l4_clock, l4_guide, a5 = (
        values
    )
    result = np.empty((len(first), len(second)))
    for i in range(len(first)):
        for j in range(len(second)):
            clock = (first[i, 0] - second[j, 0]) ** 2
            total = _TREND_0 + _TREND_1 * (first[i, 0] - 0.5) * (second[j, 0] - 0.5)
            total += a1 * _matern(clock / l1_clock**2)[0]
            if a2 > 0.0:
                sms = (first[i, 1] - second[j, 1]) ** 2
                slot = 0.0 if first[i, 2] == second[j, 2] else 1.0
                total += a2 * _matern(sms / l2_sms**2 + slot / l2_slot**2)[0]
                own = clock / l3_clock**2 + sms / l3_sms**2 + slot / l3_slot**2
                total += a3 * _matern(own)[0]
                if sms == 0.0 and slot == 0.0:
                    total += a5
            if a4 > 0.0:
                guide = (first[i, 3] - second[j, 3]) ** 2
                total += a4 * _matern(clock / l4_clock**2 + guide / l4_guide**2)[0]
            result[i, j] = total
    return result


@compiled
def slopes(points, values, outer):  # type: ignore[no-untyped-def]
    """Return d sum(outer * covariance) / d log value of each of `PARAMETERS`, shape (13,).

    Args:
        points: Shape (n, 4).
        values: Of `PARAMETERS`, shape (13,).
        outer: Weights of the covariances, symmetric, shape (n, n).
    """
    a1, l1_clock, a2, l2_sms, l2_slot, a3, l3_clock, l3_sms, l3_slot, a4, l4_clock, l4_guide, a5 = (
        values
    )
    result = np.zeros(13)
    for i in range(len(points)):
        for j in range(i + 1):
            # The matrix is symmetric: every pair below the diagonal counts twice.
            weight = outer[i, j] if i == j else 2.0 * outer[i, j]
            clock = (points[i, 0] - points[j, 0]) ** 2
            value, slope = _matern(clock / l1_clock**2)
            result[0] += weight * a1 * value
            # d s / d log l = -2 s / l^2 of each part s of a squared scaled distance.
            result[1] -= 2.0 * weight * a1 * slope * clock / l1_clock**2
            if a2 > 0.0:
                sms = (points[i, 1] - points[j, 1]) ** 2
                slot = 0.0 if points[i, 2] == points[j, 2] else 1.0
                value, slope = _matern(sms / l2_sms**2 + slot / l2_slot**2)
                result[2] += weight * a2 * value
                result[3] -= 2.0 * weight * a2 * slope * sms / l2_sms**2
                result[4] -= 2.0 * weight * a2 * slope * slot / l2_slot**2
                own = clock / l3_clock**2 + sms / l3_sms**2 + slot / l3_slot**2
                value, slope = _matern(own)
                result[5] += weight * a3 * value
                result[6] -= 2.0 * weight * a3 * slope * clock / l3_clock**2
                result[7] -= 2.0 * weight * a3 * slope * sms / l3_sms**2
                result[8] -= 2.0 * weight * a3 * slope * slot / l3_slot**2
                if sms == 0.0 and slot == 0.0:
                    result[12] += weight * a5
            if a4 > 0.0:
                guide = (points[i, 3] - points[j, 3]) ** 2
                value, slope = _matern(clock / l4_clock**2 + guide / l4_guide**2)
                result[9] += weight * a4 * value
                result[10] -= 2.0 * weight * a4 * slope * clock / l4_clock**2
                result[11] -= 2.0 * weight * a4 * slope * guide / l4_guide**2
    return result

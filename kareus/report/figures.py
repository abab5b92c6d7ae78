"""The charts, by name. They only draw frames of `kareus.report.data`, in the look of `theme`.

Filled marks are measured, hollow ones predicted (simulated or replayed). Every chart has a fixed
height, fills its container's width, and names its units.
"""

from kareus.report.drawing import VIEW, AnyChart
from kareus.report.figures_frontier import PLAN_SELECTION, frontier_figure
from kareus.report.figures_plan import split_figure, timeline_figure
from kareus.report.figures_search import (
    POINT_SELECTION,
    convergence_figure,
    parity_figure,
    partition_figure,
)
from kareus.report.training import training_figure

__all__ = [
    "PLAN_SELECTION",
    "POINT_SELECTION",
    "VIEW",
    "AnyChart",
    "convergence_figure",
    "frontier_figure",
    "parity_figure",
    "partition_figure",
    "split_figure",
    "timeline_figure",
    "training_figure",
]

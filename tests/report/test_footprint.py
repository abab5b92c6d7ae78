from dataclasses import dataclass

import pytest

from kareus.report.footprint import (
    COMPONENTS,
    layers_figure,
    layers_frame,
    memory_figure,
    memory_frame,
)
from kareus.report.theme import DARK, LIGHT, Palette

GIB = 2**30


@dataclass(frozen=True)
class Stage:
    stage: int
    num_layers: int
    weights_bytes: float
    gradients_bytes: float = 2.0 * GIB
    optimizer_bytes: float = 6.0 * GIB
    activations_bytes: float = 4.0 * GIB
    working_bytes: float = 1.0 * GIB
    logits_bytes: float = 0.5 * GIB
    tied_copy_bytes: float = 0.25 * GIB
    reserve_bytes: float = 2.0 * GIB

    @property
    def total_bytes(self) -> float:
        return self.weights_bytes + 15.75 * GIB


@dataclass(frozen=True)
class Memory:
    stages: tuple[Stage, ...]
    limit_bytes: int = 40 * GIB


def memory(num_stages: int) -> Memory:
    return Memory(
        stages=tuple(
            Stage(stage=i, num_layers=1 + i, weights_bytes=(1.0 + i) * GIB)
            for i in range(num_stages)
        )
    )


def test_the_components_add_up_to_the_total() -> None:
    frame = memory_frame(memory(3))
    sums = frame.groupby("stage")["memory_gib"].sum()
    totals = frame.groupby("stage")["total_gib"].first()
    assert sums.tolist() == pytest.approx(totals.tolist())
    assert set(frame["component"]) == {name for name, _ in COMPONENTS}
    assert frame.loc[frame["stage"] == 0, "layers"].iloc[0] == "1 layer"


def test_of_many_stages_the_fullest_are_shown_in_order() -> None:
    stages = memory_frame(memory(20))["stage"].drop_duplicates().tolist()
    assert stages == list(range(12, 20))


def test_layers_fill_the_bar_without_gaps() -> None:
    frame = layers_frame((15, 13))
    assert frame["start"].tolist() == [0, 15]
    assert frame["end"].tolist() == [15, 28]


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_figures_are_valid_in_both_modes(palette: Palette) -> None:
    drawn = memory_figure(memory_frame(memory(2)), palette).to_dict()
    assert drawn["height"] < memory_figure(memory_frame(memory(6)), palette).to_dict()["height"]
    assert len(layers_figure(layers_frame((15, 13)), palette).to_dict()["layer"]) == 2

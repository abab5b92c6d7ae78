import pytest

from kareus.core.measurement import SourceKind
from kareus.report.joint import (
    JOINT_SELECTION,
    JointPoint,
    baseline_frame,
    joint_figure,
    joint_frame,
)
from kareus.report.series import MAX_SERIES, series_colors
from kareus.report.theme import DARK, LIGHT, Palette

MODES = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=lambda palette: palette.name)
POINTS = [
    JointPoint(layout=3, words="tp4", plan=1, iteration_time_s=5.0, job_energy_j=4000.0),
    JointPoint(layout=1, words="tp8", plan=0, iteration_time_s=4.0, job_energy_j=5000.0),
    JointPoint(layout=3, words="tp4", plan=0, iteration_time_s=4.5, job_energy_j=4500.0),
]


def test_the_joint_frame_is_fastest_first_and_says_where_it_comes_from() -> None:
    frame = joint_frame(POINTS, source=SourceKind.SIMULATOR, extrapolated=True)
    assert list(frame["point_id"]) == ["1-0", "3-0", "3-1"]
    assert list(frame["average_power_w"]) == [1250.0, 1000.0, 800.0]
    assert set(frame["source"]) == {"extrapolated"} and not frame["filled"].any()
    assert joint_frame(POINTS, source=SourceKind.MEASURED)["filled"].all()
    assert len(joint_frame([], source=SourceKind.SIMULATOR)) == 0


def test_baselines_keep_their_layout() -> None:
    frame = baseline_frame([("tp8", "beaten", [(1.0, 2.0), (3.0, 1.0)]), ("tp1", "failed", [])])
    assert list(frame["words"]) == ["tp8", "tp8"]
    assert list(frame["job_energy_j"]) == [2.0, 1.0]


@MODES
def test_every_layout_has_its_colour_and_shape(palette: Palette) -> None:
    frame = joint_frame(POINTS, source=SourceKind.SIMULATOR)
    baselines = baseline_frame([("tp8", "beaten", [(4.2, 5100.0)])])
    spec = joint_figure(frame, baselines=baselines, selected="3-0", palette=palette).to_dict()
    marks = [layer for layer in spec["layer"] if "shape" in layer["encoding"]]
    assert len(marks) == 1
    stroke, shape = (marks[0]["encoding"][channel]["scale"] for channel in ("stroke", "shape"))
    assert stroke["domain"] == shape["domain"] == ["tp8", "tp4"]
    assert len(set(stroke["range"])) == len(set(shape["range"])) == 2
    assert marks[0]["encoding"]["fill"]["value"] == palette.background  # hollow: predicted
    assert any(param["name"] == JOINT_SELECTION for param in spec["params"])


def test_one_point_makes_a_picture() -> None:
    frame = joint_frame(POINTS[:1], source=SourceKind.SIMULATOR)
    scale = joint_figure(frame).to_dict()["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert scale[0] < 5.0 < scale[1]


@MODES
def test_series_differ_until_there_are_too_many(palette: Palette) -> None:
    names = [str(number) for number in range(MAX_SERIES)]
    assert len(set(series_colors(names, palette).values())) == MAX_SERIES
    others = {c for m, c in palette.methods.items() if m.value != "kareus"}
    assert not others & set(series_colors(names, palette).values())

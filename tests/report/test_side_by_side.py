from dataclasses import replace

import pytest

from kareus.core.measurement import SourceKind
from kareus.core.plan import Method
from kareus.report.side_by_side import (
    Scale,
    StudyFrontiers,
    _names,
    side_by_side_figure,
    side_by_side_frame,
)
from kareus.report.theme import DARK, LIGHT, Palette
from tests.app.fake import PLANS

STUDY = StudyFrontiers(
    study="s1",
    name="one",
    frontiers=PLANS,
    gpus_per_stage=8,
    tokens_per_iteration=262_144,
    source=SourceKind.SIMULATOR,
)
OTHER = replace(STUDY, study="s2", name="two", source=SourceKind.MEASURED)
WITHOUT = replace(STUDY, study="s3", name="three", frontiers={Method.KAREUS: PLANS[Method.KAREUS]})


def test_relative_to_megatron() -> None:
    frame = side_by_side_frame([STUDY], Scale.MEGATRON, (Method.KAREUS, Method.MEGATRON))
    baseline = frame[frame["method"] == Method.MEGATRON.value].iloc[0]
    assert (baseline["x"], baseline["y"]) == pytest.approx((100.0, 100.0))
    first, reference = PLANS[Method.KAREUS][0], PLANS[Method.MEGATRON][0]
    assert frame["x"].iloc[0] == pytest.approx(
        100 * first.iteration_time_s / reference.iteration_time_s
    )
    assert frame["y"].iloc[0] == pytest.approx(
        100 * first.pipeline_energy_j / reference.pipeline_energy_j
    )


def test_a_study_without_megatron_is_relative_to_nothing() -> None:
    frame = side_by_side_frame([STUDY, WITHOUT], Scale.MEGATRON)
    assert set(frame["study"]) == {"s1"}
    assert set(side_by_side_frame([WITHOUT], Scale.TOKENS)["study"]) == {"s3"}


def test_per_million_tokens_counts_all_gpus() -> None:
    row = side_by_side_frame([STUDY], Scale.TOKENS).iloc[0]
    plan = PLANS[Method.KAREUS][0]
    assert row["x"] == pytest.approx(plan.iteration_time_s / 0.262144)
    assert row["y"] == pytest.approx(plan.pipeline_energy_j * 8 / 0.262144 / 1e3)
    assert row["job_energy_j"] == pytest.approx(plan.pipeline_energy_j * 8)


@pytest.mark.parametrize("scale", list(Scale))
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=lambda palette: palette.name)
def test_every_study_is_drawn_and_named(scale: Scale, palette: Palette) -> None:
    frame = side_by_side_frame([STUDY, OTHER], scale, (Method.KAREUS, Method.PERSEUS))
    spec = side_by_side_figure(frame, scale, palette=palette).to_dict()
    text = str(spec["datasets"])
    assert "'one'" in text and "'two'" in text
    marks = [layer for layer in spec["layer"] if "shape" in layer["encoding"]]
    assert marks[0]["encoding"]["shape"]["scale"]["domain"] == ["one", "two"]
    dashes = [layer for layer in spec["layer"] if layer["mark"].get("strokeDash") == [5, 4]]
    assert len(dashes) == 1  # the baseline


def test_a_study_keeps_its_colour_where_another_is_not_drawn() -> None:
    def colors(studies: list[StudyFrontiers]) -> dict[str, str]:
        frame = side_by_side_frame(studies, Scale.MEGATRON)
        spec = side_by_side_figure(frame, Scale.MEGATRON, names=["three", "one"]).to_dict()
        mark = next(layer for layer in spec["layer"] if "shape" in layer["encoding"])
        scale = mark["encoding"]["stroke"]["scale"]
        return dict(zip(scale["domain"], scale["range"], strict=True))

    drawn = replace(WITHOUT, frontiers=PLANS)
    assert colors([WITHOUT, STUDY])["one"] == colors([drawn, STUDY])["one"]


def test_names_do_not_cover_each_other() -> None:
    frame = side_by_side_frame([STUDY, OTHER], Scale.TOKENS)
    names = _names(frame, 10.0, 10.0).sort_values("y")
    assert abs(names["y"].diff().iloc[1]) >= 0.5 - 1e-9


def test_a_name_leaves_the_place_where_another_line_passes() -> None:
    short = replace(OTHER, frontiers={Method.KAREUS: PLANS[Method.KAREUS][:18]})
    frame = side_by_side_frame([STUDY, short], Scale.ITERATION)
    span_x, span_y = (float(frame[c].max() - frame[c].min()) for c in ("x", "y"))
    names = _names(frame, span_x, span_y).set_index("series")
    assert names.loc["two", "x"] == frame["x"].max()

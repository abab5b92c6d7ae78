import itertools

import pandas as pd
import pytest

from kareus.core.measurement import SourceKind
from kareus.core.plan import Method
from kareus.core.timeline import build_timeline
from kareus.report import data, figures, theme
from kareus.report.theme import DARK, LIGHT
from tests.report.test_data import FRONTIERS, measurement, setting
from tests.schedule.sample import STATIC_POWER_W, make_pipeline, make_plan, make_workload

MODES = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=lambda palette: palette.name)


def nodes(spec):
    """Every dictionary of a specification."""
    if isinstance(spec, dict):
        yield spec
        for value in spec.values():
            yield from nodes(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from nodes(value)


def marks(spec):
    return [layer["mark"]["type"] for layer in spec["layer"]]


def frontier_spec(palette=LIGHT, **kwargs):
    plan = FRONTIERS[Method.KAREUS][4]
    options = {
        "selected": data.plan_id(plan),
        "guides": data.guide_frame(plan, FRONTIERS[Method.PERSEUS], setting()),
        **kwargs,
    }
    frame = options.pop("frame", data.frontier_frame(FRONTIERS, setting()))
    return figures.frontier_figure(frame, palette=palette, **options).to_dict()


@MODES
def test_frontier_has_one_named_selection_on_a_stable_id(palette):
    spec = frontier_spec(palette)
    params = {param["name"]: param for param in spec["params"]}
    assert set(params) == {"plan", "view"}
    assert params["plan"]["select"]["type"] == "point"
    assert params["plan"]["select"]["fields"] == ["plan_id"]
    assert params["view"]["bind"] == "scales"
    assert spec["height"] == 440
    assert spec["width"] == "container"


@MODES
def test_methods_keep_their_colours_and_shapes(palette):
    for methods in (tuple(Method), (Method.PERSEUS, Method.MEGATRON)):
        frame = data.frontier_frame({m: FRONTIERS[m] for m in methods}, setting())
        spec = frontier_spec(palette, frame=frame, guides=None, selected=None)
        points = next(layer["encoding"] for layer in spec["layer"] if "shape" in layer["encoding"])
        colors = dict(
            zip(*(points["stroke"]["scale"][key] for key in ("domain", "range")), strict=True)
        )
        shapes = dict(
            zip(*(points["shape"]["scale"][key] for key in ("domain", "range")), strict=True)
        )
        assert colors == {m.value: palette.methods[m] for m in methods}
        assert shapes == {m.value: theme.SHAPES[m] for m in methods}
    assert len(set(theme.SHAPES.values())) == len(Method)


def test_simulated_points_are_hollow_and_measured_ones_filled():
    for source, filled in ((SourceKind.SIMULATOR, False), (SourceKind.MEASURED, True)):
        spec = frontier_spec(frame=data.frontier_frame(FRONTIERS, setting(source=source)))
        fill = next(
            layer["encoding"]["fill"] for layer in spec["layer"] if "fill" in layer["encoding"]
        )
        assert fill["condition"]["test"] == "datum.filled"
        assert fill["value"] == LIGHT.background
        rows = next(rows for rows in spec["datasets"].values() if "filled" in rows[0])
        assert {row["filled"] for row in rows} == {filled}


def test_band_only_where_an_uncertainty_is_stated():
    assert "area" not in marks(frontier_spec())
    frame = data.frontier_frame(FRONTIERS, setting(extrapolated=True, uncertainty=0.1))
    spec = frontier_spec(frame=frame)
    assert marks(spec)[0] == "area"
    words = [row["words"] for rows in spec["datasets"].values() for row in rows if "words" in row]
    assert "bands: energies to about ±10.0\u2009%, assumed" in words


def test_guides_and_ring_are_drawn_from_the_selection():
    spec = frontier_spec()
    assert "rule" in marks(spec)
    words = {row["words"] for rows in spec["datasets"].values() for row in rows if "words" in row}
    assert any("less energy at equal time" in text for text in words)
    ring = [layer for layer in spec["layer"] if "transform" in layer]
    assert ring[0]["transform"][0]["filter"]["oneOf"] == ["kareus-4"]
    bare = frontier_spec(selected=None, guides=None)
    assert "rule" not in marks(bare)
    assert not any("transform" in layer for layer in bare["layer"])


def test_the_words_of_guides_stand_apart_and_within_the_chart():
    frame = data.frontier_frame(FRONTIERS, setting())
    first_s, last_s = frame["iteration_time_s"].min(), frame["iteration_time_s"].max()
    energy_j = float(frame["energy_j"].mean())
    guides = pd.DataFrame(
        {
            "kind": ["time", "energy"],
            "iteration_time_s": first_s,
            "energy_j": energy_j,
            "end_time_s": [first_s, first_s + 0.01],
            "end_energy_j": [1.001 * energy_j, energy_j],
            "time_reduction_pct": [0.0, 0.4],
            "energy_reduction_pct": [0.4, 0.0],
        }
    )
    words = guide_words(frontier_spec(guides=guides))
    assert {mark["align"] for mark in words.values()} == {"left"}
    assert abs(words["time"]["dy"] - words["energy"]["dy"]) >= 15
    far = guides.assign(end_time_s=[first_s, last_s + 0.2 * (last_s - first_s)])
    assert guide_words(frontier_spec(guides=far))["energy"]["align"] == "right"


def guide_words(spec):
    """The text mark of each guide, by its kind."""
    found = {}
    for layer in spec["layer"]:
        rows = spec["datasets"][layer["data"]["name"]] if "data" in layer else []
        if layer["mark"]["type"] == "text" and rows and "kind" in rows[0]:
            found[rows[0]["kind"]] = layer["mark"]
    return found


def test_units_stand_at_the_axes_and_in_the_tooltips():
    spec = frontier_spec(frame=data.frontier_frame(FRONTIERS, setting(scope=data.Scope.JOB)))
    titles = {
        node["title"]
        for node in nodes(spec)
        if isinstance(node.get("title"), str) and "field" in node
    }
    assert "Iteration time (s)" in titles
    assert "Energy per iteration, one GPU of each stage (kJ)" in titles
    row = next(rows[0] for rows in spec["datasets"].values() if "time_words" in rows[0])
    assert row["time_words"].endswith("\u2009s")
    assert row["job_words"].endswith("\u2009kJ")


def timeline_frame(num_microbatches=4, **kwargs):
    workload = make_workload(num_microbatches=num_microbatches)
    plan = make_plan(workload, **kwargs)
    pipeline = make_pipeline(workload)
    return data.timeline_frame(build_timeline(plan, pipeline, static_power_w=STATIC_POWER_W))


@MODES
@pytest.mark.parametrize("color_by", ["clock_mhz", "average_power_w"])
def test_timeline_draws_clock_or_power_and_outlines_the_critical_path(palette, color_by):
    frame = timeline_frame(slow_first_mhz=900)
    spec = figures.timeline_figure(frame, color_by=color_by, palette=palette).to_dict()
    blocks, outline, names = spec["layer"]
    assert blocks["encoding"]["color"]["field"] == color_by
    assert blocks["encoding"]["color"]["scale"]["range"] == list(palette.sequential)
    assert outline["transform"] == [{"filter": "datum.critical"}]
    assert outline["mark"]["stroke"] == palette.critical
    assert names["encoding"]["text"]["field"] == "block"


def test_two_timelines_can_share_their_scales():
    frame = timeline_frame()
    spec = figures.timeline_figure(frame, end_s=10.0, color_domain=(900, 1410)).to_dict()
    assert spec["layer"][0]["encoding"]["x"]["scale"]["domain"] == [0, pytest.approx(10.04)]
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == [900, 1410]


def test_one_clock_has_a_scale_too():
    spec = figures.timeline_figure(timeline_frame()).to_dict()
    low, high = spec["layer"][0]["encoding"]["color"]["scale"]["domain"]
    assert low < 1410 < high


@MODES
def test_the_other_charts_compile(palette):
    split = data.split_frame(FRONTIERS[Method.KAREUS][2], FRONTIERS, setting())
    trace = data.convergence_frame({"Kareus": [(24, 1.0), (48, 2.0)], "Random": [(24, 0.5)]})
    points = data.partition_frame(
        [
            measurement(clock, sms, 2e-3 * 1410 / clock + 1e-5 * sms, 0.3 * clock / 1410)
            for clock, sms in itertools.product((900, 1410), (3, 6))
        ],
        static_power_w=85.0,
    )
    parity = data.parity_frame(
        [
            data.ParityPoint(
                label="x",
                method=method,
                recorded_time_s=2.0,
                predicted_time_s=2.1,
                recorded_energy_j=2000.0,
                predicted_energy_j=1950.0,
            )
            for method in ("perseus", "nanobatching_perseus")
        ]
    )
    charts = [
        figures.split_figure(split, palette=palette),
        figures.convergence_figure(trace, palette=palette),
        figures.partition_figure(points, palette=palette, selected=points["point_id"][0]),
        figures.partition_figure(points, palette=palette, energy="dynamic_energy_j"),
        figures.parity_figure(parity, palette=palette),
    ]
    for chart in charts:
        spec = chart.to_dict()
        assert spec["config"]["axis"]["gridColor"] == palette.grid
        # Streamlit writes to the padding's sides.
        assert isinstance(spec.get("padding", {}), dict)
        assert isinstance(spec["config"]["padding"], dict)


def luminance(color):
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@MODES
def test_contrast_of_text_and_marks(palette):
    for color in (palette.text, palette.muted, *palette.labels.values()):
        assert contrast(color, palette.background) >= 4.5
    for color in (*palette.methods.values(), palette.dynamic):
        assert contrast(color, palette.background) >= 3.0
    low, high = palette.on_sequential
    assert contrast(low, palette.sequential[0]) >= 4.5
    assert contrast(high, palette.sequential[-1]) >= 4.5


@MODES
def test_dark_is_high(palette):
    for scale in (palette.sequential, palette.marks):
        values = [luminance(color) for color in scale]
        assert values == sorted(values, reverse=True)


def test_modes_and_registration():
    assert theme.palette_for("dark") is DARK
    assert theme.palette_for(None) is LIGHT
    theme.register()
    assert {"kareus-light", "kareus-dark"} <= set(theme.alt.theme.names())

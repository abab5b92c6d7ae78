import ast
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.core.configuration import LaunchPoint
from kareus.core.partition import CollectiveGroup, CollectiveKind, Direction, Execution
from kareus.core.pipeline import recipes_by_kind
from kareus.core.workload import Model, Recompute, Workload
from kareus.workload.build import WorkloadSettings, build_workload
from kareus.workload.partitions import build_partitions, build_recipes
from tests.reference import reference_data

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD


def workload(**changes: object) -> Workload:
    base: dict[str, object] = {
        "model": "llama3.2-3b",
        "gpu": "A100-SXM4-40GB",
        "tp": 8,
        "pp": 2,
        "stage_layers": (15, 13),
    }
    return build_workload(WorkloadSettings(**{**base, **changes}))  # type: ignore[arg-type]


def cp_workload(**changes: object) -> Workload:
    return workload(**{"tp": 4, "cp": 2, **changes})


# engine.md section 3: launch points, SM allocations on A100, budget, configurations at 18 clocks.
AR_SMS = tuple(range(3, 31, 3))
CP_SMS = tuple(range(1, 21))
TABLE = {
    "fwd_attn": ("norm_0 linear_0 rope_0 attn_0", AR_SMS, 96 + 4 * 32),
    "fwd_mlp": ("norm_0 linear_0 activation_0", AR_SMS, 96 + 4 * 32),
    "bwd_attn": ("norm_0 linear_0 attn_0 rope_0", AR_SMS, 96 + 4 * 32),
    "bwd_mlp": ("norm_0 linear_0 activation_0", AR_SMS, 96 + 4 * 32),
    "fwd_qkv_ar": ("norm_0 linear_0", AR_SMS, 48 + 4 * 16),
    "fwd_qkv_ag": ("norm_0 linear_0 rope_0", CP_SMS, 48 + 4 * 16),
    "fwd_ao_ag": ("attn_0 linear_0", CP_SMS, 36 + 3 * 16),
    "fwd_ao_ar": ("attn_0", AR_SMS, 36 + 3 * 16),
    "bwd_qkv_ar": ("rope_0 linear_0", AR_SMS, 48 + 4 * 16),
    "bwd_qkv_rs": ("rope_0 linear_0", CP_SMS, 48 + 4 * 16),
    "bwd_a_rs": ("attn_0", CP_SMS, 36 + 3 * 16),
    "bwd_a_ag": ("attn_0", CP_SMS, 36 + 3 * 16),
    "bwd_o_ag": ("norm_0 linear_0", CP_SMS, 36 + 3 * 16),
    "bwd_o_ar": ("norm_0", AR_SMS, 36 + 3 * 16),
}
WITHOUT_CP = ["fwd_attn", "fwd_mlp", "bwd_attn", "bwd_mlp"]
WITH_CP = [name for name in TABLE if name not in ("fwd_attn", "bwd_attn")]


def nanobatched(built: Workload):
    units = build_partitions(built)
    return {n: unit for n, unit in units.items() if unit.execution is Execution.NANOBATCH}


@pytest.mark.parametrize(("build", "names"), [(workload, WITHOUT_CP), (cp_workload, WITH_CP)])
def test_the_published_table_is_built(build, names):
    units = nanobatched(build())
    assert sorted(units) == sorted(names)
    for name, unit in units.items():
        launch_points, sm_allocations, budget = TABLE[name]
        assert [point.value for point in unit.launch_points] == launch_points.split()
        assert unit.sm_allocations == sm_allocations
        assert unit.default_sm_allocation == 20
        assert unit.published_budget is not None
        assert unit.published_budget.total == budget
        slots = [operator.slot for operator in unit.operators]
        assert set(launch_points.split()) <= set(slots)
        assert slots[0] == launch_points.split()[0]
        assert unit.collective is not None
        if name.endswith("_ag"):
            assert unit.collective.kind is CollectiveKind.ALL_GATHER
        elif name.endswith("_rs"):
            assert unit.collective.kind is CollectiveKind.REDUCE_SCATTER
        else:
            assert unit.collective.kind is CollectiveKind.ALL_REDUCE
        in_tp = unit.collective.kind is CollectiveKind.ALL_REDUCE
        assert unit.collective.group is (CollectiveGroup.TP if in_tp else CollectiveGroup.CP)
        assert name.startswith("fwd") == (unit.direction is FORWARD)


def test_fwd_attn_on_a100_has_720_configurations_and_36_for_the_baselines():
    unit = build_partitions(workload())["fwd_attn"]
    assert len(unit.space()) == len(set(unit.space())) == 720
    baselines = unit.baseline_configurations()
    assert len(baselines) == 36
    assert {c.launch_point for c in baselines} == {LaunchPoint.NORM_0, LaunchPoint.NONE}


def test_other_gpus_search_the_same_shares_of_their_sms():
    unit = build_partitions(workload(gpu="H100-SXM5-80GB"))["fwd_attn"]
    assert unit.sm_allocations == (4, 7, 11, 15, 18, 22, 26, 29, 33, 37)
    assert unit.default_sm_allocation == 24
    a40 = build_partitions(cp_workload(gpu="A40"))["fwd_qkv_ag"]
    assert a40.sm_allocations == tuple(range(1, 17))


def test_message_sizes():
    units = build_partitions(workload(microbatch_size=8, seq_len=4096))
    nanobatch_residual = 4 * 4096 * 3072 * 2
    for name in (*WITHOUT_CP, "fwd_trail", "bwd_trail"):
        assert units[name].collective.message_bytes == nanobatch_residual
    for name in ("seq_fwd_attn", "seq_bwd_mlp", "preprocess", "postprocess_backward"):
        assert units[name].collective.message_bytes == 2 * nanobatch_residual
    units = build_partitions(cp_workload(microbatch_size=8, seq_len=4096))
    assert units["fwd_mlp"].collective.message_bytes == nanobatch_residual / 2
    gathered = 4 * 4096 * (2 * 8 * 128 / 4) * 2
    for name in ("fwd_qkv_ag", "fwd_ao_ag", "bwd_a_ag", "bwd_a_rs", "bwd_qkv_rs", "bwd_o_ag"):
        assert units[name].collective.message_bytes == gathered
    assert units["seq_fwd_qkv"].collective.message_bytes == 2 * gathered


def test_the_all_reduce_of_the_recorded_sweep_has_its_size():
    # attention_sweep.csv: TP=2, two sequences of 4096 per nanobatch, hidden 2048: 33.5 MB.
    model = Model(
        name="sweep",
        family="llama",
        num_layers=2,
        hidden_size=2048,
        ffn_hidden_size=8192,
        num_heads=32,
        num_kv_heads=32,
        head_dim=64,
        vocab_size=32000,
    )
    built = build_workload(
        WorkloadSettings(model="sweep", gpu="A100-SXM4-40GB", tp=2, microbatch_size=4), model=model
    )
    assert build_partitions(built)["fwd_attn"].collective.message_bytes == pytest.approx(
        33.5e6, rel=0.002
    )


def test_recipes_without_cp():
    recipes = build_recipes(workload())
    assert set(recipes) == {(s, d) for s in (0, 1) for d in Direction}
    forward = recipes[0, FORWARD]
    assert forward.nanobatch == (("fwd_attn", 29), ("fwd_mlp", 30))
    assert forward.sequential == (("seq_fwd_attn", 15), ("seq_fwd_mlp", 15))
    assert forward.lead == ("fwd_lead", "fwd_attn")
    assert forward.trail == "fwd_trail"
    assert forward.outside == (("preprocess", 1),)
    backward = recipes[1, BACKWARD]
    assert backward.nanobatch == (
        ("fwd_attn", 25),
        ("fwd_mlp", 26),
        ("bwd_attn", 26),
        ("bwd_mlp", 26),
    )
    assert [name for name, _ in backward.sequential] == [
        "seq_fwd_attn",
        "seq_fwd_mlp",
        "seq_bwd_attn",
        "seq_bwd_mlp",
    ]
    assert backward.lead == ("fwd_lead", "fwd_attn")
    assert backward.trail == "bwd_trail"
    assert backward.outside == (("postprocess_backward", 1),)
    assert recipes[0, BACKWARD].outside == (("preprocess_backward", 1),)
    assert recipes[1, FORWARD].outside == (("postprocess", 1), ("loss", 1))


def test_recipes_without_recompute_start_a_backward_with_its_own_lead():
    built = workload(recompute=Recompute.NONE)
    backward = build_recipes(built)[0, BACKWARD]
    assert backward.nanobatch == (("bwd_attn", 30), ("bwd_mlp", 29))
    assert backward.lead == ("bwd_lead", "bwd_mlp")
    units = build_partitions(built)
    assert units["bwd_lead"].operators == units["bwd_mlp"].operators
    assert "bwd_lead" not in build_partitions(workload())


def test_recipes_with_cp_follow_the_order_of_the_files():
    recipes = build_recipes(cp_workload())
    forward = recipes[0, FORWARD]
    assert forward.nanobatch == (
        ("fwd_qkv_ar", 14),
        ("fwd_qkv_ag", 15),
        ("fwd_ao_ag", 15),
        ("fwd_ao_ar", 15),
        ("fwd_mlp", 30),
    )
    assert forward.lead == ("fwd_lead", "fwd_qkv_ar")
    backward = recipes[0, BACKWARD]
    assert backward.nanobatch[:5] == forward.nanobatch
    assert backward.nanobatch[5:] == (
        ("bwd_qkv_ar", 15),
        ("bwd_qkv_rs", 15),
        ("bwd_a_rs", 15),
        ("bwd_a_ag", 15),
        ("bwd_o_ag", 15),
        ("bwd_o_ar", 15),
        ("bwd_mlp", 30),
    )
    assert [name for name, _ in backward.sequential] == [
        "seq_fwd_qkv",
        "seq_fwd_ao",
        "seq_fwd_mlp",
        "seq_bwd_qkv",
        "seq_bwd_a",
        "seq_bwd_o",
        "seq_bwd_mlp",
    ]


@pytest.mark.parametrize(
    ("file", "build"),
    [
        ("schedules/scheds_pipeline_00324.py", workload),
        ("schedules/cp2_scheds_pipeline_00379.py", cp_workload),
    ],
)
def test_recipes_have_as_many_partitions_as_the_recorded_schedules(file, build):
    text = reference_data(file).read_text()
    stages = ast.literal_eval(text[: text.rindex("]") + 1])
    recipes = build_recipes(build())
    assert len(stages) == 2
    for stage, instructions in enumerate(stages):
        for name, *partitions in instructions:
            assert len(partitions) == len(recipes[stage, Direction(name)].nanobatch)


def test_with_tp_1_nothing_is_overlapped_and_only_the_clock_is_searched():
    built = workload(tp=1, model="llama3.2-1b", stage_layers=None)
    units = build_partitions(built)
    assert not any(unit.execution in (Execution.LEAD, Execution.TRAIL) for unit in units.values())
    for unit in units.values():
        assert unit.collective is None
        assert not unit.searched
        assert unit.published_budget is None
        assert unit.default_sm_allocation is None
        assert len(unit.space()) == len(unit.baseline_configurations()) == 18
    recipe = build_recipes(built)[0, FORWARD]
    assert recipe.nanobatch == (("fwd_attn", 16), ("fwd_mlp", 16))
    assert recipe.lead is None
    assert recipe.trail is None


def test_with_tp_1_and_cp_2_only_the_gathers_remain():
    units = nanobatched(workload(tp=1, cp=2, model="llama3.2-1b", stage_layers=None))
    assert sorted(units) == sorted(WITH_CP)
    for name, unit in units.items():
        gathers = name.endswith(("_ag", "_rs"))
        assert unit.searched == gathers
        assert (unit.collective is not None) == gathers


def test_one_layer_leaves_a_count_of_zero_rather_than_a_hole():
    built = cp_workload(model="tiny", pp=4, stage_layers=None)
    assert build_recipes(built)[0, FORWARD].nanobatch[0] == ("fwd_qkv_ar", 0)


def test_middle_stages_share_one_recipe():
    recipes = build_recipes(workload(model="llama3.3-70b", pp=10, stage_layers=None))
    assert len(recipes) == 20
    assert len(recipes_by_kind(recipes)) == 6


workloads = st.builds(
    lambda model, degrees, pp, size, recompute: workload(
        model=model,
        gpu="B200-SXM-180GB",
        tp=degrees[0],
        cp=degrees[1],
        pp=pp,
        microbatch_size=2 * size,
        recompute=recompute,
        stage_layers=None,
    ),
    st.sampled_from(["llama3.2-3b", "qwen3-1.7b", "gpt3-175b", "llama3.3-70b"]),
    st.sampled_from([(1, 1), (8, 1), (4, 2), (1, 2), (2, 4)]),
    st.integers(8, 16),
    st.integers(1, 4),
    st.sampled_from(list(Recompute)),
)


def total_flops(units, counts):
    return sum(count * sum(o.flops for o in units[name].operators) for name, count in counts)


@given(workloads)
def test_nanobatched_and_sequential_recipes_compute_the_same(built):
    units, recipes = build_partitions(built), build_recipes(built)
    named = set()
    for (stage, direction), recipe in recipes.items():
        counts = list(recipe.nanobatch)
        if recipe.lead is not None:
            counts.append((recipe.lead[0], 1))
            assert recipe.lead[1] in dict(recipe.nanobatch)
        assert total_flops(units, counts) == pytest.approx(total_flops(units, recipe.sequential))
        assert all(count >= 0 for _, count in recipe.nanobatch)
        edges = [recipe.lead[0] if recipe.lead else None, recipe.trail]
        listed = [name for name, _ in (*recipe.nanobatch, *recipe.sequential, *recipe.outside)]
        assert len(listed) == len(set(listed))
        named |= {name for name in (*listed, *edges) if name is not None}
        first, last = stage == 0, stage == built.parallelism.pp - 1
        assert len(recipe.outside) == first + (2 if direction is FORWARD else 1) * last
    assert named == set(units)
    assert all(unit.name == name for name, unit in units.items())


@given(workloads)
def test_every_collective_of_an_instruction_is_in_its_recipe(built):
    # Nanobatching hides collectives, it saves none: with the trail the same bytes are carried.
    units, recipes = build_partitions(built), build_recipes(built)

    def carried(counts):
        totals = dict.fromkeys(CollectiveGroup, 0.0)
        for name, count in counts:
            if (collective := units[name].collective) is not None:
                totals[collective.group] += count * collective.bus_bytes
        return totals

    for recipe in recipes.values():
        counts = list(recipe.nanobatch)
        if recipe.trail is not None:
            counts.append((recipe.trail, 1))
        nanobatch, sequential = carried(counts), carried(recipe.sequential)
        for group in CollectiveGroup:
            assert nanobatch[group] == pytest.approx(sequential[group])


def test_partitions_depend_on_no_stage():
    one = build_partitions(workload())
    other = build_partitions(dataclasses.replace(workload(), stage_layers=(14, 14)))
    assert one == other

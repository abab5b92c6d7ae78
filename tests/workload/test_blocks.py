import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kareus.core.partition import OperatorKind
from kareus.workload.blocks import (
    BlockShape,
    Part,
    embedding_operators,
    head_operators,
    loss_operators,
    padded_vocab_size,
    part_operators,
)
from kareus.workload.models import CATALOGUE, num_layer_parameters

LLAMA = CATALOGUE["llama3.2-3b"]
FORWARD = (Part.FWD_ATTN, Part.FWD_MLP)
BACKWARD = (Part.BWD_ATTN, Part.BWD_MLP)

shapes = st.builds(
    BlockShape,
    model=st.sampled_from([CATALOGUE[name] for name in ("llama3.2-3b", "qwen3-32b", "gpt3-175b")]),
    num_sequences=st.integers(1, 16),
    seq_len=st.sampled_from([256, 1024, 4096, 8192]),
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 4]),
)


def flops(parts, shape, *kinds):
    return sum(
        operator.flops
        for part in parts
        for operator in part_operators(part, shape)
        if not kinds or operator.kind in kinds
    )


def matrix_parameters(model):
    norms = 2 * model.hidden_size + (2 * model.head_dim if model.qk_norm else 0)
    return num_layer_parameters(model) - norms


@given(shapes)
def test_linear_flops_are_two_per_parameter_and_token(shape):
    expected = 2 * matrix_parameters(shape.model) * shape.num_tokens / shape.tp
    assert flops(FORWARD, shape, OperatorKind.LINEAR) == pytest.approx(expected)
    assert flops(BACKWARD, shape, OperatorKind.LINEAR) == pytest.approx(2 * expected)


@given(shapes)
def test_causal_attention_is_half_of_the_full_matrix_shared_over_cp(shape):
    # Over all ranks: two products of S x S x head_dim per head and sequence, halved.
    full = 4 * shape.num_sequences * shape.seq_len**2 * shape.model.num_heads * shape.model.head_dim
    forward = flops(FORWARD, shape, OperatorKind.ATTENTION)
    assert forward * shape.tp * shape.cp == pytest.approx(full / 2)
    assert flops(BACKWARD, shape, OperatorKind.ATTENTION) == pytest.approx(2.5 * forward)


def test_a_block_costs_about_two_flops_per_parameter_and_token():
    # At a short sequence attention and element-wise operators are small beside the matrices.
    for model in CATALOGUE.values():
        if model.name == "tiny":
            continue
        shape = BlockShape(model=model, num_sequences=2, seq_len=256)
        rule = 2 * num_layer_parameters(model) * shape.num_tokens
        assert flops(FORWARD, shape) == pytest.approx(rule, rel=0.03)
        assert flops(BACKWARD, shape) == pytest.approx(2 * rule, rel=0.03)


@given(shapes, st.sampled_from(list(Part)), st.integers(2, 5))
def test_flops_scale_with_the_sequences_and_bytes_at_most_so(shape, part, factor):
    larger = dataclasses.replace(shape, num_sequences=factor * shape.num_sequences)
    for one, many in zip(part_operators(part, shape), part_operators(part, larger), strict=True):
        assert many.flops == pytest.approx(factor * one.flops)
        if one.kind is OperatorKind.LINEAR:  # the weights are read once
            assert one.memory_bytes < many.memory_bytes < factor * one.memory_bytes
        else:
            assert many.memory_bytes == pytest.approx(factor * one.memory_bytes)


@given(shapes)
def test_parts_cut_around_the_gather_add_up_to_the_whole(shape):
    for whole, cut in (
        (Part.FWD_ATTN, (Part.FWD_QKV, Part.FWD_AO)),
        (Part.BWD_ATTN, (Part.BWD_O, Part.BWD_A, Part.BWD_QKV)),
    ):
        operators = [o for part in cut for o in part_operators(part, shape)]
        expected = part_operators(whole, shape)
        assert [o.kind for o in operators] == [o.kind for o in expected]
        assert [o.flops for o in operators] == [o.flops for o in expected]
        assert [o.memory_bytes for o in operators] == [o.memory_bytes for o in expected]


@pytest.mark.parametrize(
    ("part", "slots"),
    [
        (Part.FWD_ATTN, "norm_0 linear_0 rope_0 attn_0 linear_1"),
        (Part.FWD_MLP, "norm_0 linear_0 activation_0 linear_1"),
        (Part.FWD_QKV, "norm_0 linear_0 rope_0"),
        (Part.FWD_AO, "attn_0 linear_0"),
        (Part.BWD_ATTN, "norm_0 linear_0 attn_0 rope_0 linear_1"),
        (Part.BWD_MLP, "norm_0 linear_0 activation_0 linear_1"),
        (Part.BWD_QKV, "rope_0 linear_0"),
        (Part.BWD_A, "attn_0"),
        (Part.BWD_O, "norm_0 linear_0"),
    ],
)
def test_slots_follow_the_order_of_execution(part, slots):
    operators = part_operators(part, BlockShape(model=LLAMA, num_sequences=4, seq_len=4096, tp=8))
    assert [operator.slot for operator in operators] == slots.split()


def test_the_order_of_backward_linears_is_reversed():
    shape = BlockShape(model=LLAMA, num_sequences=4, seq_len=4096, tp=8)
    forward = {o.slot: o for o in part_operators(Part.FWD_MLP, shape)}
    backward = {o.slot: o for o in part_operators(Part.BWD_MLP, shape)}
    assert backward["linear_0"].flops == 2 * forward["linear_1"].flops
    assert backward["linear_1"].flops == 2 * forward["linear_0"].flops


def test_grouped_queries_and_own_head_widths_are_respected():
    model = CATALOGUE["qwen3-32b"]  # 64 heads of 128 at hidden 5120, 8 KV heads
    shape = BlockShape(model=model, num_sequences=2, seq_len=1024, tp=2)
    _, qkv, _, attention, projection = part_operators(Part.FWD_ATTN, shape)
    assert qkv.flops == 2 * 2048 * 5120 * (64 + 16) * 128 / 2
    assert projection.flops == 2 * 2048 * 64 * 128 * 5120 / 2
    assert attention.flops == 2 * 2 * 1024 * 1024 * 64 * 128 / 2


def test_qk_norm_costs_memory_in_the_rope_slot():
    shape = BlockShape(model=LLAMA, num_sequences=2, seq_len=1024)
    normed = dataclasses.replace(shape, model=dataclasses.replace(LLAMA, qk_norm=True))
    for part, tensors in ((Part.FWD_QKV, 2), (Part.BWD_QKV, 3)):
        plain = {o.slot: o for o in part_operators(part, shape)}
        with_norm = {o.slot: o for o in part_operators(part, normed)}
        extra = with_norm["rope_0"].memory_bytes - plain["rope_0"].memory_bytes
        assert extra == tensors * 2 * shape.num_tokens * (24 + 8) * 128
        assert with_norm["linear_0"] == plain["linear_0"]


def test_a_plain_mlp_has_two_matrices_and_a_narrower_activation():
    plain = BlockShape(
        model=dataclasses.replace(LLAMA, gated_mlp=False), num_sequences=1, seq_len=8
    )
    gated = BlockShape(model=LLAMA, num_sequences=1, seq_len=8)
    for part in (Part.FWD_MLP, Part.BWD_MLP):
        assert flops([part], gated, OperatorKind.LINEAR) == 1.5 * flops(
            [part], plain, OperatorKind.LINEAR
        )
    activation = part_operators(Part.FWD_MLP, plain)[2]
    assert activation.memory_bytes == 2 * 2 * 8 * 8192


def test_positions_of_gpt_are_not_rotary():
    model = dataclasses.replace(CATALOGUE["gpt3-175b"], name="x")
    rope = part_operators(Part.FWD_QKV, BlockShape(model=model, num_sequences=1, seq_len=8))[2]
    assert rope.flops == 0
    assert rope.memory_bytes == 2 * 2 * 8 * 3 * 12288


def test_every_figure_is_positive():
    for model in CATALOGUE.values():
        shape = BlockShape(model=model, num_sequences=1, seq_len=64, tp=2, cp=2)
        operators = [o for part in Part for o in part_operators(part, shape)]
        for backward in (False, True):
            operators += embedding_operators(shape, backward=backward)
            operators += head_operators(shape, backward=backward)
        operators += loss_operators(shape)
        assert all(operator.memory_bytes > 0 for operator in operators)
        assert all(operator.flops >= 0 for operator in operators)


@pytest.mark.parametrize(
    ("vocab_size", "tp", "padded"),
    [(128256, 1, 128256), (128256, 8, 129024), (50257, 1, 50304), (50257, 8, 51200), (512, 4, 512)],
)
def test_the_vocabulary_is_padded_as_megatron_does(vocab_size, tp, padded):
    assert padded_vocab_size(dataclasses.replace(LLAMA, vocab_size=vocab_size), tp) == padded


def test_the_head_works_on_the_padded_vocabulary():
    shape = BlockShape(model=LLAMA, num_sequences=8, seq_len=4096, tp=8)
    linear = head_operators(shape)[1]
    assert linear.flops == 2 * 8 * 4096 * 3072 * 129024 / 8
    assert [o.kind for o in head_operators(shape, backward=True)] == [
        OperatorKind.LOSS,
        OperatorKind.LINEAR,
        OperatorKind.NORM,
    ]


def test_bytes_of_one_small_part_by_hand():
    # 2 sequences of 8 tokens on cp 2: 8 tokens here; widths on tp 2: q 1536, k and v 512 each.
    shape = BlockShape(model=LLAMA, num_sequences=2, seq_len=8, tp=2, cp=2)
    norm, qkv, rope, attention, projection = part_operators(Part.FWD_ATTN, shape)
    assert norm.memory_bytes == 2 * 8 * 3072 * 5
    assert qkv.memory_bytes == 2 * (8 * 3072 + 3072 * 2560 + 8 * 2560)
    assert rope.memory_bytes == 2 * 8 * (2 * 2560 + 2 * 2048)
    assert attention.memory_bytes == 2 * (8 * 1536 * 2 + 16 * 512 * 2)
    assert projection.memory_bytes == 2 * (8 * 1536 + 1536 * 3072 + 8 * 3072)
    norm, projection, attention, _, _ = part_operators(Part.BWD_ATTN, shape)
    assert norm.memory_bytes == 2 * 8 * 3072 * 6
    assert projection.memory_bytes == (
        2 * (8 * 3072 + 1536 * 3072 + 8 * 1536) + 2 * 8 * (3072 + 1536) + 8 * 1536 * 3072
    )
    assert attention.memory_bytes == 2 * (8 * 1536 * 4 + 16 * 512 * 4)

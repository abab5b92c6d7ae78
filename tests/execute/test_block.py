"""Operators against independent formulas; layout and dropout against their definitions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kareus.core.workload import Model
from kareus.errors import ConfigError
from kareus.execute.block import (
    Block,
    BlockShape,
    initial_weight,
    rotary_table,
    rotate,
    weight_specs,
)
from kareus.execute.dropout import Dropout, mix_seed
from kareus.execute.sequence import (
    local_chunks,
    local_positions,
    num_chunks,
    shard_sequence,
    to_rank_order,
    to_sequence_order,
)
from tests.execute.cases import CPU, tiny_model


def reference_block(x, w, model: Model, theta: float, eps: float):
    """The block from its formulas: complex rotation, explicit scores, heads in a loop."""

    def rms(y, weight):
        return y / torch.sqrt((y * y).mean(-1, keepdim=True) + eps) * weight

    b, s, _ = x.shape
    n, m, d = model.num_heads, model.num_kv_heads, model.head_dim
    qkv = rms(x, w["attn_norm"]) @ w["qkv"].T
    q = qkv[..., : n * d].reshape(b, s, n, d)
    k = qkv[..., n * d : (n + m) * d].reshape(b, s, m, d)
    v = qkv[..., (n + m) * d :].reshape(b, s, m, d)
    if model.qk_norm:
        q, k = rms(q, w["q_norm"]), rms(k, w["k_norm"])
    angles = torch.arange(s)[:, None] * theta ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None, :]

    def rotated(y):
        z = torch.complex(y[..., : d // 2], y[..., d // 2 :]) * turn
        return torch.cat((z.real, z.imag), -1)

    q, k = rotated(q), rotated(k)
    heads = []
    for head in range(n):
        key = k[:, :, head // (n // m)]
        scores = q[:, :, head] @ key.transpose(1, 2) / math.sqrt(d)
        future = torch.triu(torch.ones(s, s, dtype=torch.bool), 1)
        heads.append(scores.masked_fill(future, -math.inf).softmax(-1) @ v[:, :, head // (n // m)])
    x = x + torch.cat(heads, -1) @ w["proj"].T
    gate_up = rms(x, w["mlp_norm"]) @ w["fc1"].T
    gate, up = gate_up[..., : model.ffn_hidden_size], gate_up[..., model.ffn_hidden_size :]
    return x + (gate * torch.sigmoid(gate) * up) @ w["fc2"].T


@pytest.mark.parametrize("qk_norm", [True, False])
def test_block_equals_its_formulas(qk_norm):
    model = tiny_model(qk_norm=qk_norm)
    shape = BlockShape(model=model, seq_len=8)
    block = Block(shape, layer=1, seed=2, dtype=torch.float64, device=CPU)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # weights of ones and small values would hide mistakes
        for parameter in block.parameters():
            parameter.normal_(generator=generator)
    x = torch.randn(3, 8, model.hidden_size, dtype=torch.float64, generator=generator)
    rotary = rotary_table(shape, dtype=torch.float64, device=CPU)
    with torch.no_grad():
        expected = reference_block(
            x, block.weights(), model, theta=shape.rope_theta, eps=shape.norm_eps
        )
        output = block(x, rotary, Dropout(rate=0.0, seed=0))
    torch.testing.assert_close(output, expected)


def test_plain_block_refuses_shards():
    shape = BlockShape(model=tiny_model(), seq_len=8, tp=2)
    block = Block(shape, layer=0, seed=0, dtype=torch.float64, device=CPU)
    rotary = rotary_table(shape, dtype=torch.float64, device=CPU)
    with pytest.raises(ConfigError, match="plain block needs whole weights"):
        block(torch.zeros(1, 8, 12, dtype=torch.float64), rotary, Dropout(rate=0.0, seed=0))


@pytest.mark.parametrize("tp", [2, 4])
def test_initial_weights_are_shards_of_the_same_whole(tp):
    for spec in weight_specs(tiny_model()):
        whole = initial_weight(spec, seed=1, layer=3, tp=1, rank=0, device=CPU)
        for rank in range(tp):
            shard = initial_weight(spec, seed=1, layer=3, tp=tp, rank=rank, device=CPU)
            torch.testing.assert_close(shard, spec.shard(whole, tp=tp, rank=rank), rtol=0, atol=0)
        other = initial_weight(spec, seed=1, layer=4, tp=1, rank=0, device=CPU)
        assert torch.equal(whole, other) is (spec.std is None)


def test_rotation_depends_on_distance_only():
    shape = BlockShape(model=tiny_model(), seq_len=16)
    rotary = rotary_table(shape, dtype=torch.float64, device=CPU)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 4, dtype=torch.float64, generator=generator)
    scores = rotate(q.expand(16, 4), rotary) @ rotate(k.expand(16, 4), rotary).T
    torch.testing.assert_close(scores[5:, 5:], scores[:-5, :-5])


@given(cp=st.integers(1, 5), chunk=st.integers(1, 3), width=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_shards_cover_the_sequence_and_go_back(cp, chunk, width):
    full = torch.arange(num_chunks(cp) * chunk * width).view(-1, width).T.contiguous()
    shards = torch.stack([shard_sequence(full, dim=1, cp=cp, rank=r) for r in range(cp)])
    if cp > 1:
        torch.testing.assert_close(to_sequence_order(shards, dim=1), full)
        torch.testing.assert_close(to_rank_order(full, dim=1, cp=cp), shards)
    positions = torch.cat([local_positions(full.shape[1], cp=cp, rank=rank) for rank in range(cp)])
    assert sorted(positions.tolist()) == list(range(full.shape[1]))


@given(cp=st.integers(2, 8))
def test_ranks_share_the_causal_work_evenly(cp):
    # A chunk's queries see its own chunk and all before it.
    work = {sum(chunk + 1 for chunk in local_chunks(cp, rank)) for rank in range(cp)}
    assert len(work) == 1


def test_dropout_drops_the_stated_share_and_keeps_the_mean():
    ones = torch.ones(8, 16, 512, dtype=torch.float64)
    out = Dropout(rate=0.3, seed=5).apply(ones, site=0, first_sample=0)
    assert float((out == 0).double().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(out.mean()) == pytest.approx(1.0, abs=0.02)
    assert set(out.unique().tolist()) == {0.0, 1 / 0.7}


def test_dropout_mask_is_a_function_of_its_place():
    ones = torch.ones(4, 8, 64)
    dropout = Dropout(rate=0.5, seed=5, chunks=(0, 1, 2, 3))
    whole = dropout.apply(ones, site=2, first_sample=0)
    torch.testing.assert_close(dropout.apply(ones[1:3], site=2, first_sample=1), whole[1:3])
    rank_1 = Dropout(rate=0.5, seed=5, chunks=(1, 2)).apply(ones[:, :4], site=2, first_sample=0)
    torch.testing.assert_close(rank_1, whole[:, 2:6])
    for other in (
        dropout.apply(ones, site=3, first_sample=0),
        dropout.apply(ones, site=2, first_sample=4),
        Dropout(rate=0.5, seed=6, chunks=(0, 1, 2, 3)).apply(ones, site=2, first_sample=0),
    ):
        assert not torch.equal(other, whole)
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(whole[:, :2], whole[:, 2:4])


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_dropout_rate_out_of_range(rate):
    with pytest.raises(ConfigError, match="dropout rate"):
        Dropout(rate=rate, seed=0)


@given(st.lists(st.integers(0, 2**70), min_size=1, max_size=4))
def test_seeds_fit_a_generator(parts):
    seed = mix_seed(*parts)
    assert 0 <= seed < 2**63
    assert seed == mix_seed(*parts)

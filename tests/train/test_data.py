import numpy as np
import pytest
import torch

from kareus.errors import ConfigError
from kareus.train.data import SyntheticTokens, TokenFile, load_batch, open_tokens
from kareus.train.optimizer import clip_scale, learning_rate_at
from tests.train.sample import make_workload


def test_a_sequence_depends_on_seed_and_number_alone():
    make = lambda seed: SyntheticTokens(vocab_size=64, seq_len=16, seed=seed)  # noqa: E731
    first = make(3)
    later = first.sequence(5)
    first.sequence(1)
    assert np.array_equal(first.sequence(5), later)
    assert np.array_equal(make(3).sequence(5), later)
    assert not np.array_equal(make(4).sequence(5), later)
    assert not np.array_equal(first.sequence(6), later)
    assert later.shape == (17,) and later.min() >= 0 and later.max() < 64


def test_replicas_share_the_global_batch_out():
    workload = make_workload(dp=2)
    single = make_workload(dp=1, num_microbatches=8)
    source = SyntheticTokens(vocab_size=64, seq_len=16, seed=0)
    halves = [load_batch(source, workload, step=3, dp_rank=rank) for rank in range(2)]
    tokens, targets = load_batch(source, single, step=3, dp_rank=0)
    assert torch.equal(torch.cat([half[0] for half in halves]), tokens)
    assert torch.equal(torch.cat([half[1] for half in halves]), targets)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


@pytest.mark.parametrize("suffix", [".bin", ".npy"])
def test_a_file_is_read_once_per_epoch(tmp_path, suffix):
    path = tmp_path / f"tokens{suffix}"
    tokens = np.arange(65, dtype=np.uint16)
    if suffix == ".npy":
        np.save(path, tokens)
    else:
        tokens.tofile(path)
    source = TokenFile(path, vocab_size=100, seq_len=16, seed=0)
    for epoch in range(2):
        firsts = sorted(int(source.sequence(4 * epoch + i)[0]) for i in range(4))
        assert firsts == [0, 16, 32, 48]
    assert np.array_equal(np.diff(source.sequence(0)), np.ones(16))
    again = [source.sequence(i)[0] for i in range(4)]
    assert again == [TokenFile(path, vocab_size=100, seq_len=16, seed=0).sequence(i)[0]
                     for i in range(4)]  # fmt: skip


def test_a_token_beyond_the_vocabulary_is_named(tmp_path):
    path = tmp_path / "tokens.bin"
    tokens = np.zeros(17, dtype=np.uint16)
    tokens[9] = 64
    tokens.tofile(path)
    source = open_tokens(path, make_workload(), seed=0)
    with pytest.raises(ConfigError, match=r"token 64 at position 9 is not of .* vocabulary of 64"):
        source.sequence(0)


def test_arrays_that_hold_no_tokens_are_refused(tmp_path):
    path = tmp_path / "tokens.npy"
    for array in (np.zeros((4, 4), dtype=np.int64), np.zeros(100)):
        np.save(path, array)
        with pytest.raises(ConfigError, match="give a one-dimensional array of integers"):
            open_tokens(path, make_workload(), seed=0)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigError, match="not a readable file of tokens"):
        open_tokens(path, make_workload(), seed=0)


def test_learning_rate_warms_up_and_decays_to_a_tenth():
    rate = lambda step: learning_rate_at(step, highest=1.0, warmup_steps=4, decay_steps=104)  # noqa: E731
    assert [rate(step) for step in (1, 2, 4)] == pytest.approx([0.25, 0.5, 1.0])
    assert rate(54) == pytest.approx(0.55)
    assert rate(104) == rate(500) == pytest.approx(0.1)
    assert learning_rate_at(1, highest=1.0, warmup_steps=0, decay_steps=1) == pytest.approx(0.1)


def test_clipping_never_enlarges():
    assert clip_scale(4.0, 1.0) == pytest.approx(0.25, rel=1e-6)
    assert clip_scale(0.5, 1.0) == 1.0
    assert clip_scale(1e9, 0.0) == 1.0

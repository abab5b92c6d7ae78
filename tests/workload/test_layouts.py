import pytest

from kareus.errors import ConfigError, NotFoundError
from kareus.workload.build import WorkloadSettings
from kareus.workload.layouts import enumerate_candidates

BASE = WorkloadSettings(model="llama3.2-3b", gpu="A100-SXM4-40GB", seq_len=4096)


def test_every_layout_uses_all_gpus_and_the_whole_batch():
    candidates = enumerate_candidates(BASE, num_gpus=16, global_batch_size=64)
    seen = set()
    for candidate in candidates:
        s = candidate.settings
        assert s.tp * s.cp * s.pp * s.dp == 16
        assert s.microbatch_size * s.num_microbatches * s.dp == 64
        seen.add((s.tp, s.cp, s.pp, s.microbatch_size))
        assert (candidate.workload is None) == (candidate.pruned is not None)
    assert len(seen) == len(candidates)
    kept = {
        (c.settings.tp, c.settings.cp, c.settings.pp, c.settings.microbatch_size)
        for c in candidates
        if c.workload is not None
    }
    # The reference layouts are among them.
    assert {(8, 1, 2, 8), (4, 2, 2, 8)} <= kept


def test_what_does_not_fit_is_pruned_with_its_figures():
    base = WorkloadSettings(model="llama3.3-70b", gpu="A100-SXM4-40GB", seq_len=8192)
    candidates = enumerate_candidates(base, num_gpus=8, global_batch_size=16)
    assert all(candidate.pruned is not None for candidate in candidates)
    assert any("GiB per GPU" in (candidate.pruned or "") for candidate in candidates)


def test_layouts_that_cannot_be_are_pruned_with_the_words_of_the_check():
    # 24 heads and 8 KV heads: three ranks share the heads, not the KV heads.
    candidates = enumerate_candidates(BASE, num_gpus=3, global_batch_size=6, cps=(1,))
    three = [c for c in candidates if c.settings.tp == 3]
    assert three
    assert all("KV heads" in (c.pruned or "") for c in three)


@pytest.mark.parametrize(
    ("num_gpus", "batch", "words"),
    [(0, 8, "GPUs"), (8, -1, "global batch"), (True, 8, "GPUs"), (4096, 2, "no layout")],
)
def test_impossible_requests_are_refused(num_gpus, batch, words):
    with pytest.raises(ConfigError, match=words):
        enumerate_candidates(BASE, num_gpus=num_gpus, global_batch_size=batch)


def test_an_unknown_model_is_not_found():
    base = WorkloadSettings(model="nope", gpu="A40")
    with pytest.raises(NotFoundError, match="unknown model"):
        enumerate_candidates(base, num_gpus=8, global_batch_size=8)

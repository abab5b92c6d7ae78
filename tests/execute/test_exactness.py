"""Outputs and gradients equal those of the plain block, in real gloo groups of up to 8 ranks."""

import itertools
from dataclasses import dataclass

import pytest
import torch

from kareus.core.partition import Direction
from kareus.core.workload import Parallelism, Recompute
from kareus.execute.parallel import ParallelGroups, build_mesh
from kareus.execute.settings import InstructionSettings
from tests.execute.cases import (
    CPU,
    DROPOUT_SEED,
    errors_of,
    launch_settings,
    local,
    make_stack,
    make_tensors,
    plain_passes,
    tiny_model,
    tiny_workload,
)
from tests.execute.world import run_world

NUM_RANKS = 8
SEQUENTIAL = "sequential"
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


@dataclass(frozen=True, kw_only=True)
class Case:
    tp: int
    cp: int
    recompute: Recompute
    forward: int | str | None  # number of the launch point, None for `none`, or sequential
    backward: int | str | None
    dropout_rate: float = 0.0
    dtype: torch.dtype = torch.float64
    microbatch_size: int = 3
    family: str = "qwen3"

    def __str__(self) -> str:
        precision = str(self.dtype).removeprefix("torch.")
        return (
            f"tp{self.tp}-cp{self.cp}-{self.recompute}-{self.forward}-{self.backward}"
            f"-drop{self.dropout_rate}-{precision}-mb{self.microbatch_size}-{self.family}"
        )


def _cases() -> list[Case]:
    cases = []
    for tp, cp in itertools.product((1, 2, 4), (1, 2)):
        for recompute in Recompute:
            fixed = {"tp": tp, "cp": cp, "recompute": recompute}
            # No partition has more than four launch points, so 0 to 3 meet each one.
            for choice in (0, 1, 2, 3, None):
                rate = 0.25 if choice in (1, None) else 0.0
                cases.append(Case(forward=choice, backward=choice, dropout_rate=rate, **fixed))
            cases += [
                Case(forward=SEQUENTIAL, backward=SEQUENTIAL, dropout_rate=0.25, **fixed),
                Case(forward=0, backward=3, microbatch_size=2, **fixed),
                Case(forward=2, backward=0, dtype=torch.float32, **fixed),
                Case(forward=0, backward=2, dtype=torch.bfloat16, microbatch_size=4, **fixed),
            ]
        full = {"tp": tp, "cp": cp, "recompute": Recompute.FULL, "dropout_rate": 0.25}
        cases += [
            Case(forward=SEQUENTIAL, backward=1, **full),
            Case(forward=1, backward=SEQUENTIAL, **full),
        ]
    for family in ("llama", "gpt"):
        cases.append(
            Case(tp=2, cp=2, recompute=Recompute.FULL, forward=1, backward=1, family=family)
        )
    return cases


CASES = _cases()


def _settings(workload, direction, choice):
    if choice == SEQUENTIAL:
        return InstructionSettings.sequential()
    return launch_settings(workload, direction, choice)


def run_case(case: Case, groups: ParallelGroups) -> dict[str, float]:
    """Relative errors of this rank's tensors; for bf16 relative to the plain block's own error."""
    model = tiny_model(qk_norm=case.family == "qwen3", family=case.family)
    workload = tiny_workload(
        tp=case.tp,
        cp=case.cp,
        recompute=case.recompute,
        microbatch_size=case.microbatch_size,
        model=model,
    )
    hidden, cotangent = make_tensors(workload)
    stack = make_stack(workload, groups, dropout_rate=case.dropout_rate, dtype=case.dtype)
    stack.configure(
        forward=_settings(workload, Direction.FORWARD, case.forward),
        backward=_settings(workload, Direction.BACKWARD, case.backward),
    )
    leaf = local(hidden, groups).to(case.dtype).requires_grad_()
    output = stack(leaf, dropout_seed=DROPOUT_SEED)
    output.backward(local(cotangent, groups).to(case.dtype))
    reference = plain_passes(workload, hidden, cotangent, dropout_rate=case.dropout_rate)
    errors = errors_of(stack, output.detach(), leaf.grad, reference)
    if case.dtype is not torch.bfloat16:
        return errors
    # What bf16 costs the plain block itself, by tensor of the unsplit reference.
    plain = plain_passes(workload, hidden, cotangent, dtype=torch.bfloat16)
    pairs = {
        "output": (plain.output, reference.output),
        "input": (plain.input_gradient, reference.input_gradient),
        **{
            f"{layer}.{name}": (gradient, reference.gradients[layer, name])
            for (layer, name), gradient in plain.gradients.items()
        },
    }
    return {
        name: error
        / float((pairs[name][0] - pairs[name][1]).abs().max() / pairs[name][1].abs().max())
        for name, error in errors.items()
    }


def run_all_cases() -> dict[int, dict[str, float]]:
    """The cases of this rank's replica; replicas of a mesh share the work."""
    results = {}
    for tp, cp in itertools.product((1, 2, 4), (1, 2)):
        dp = NUM_RANKS // (tp * cp)
        mesh = build_mesh(Parallelism(tp=tp, cp=cp, dp=dp), "cpu")
        groups = ParallelGroups.from_mesh(mesh, CPU)
        of_mesh = [number for number, case in enumerate(CASES) if (case.tp, case.cp) == (tp, cp)]
        for number in of_mesh[mesh.get_local_rank("dp") :: dp]:
            results[number] = run_case(CASES[number], groups)
    return results


@pytest.fixture(scope="module")
def errors() -> dict[int, list[dict[str, float]]]:
    """Errors by case, of every rank that ran it."""
    by_case: dict[int, list[dict[str, float]]] = {}
    for of_rank in run_world(NUM_RANKS, run_all_cases):
        for number, found in of_rank.items():
            by_case.setdefault(number, []).append(found)
    return by_case


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: str(CASES[number]))
def test_equals_plain_block(errors, number):
    case = CASES[number]
    assert len(errors[number]) == case.tp * case.cp
    for of_rank in errors[number]:
        worst = max(of_rank, key=of_rank.get)
        limit = 3.0 if case.dtype is torch.bfloat16 else TOLERANCE[case.dtype]
        assert of_rank[worst] < limit, f"{worst} is off by {of_rank[worst]:.2e}"

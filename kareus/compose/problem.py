"""An iteration in numbers: the precedence graph and the options of every instruction as arrays.

The solver's compiled parts work on this form. Instructions are renumbered to nodes in topological
order, so that one sweep over ascending nodes gives earliest starts and one over descending nodes
latest ends. Times are integers on the grid of `instruction.TIME_GRID_S`, rounded up: paths of equal
length compare equal, and whether slack is zero is no question of tolerance.

Legend: N nodes, K kinds (virtual stage and direction); CSR arrays `*_ptr` of one more than their
rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kareus.compose.front import hull, prune
from kareus.compose.instruction import TIME_GRID_S
from kareus.core.partition import Direction
from kareus.core.pipeline import Pipeline
from kareus.core.plan import InstructionOption
from kareus.errors import ConfigError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GRID_PER_S = 1.0 / TIME_GRID_S


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Graph and options of one iteration.

    Attributes:
        pipeline: The pipeline it came from.
        options: Per kind, its non-dominated options, fastest first.
        position: Node -> position in `pipeline.instructions`, shape (N,).
        pred_ptr: Predecessors of each node, CSR.
        pred: Their nodes.
        succ_ptr: Successors of each node, CSR.
        succ: Their nodes.
        kind: Kind of each node, shape (N,).
        option_ptr: Options of each kind, CSR.
        option_time: Their times in grid units, ascending within a kind.
        option_energy_j: Their effective energies in joules, descending within a kind.
        hull_ptr: Vertices of the lower convex hull of each kind, CSR.
        hull_option: Their positions in the option arrays.
    """

    pipeline: Pipeline
    options: tuple[tuple[InstructionOption, ...], ...]
    position: Ints
    pred_ptr: Ints
    pred: Ints
    succ_ptr: Ints
    succ: Ints
    kind: Ints
    option_ptr: Ints
    option_time: Ints
    option_energy_j: Floats
    hull_ptr: Ints
    hull_option: Ints

    @property
    def num_nodes(self) -> int:
        """Number of instructions."""
        return len(self.kind)

    @property
    def hull_time(self) -> Ints:
        """Times of the hull vertices in grid units."""
        return self.option_time[self.hull_option]

    @property
    def hull_energy_j(self) -> Floats:
        """Effective energies of the hull vertices in joules."""
        return self.option_energy_j[self.hull_option]

    @property
    def has_choice(self) -> bool:
        """Whether any instruction has more than one option."""
        return bool(np.any(np.diff(self.option_ptr) > 1))

    def option_of(self, node: int, option: int) -> InstructionOption:
        """Return the option at a position of the option arrays, for a node."""
        kind = int(self.kind[node])
        return self.options[kind][option - int(self.option_ptr[kind])]

    def choices(self, chosen: Ints) -> tuple[tuple[InstructionOption, ...], ...]:
        """Return the options of every stage's instructions in execution order.

        Args:
            chosen: Per node, a position in the option arrays.
        """
        by_position: list[InstructionOption] = [self.options[0][0]] * self.num_nodes
        for node, option in enumerate(chosen.tolist()):
            by_position[int(self.position[node])] = self.option_of(node, option)
        stages: list[tuple[InstructionOption, ...]] = []
        first = 0
        for stage in self.pipeline.stages:
            stages.append(tuple(by_position[first : first + len(stage)]))
            first += len(stage)
        return tuple(stages)


def build_problem(
    pipeline: Pipeline,
    options: Mapping[tuple[int, Direction], Sequence[InstructionOption]],
) -> Problem:
    """Return the arrays of an iteration.

    Args:
        pipeline: The precedence graph.
        options: Options per kind (virtual stage, direction); dominated ones are dropped.

    Raises:
        ConfigError: A kind of the pipeline has no options.
    """
    kinds = sorted(set(pipeline.kinds))
    for kind in kinds:
        if not options.get(kind):
            raise ConfigError(
                f"stage {kind[0]} has no options for its {kind[1].value} instructions: "
                "compose them first"
            )
    kept_options: list[tuple[InstructionOption, ...]] = []
    times: list[Ints] = []
    energies: list[Floats] = []
    hulls: list[Ints] = []
    num_options = 0
    for kind in kinds:
        given = options[kind]
        grid = np.array([to_grid(option.time_s) for option in given], dtype=np.int64)
        energy = np.array([option.effective_energy_j for option in given], dtype=np.float64)
        kept = prune(grid.astype(np.float64), energy)
        kept_options.append(tuple(given[k] for k in kept))
        times.append(grid[kept])
        energies.append(energy[kept])
        hulls.append(hull(grid[kept].astype(np.float64), energy[kept]) + num_options)
        num_options += len(kept)
    node_of = np.empty(len(pipeline.instructions), dtype=np.int64)
    position = _nodes_by_depth(pipeline)
    node_of[position] = np.arange(len(position))
    edges = sorted({(int(node_of[a]), int(node_of[b])) for a, b in pipeline.edges})
    kind_number = {kind: k for k, kind in enumerate(kinds)}
    pred_ptr, pred = _csr(len(position), [(b, a) for a, b in edges])
    succ_ptr, succ = _csr(len(position), edges)
    return Problem(
        pipeline=pipeline,
        options=tuple(kept_options),
        position=position,
        pred_ptr=pred_ptr,
        pred=pred,
        succ_ptr=succ_ptr,
        succ=succ,
        kind=np.array([kind_number[pipeline.kinds[p]] for p in position], dtype=np.int64),
        option_ptr=_pointers([len(kind) for kind in times]),
        option_time=np.concatenate(times),
        option_energy_j=np.concatenate(energies),
        hull_ptr=_pointers([len(vertices) for vertices in hulls]),
        hull_option=np.concatenate(hulls).astype(np.int64),
    )


def to_grid(time_s: float) -> int:
    """Return a time in grid units, rounded up."""
    return int(np.ceil(time_s * GRID_PER_S))


def _nodes_by_depth(pipeline: Pipeline) -> Ints:
    """Positions sorted by earliest start at unit durations: topological, and local in time."""
    starts = pipeline.start_times_s([1.0] * len(pipeline.instructions))
    return np.argsort(np.asarray(starts), kind="stable").astype(np.int64)


def _pointers(lengths: Sequence[int]) -> Ints:
    """CSR pointers of rows of the given lengths."""
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)


def _csr(num_rows: int, pairs: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
    """Row pointers and columns of (row, column) pairs."""
    array: NDArray[Any] = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
    return _pointers(np.bincount(array[:, 0], minlength=num_rows).tolist()), array[:, 1].copy()

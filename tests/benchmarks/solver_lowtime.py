"""lowtime (Perseus' solver) on the same iterations: its rounded plans, with real time and energy.

lowtime fits an exponential to each kind, shortens the iteration by 1 ms per step with a minimum
cut, and rounds each instruction to the slowest option within its planned time. What counts here are
the options it assigned: their own makespan and energy.
"""

import time
import warnings
from collections.abc import Mapping, Sequence

from kareus.core.partition import Direction
from kareus.core.pipeline import Pipeline
from kareus.core.plan import InstructionOption

_UNIT_S = 0.001


def available() -> bool:
    """Whether lowtime is installed (extra `bench`)."""
    try:
        import lowtime.solver  # noqa: F401
    except ImportError:
        return False
    return True


def rounded_plans(
    pipeline: Pipeline,
    options: Mapping[tuple[int, Direction], Sequence[InstructionOption]],
    *,
    limit_s: float,
) -> tuple[list[tuple[float, float]] | None, float]:
    """Return (real makespan s, effective energy J) of every plan, and the CPU seconds spent.

    The time includes fitting and building. No plans where the limit was reached.
    """
    import networkx as nx
    from lowtime.cost_model import ExponentialModel
    from lowtime.graph_utils import add_sink_node, add_source_node
    from lowtime.operation import (
        CandidateExecutionOptions,
        ExecutionOption,
        Operation,
        OperationSpec,
    )
    from lowtime.solver import PhillipsDessouky

    began = time.process_time()
    specs = {}
    # Its grid of initial guesses makes the fit overflow here and there; the best fit is kept.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, own in options.items():
            candidates = CandidateExecutionOptions(
                options=[
                    ExecutionOption(
                        real_time=option.time_s,
                        unit_time=_UNIT_S,
                        cost=option.effective_energy_j,
                        knob=k,
                    )
                    for k, option in enumerate(own)
                ]
            )
            specs[kind] = OperationSpec(
                options=candidates,
                cost_model=ExponentialModel(candidates, search_strategy="best"),
            )
    operations = [Operation(spec=specs[kind]) for kind in pipeline.kinds]
    graph = nx.DiGraph()
    for node, operation in enumerate(operations):
        graph.add_node(node, op=operation)
    graph.add_edges_from(pipeline.edges)
    add_source_node(graph, "source")
    add_sink_node(graph, "sink")
    graph.graph["source_node"] = "source"
    graph.graph["sink_node"] = "sink"
    assigned = []
    for _ in PhillipsDessouky(graph).run():
        assigned.append([operation.assigned_knob for operation in operations])
        if time.process_time() - began > limit_s:
            return None, time.process_time() - began
    spent = time.process_time() - began
    plans = []
    for knobs in assigned:
        chosen = [options[kind][knob] for kind, knob in zip(pipeline.kinds, knobs, strict=True)]
        plans.append(
            (
                pipeline.makespan_s([option.time_s for option in chosen]),
                sum(option.effective_energy_j for option in chosen),
            )
        )
    return plans, spent

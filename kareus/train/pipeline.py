"""A stage under torch's pipelining that calls the hooks around its instructions.

The forward of the last stage ends after its loss, as the plan counts it. Sends and receives, and
waiting for them, lie outside the instructions.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from kareus.core.partition import Direction
from kareus.core.pipeline import PipelineOrder
from kareus.errors import ConfigError
from kareus.execute.stage import Stage
from kareus.train.runtime import ScheduleRuntime


class HookedStage(PipelineStage):
    """A pipeline stage whose instructions follow a schedule.

    Args:
        stage: The stage.
        runtime: The hooks.
        device: This rank's device.
        group: The ranks along the pipeline.
    """

    def __init__(
        self,
        stage: Stage,
        runtime: ScheduleRuntime,
        *,
        device: torch.device,
        group: dist.ProcessGroup,
    ) -> None:
        input_args, output_args = stage.pipeline_metadata()
        super().__init__(
            stage,
            stage.stage_index,
            stage.workload.parallelism.pp,
            device,
            input_args=input_args,
            output_args=output_args,
            group=group,
        )
        self._runtime = runtime
        self._loss = stage.loss if stage.last else None

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of a microbatch."""
        self._runtime.on_instruction_begin(Direction.FORWARD.value, fwd_chunk_id)
        output = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        if self._loss is None:
            self._runtime.on_instruction_end(Direction.FORWARD.value)
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the backward of a microbatch."""
        self._runtime.on_instruction_begin(Direction.BACKWARD.value, bwd_chunk_id)
        result = super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self._runtime.on_instruction_end(Direction.BACKWARD.value)
        return result

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Compute the loss of a microbatch, which ends its forward."""
        assert self._loss is not None, "only the last stage has a loss"
        loss: Tensor = self._loss(output, target)
        self._runtime.on_instruction_end(Direction.FORWARD.value)
        return loss


class _OneFOneB(Schedule1F1B):
    """1F1B, also with fewer microbatches than stages: the order is defined there, too."""

    def __init__(
        self, stage: PipelineStage, num_microbatches: int, *, loss_fn: Callable[..., Tensor]
    ) -> None:
        PipelineScheduleSingle.__init__(self, stage, num_microbatches, loss_fn=loss_fn)


def build_pipeline_schedule(
    stage: HookedStage, order: PipelineOrder, num_microbatches: int
) -> PipelineScheduleSingle:
    """Return torch's schedule for an order.

    Raises:
        ConfigError: The order is not one of a single chunk per stage.
    """

    def loss_fn(output: Tensor, target: Tensor) -> Tensor:
        return stage.loss_of(output, target)

    match order:
        case PipelineOrder.ONE_F_ONE_B:
            return _OneFOneB(stage, num_microbatches, loss_fn=loss_fn)
        case PipelineOrder.GPIPE:
            return ScheduleGPipe(stage, num_microbatches, loss_fn=loss_fn)
        case _:
            raise ConfigError(
                f"order {order}: the trainer runs one model chunk per stage; plan with "
                f"{PipelineOrder.ONE_F_ONE_B} or {PipelineOrder.GPIPE}"
            )

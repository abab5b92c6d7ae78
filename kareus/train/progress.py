"""What a person sees of a training run: a bar on a terminal, else a line now and then.

On standard error, so that standard output stays the report's.
"""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from kareus.train.log import StepRecord

_LINES = 20


class ProgressDisplay:
    """Shows the steps of a run; use it as a context.

    Args:
        shown: Whether this rank shows anything.
        steps: The run's last step.
        done: Steps already trained.
        planned_s: Planned time of an iteration.
    """

    def __init__(self, *, shown: bool, steps: int, done: int, planned_s: float) -> None:
        self._console = Console(stderr=True, quiet=not shown)
        self._steps = steps
        self._planned_s = planned_s
        self._every = max(1, (steps - done) // _LINES)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        if shown and self._console.is_terminal:
            self._progress = Progress(
                TextColumn("Training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._progress.add_task("", total=steps, completed=done)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, record: StepRecord) -> None:
        """Show a step that has ended."""
        energy = "" if record.energy_j is None else f"  {record.energy_j:.0f} J/GPU"
        text = (
            f"loss {record.loss:.4f}  {record.time_s:.3g} s (planned {self._planned_s:.3g} s)  "
            f"{record.tokens_per_s:,.0f} tokens/s{energy}"
        )
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=record.step, description=text)
        elif record.step % self._every == 0 or record.step in (1, self._steps):
            self._console.print(f"step {record.step}/{self._steps}  {text}", highlight=False)

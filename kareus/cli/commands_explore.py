"""The command that explores parallelisms."""

from typing import Any

import click

from kareus.cli.options import NumberList, database_option, json_option
from kareus.cli.output import print_json, print_table, progress_bars
from kareus.core.measurement import SourceKind
from kareus.core.workload import Recompute
from kareus.errors import ConfigError
from kareus.service import (
    ExplorationRequest,
    ExplorationView,
    LayoutState,
    Service,
    StudyRequest,
    WorkloadSettings,
    layout_words,
)


@click.command()
@click.argument("model", required=False)
@click.option("--gpus", "num_gpus", type=int, help="GPUs of the job; all are used.")
@click.option("--gpu", default="A100-SXM4-40GB", show_default=True, help="GPU name.")
@click.option(
    "--global-batch", type=int, default=64, show_default=True, help="Sequences per iteration."
)
@click.option("--seq-len", type=int, default=4096, show_default=True, help="Tokens per sequence.")
@click.option("--cps", type=NumberList(), default="1,2,4", show_default=True, help="CP degrees.")
@click.option(
    "--microbatch-sizes",
    type=NumberList(),
    default="2,4,8,16",
    show_default=True,
    help="Sequences per microbatch tried.",
)
@click.option(
    "--recompute",
    type=click.Choice([choice.value for choice in Recompute]),
    default=Recompute.FULL.value,
    show_default=True,
    help="Recompute activations in the backward.",
)
@click.option("--budget", default="fast", show_default=True, help="Of each layout's search.")
@click.option(
    "--margin",
    type=float,
    default=0.25,
    show_default=True,
    help="Leave out layouts beaten even if they gained this share over their baselines.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of search and noise.")
@click.option("--name", help="Name of the exploration.")
@click.option("--detach", is_flag=True, help="Run as a background job and return at once.")
@click.option("--list", "list_", is_flag=True, help="List the explorations there are.")
@click.option("--show", "shown", help="Show an exploration by its id.")
@database_option
@json_option
def explore(
    service: Service,
    model: str | None,
    num_gpus: int | None,
    detach: bool,
    list_: bool,
    shown: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the parallelism too: one joint frontier over all layouts on a number of GPUs."""
    if list_:
        _print_list(service.explorations(), as_json)
        return
    if shown is not None:
        _print_exploration(service.exploration(shown), as_json)
        return
    if model is None or num_gpus is None:
        raise ConfigError("say what to explore: kareus explore MODEL --gpus N")
    request = ExplorationRequest(
        base=StudyRequest(
            settings=WorkloadSettings(
                model=model,
                gpu=options["gpu"],
                seq_len=options["seq_len"],
                recompute=Recompute(options["recompute"]),
            ),
            source=SourceKind.SIMULATOR,
            budget=options["budget"],
            seed=options["seed"],
        ),
        num_gpus=num_gpus,
        global_batch_size=options["global_batch"],
        cps=options["cps"],
        microbatch_sizes=options["microbatch_sizes"],
        margin=options["margin"],
    )
    if detach:
        handle = service.submit_exploration(request, name=options["name"])
        if as_json:
            print_json({"job": handle.job, "exploration": handle.exploration})
        else:
            click.echo(f"Job {handle.job} runs exploration {handle.exploration}")
        return
    if as_json:
        _print_exploration(service.explore(request, name=options["name"]), as_json)
        return
    with progress_bars() as show:
        view = service.explore(request, name=options["name"], on_progress=show)
    _print_exploration(view, as_json)


def _print_list(views: list[ExplorationView], as_json: bool) -> None:
    if as_json:
        print_json([view.as_document() for view in views])
        return
    print_table(
        ("exploration", "name", "GPUs", "state", "layouts", "on the frontier"),
        [
            (
                view.exploration,
                view.name,
                view.request.num_gpus,
                view.state,
                len(view.result.layouts),
                len({point.layout for point in view.result.frontier}),
            )
            for view in views
        ],
    )


def _print_exploration(view: ExplorationView, as_json: bool) -> None:
    if as_json:
        print_json(view.as_document())
        return
    result = view.result
    counts = {state: sum(one.state is state for one in result.layouts) for state in LayoutState}
    click.echo(
        f"Exploration {view.exploration}: {len(result.layouts)} layouts, "
        + ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)
    )
    print_table(
        ("iteration time (s)", "job energy (J)", "layout", "study", "plan"),
        [
            (
                point.iteration_time_s,
                point.job_energy_j,
                layout_words(result.layouts[point.layout]),
                result.layouts[point.layout].study,
                point.plan,
            )
            for point in result.frontier
        ],
    )
    if any(result.layouts[point.layout].dp > 1 for point in result.frontier):
        click.echo("Reducing gradients over data-parallel replicas is not counted.")


COMMANDS = (explore,)

"""Commands about studies: run, list, show, compare, choose, export."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from kareus.cli.options import (
    StageValues,
    database_option,
    existing_database_option,
    json_option,
    settings_from,
    workload_options,
)
from kareus.cli.output import print_json, print_table, progress_bars
from kareus.core.measurement import SourceKind
from kareus.core.pipeline import PipelineOrder
from kareus.core.plan import Method
from kareus.errors import ConfigError
from kareus.service import Constraints, Service, Straggler, StudyRequest


class MethodName(click.ParamType[Method]):
    """A method's name; underscores and hyphens are the same."""

    name = "|".join(Method)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Method:
        """Return the method; refuse an unknown name with the known ones."""
        try:
            return Method(str(value).replace("_", "-").lower())
        except ValueError:
            self.fail(f"'{value}' is not a method: choose {', '.join(Method)}", param, ctx)


@click.command()
@workload_options()
@click.option(
    "--source",
    type=click.Choice([kind.value for kind in SourceKind]),
    default=SourceKind.SIMULATOR.value,
    show_default=True,
    help="Where measurements come from.",
)
@click.option("--measurements", help="For replay: a dataset id, or recorded measurements' path.")
@click.option(
    "--budget",
    default="published",
    show_default=True,
    help="published, fast, exhaustive, or a number of measurements for the whole study.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of search and noise.")
@click.option("--name", help="Name of the study.")
@click.option(
    "--search",
    type=click.Choice(["kareus", "published", "random"]),
    default="kareus",
    show_default=True,
    help="How partitions are searched.",
)
@click.option("--plans", "num_plans", type=int, default=50, show_default=True, help="Plans each.")
@click.option("--calibration", help="Calibration file of the simulator (default: the GPU's own).")
@click.option(
    "--temperature",
    "temperature_c",
    type=float,
    help="GPU temperature to simulate (degrees Celsius; default: that of the calibration).",
)
@click.option("--transfer", is_flag=True, help="Start from other studies on the same GPU.")
@click.option(
    "--order",
    type=click.Choice([order.value for order in PipelineOrder]),
    default=PipelineOrder.ONE_F_ONE_B.value,
    show_default=True,
    help="Pipeline order.",
)
@click.option(
    "--chunks",
    "num_chunks",
    type=int,
    default=1,
    show_default=True,
    help="Model chunks per stage, with the interleaved order.",
)
@click.option("--detach", is_flag=True, help="Run as a background job and return at once.")
@database_option
@json_option
def optimize(service: Service, detach: bool, as_json: bool, **options: Any) -> None:
    """Run a whole study: measure, search, compose, solve, compare."""
    settings = settings_from(options)
    options["source"] = SourceKind(options["source"])
    options["order"] = PipelineOrder(options["order"])
    request = StudyRequest(settings=settings, **options)
    if detach:
        handle = service.submit(request)
        if as_json:
            print_json({"job": handle.job, "study": handle.study})
        else:
            click.echo(f"Job {handle.job} runs study {handle.study}. Watch it: kareus jobs")
        return
    assessment = service.assess(request)
    # A refused request leaves its one line and nothing else.
    for finding in assessment.warnings if assessment.ready else ():
        click.echo(f"{finding.severity}: {finding.message}", err=True)
    started = time.monotonic()
    if as_json:
        result = service.run(request)
    else:
        with progress_bars() as show:
            result = service.run(request, on_progress=show)
    seconds = time.monotonic() - started
    if as_json:
        print_json(
            {
                "study": result.study,
                "seconds": round(seconds, 3),
                "measurements": result.measurements,
                "compare": result.compare,
            }
        )
        return
    click.echo(f"Study {result.study}: {result.measurements} measurements in {seconds:.1f} s")
    _print_comparison(result.compare)


@click.command()
@database_option
@json_option
def studies(service: Service, as_json: bool) -> None:
    """List the studies, newest first."""
    found = service.studies()
    if as_json:
        print_json([study.as_document() for study in found])
        return
    if not found:
        click.echo("No studies yet: run kareus optimize --help")
        return
    print_table(
        ("study", "name", "workload", "source", "state", "less energy at equal time (%)"),
        [
            (
                study.id,
                study.name,
                study.workload_line,
                study.source_words,
                study.state,
                study.iso_time_energy_reduction_pct,
            )
            for study in found
        ],
    )


@click.command()
@click.argument("study")
@existing_database_option
@json_option
def show(service: Service, study: str, as_json: bool) -> None:
    """Show one study: workload, source, state, assumptions."""
    detail = service.study(study)
    if as_json:
        print_json(detail.as_document())
        return
    for word, value in detail.as_lines():
        click.echo(f"{word:<14} {value}")
    if detail.compare:
        _print_comparison(detail.compare)


@click.command()
@click.argument("study")
@click.option("--method", type=MethodName(), default="kareus", show_default=True)
@existing_database_option
@json_option
def frontier(service: Service, study: str, method: Method, as_json: bool) -> None:
    """Print a method's time-energy frontier, fastest plan first."""
    plans = service.plan_summaries(study, method)
    if as_json:
        print_json(
            {
                "study": service.study(study).id,
                "method": method.value,
                "plans": [plan.as_document() for plan in plans],
            }
        )
        return
    print_table(
        ("plan", "iteration time (s)", "pipeline energy (J)", "job energy (J)", "gap (%)"),
        [
            (
                plan.plan,
                plan.iteration_time_s,
                plan.pipeline_energy_j,
                plan.job_energy_j,
                None if plan.gap is None else 100 * plan.gap,
            )
            for plan in plans
        ],
    )


@click.command()
@click.argument("study")
@existing_database_option
@json_option
def compare(service: Service, study: str, as_json: bool) -> None:
    """Compare Kareus with Megatron-LM, Perseus and nanobatching + Perseus."""
    figures = service.compare(study)
    if as_json:
        print_json(figures)
        return
    _print_comparison(figures)


@click.command()
@click.argument("study")
@click.option("--plan", type=int, help="Plan number, as `kareus frontier` lists it.")
@click.option("--deadline", type=float, help="Least energy within this iteration time (s).")
@click.option("--energy-budget", type=float, help="Fastest within this pipeline energy (J).")
@click.option("--max-throughput", is_flag=True, help="The fastest plan.")
@click.option("--min-energy", is_flag=True, help="The most frugal plan.")
@click.option("--knee", is_flag=True, help="The plan with the best balance of both.")
@click.option("--method", type=MethodName(), default="kareus", show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder, or .zip by its name."
)
@existing_database_option
@json_option
def export(
    service: Service,
    study: str,
    plan: int | None,
    deadline: float | None,
    energy_budget: float | None,
    max_throughput: bool,
    min_energy: bool,
    knee: bool,
    method: Method,
    out: Path,
    as_json: bool,
) -> None:
    """Write the schedule bundle of one plan."""
    chosen = service.choose(
        study,
        method=method,
        number=plan,
        deadline_s=deadline,
        energy_budget_j=energy_budget,
        fastest=max_throughput,
        most_frugal=min_energy,
        knee=knee,
    )
    path = service.export(study, chosen.plan, method=method, out=out)
    if as_json:
        print_json({"path": str(path), **chosen.as_document()})
    else:
        click.echo(
            f"Plan {chosen.plan} ({chosen.iteration_time_s:.4g} s, "
            f"{chosen.pipeline_energy_j:.4g} J per pipeline) written to {path}"
        )


def _print_comparison(figures: dict[str, Any]) -> None:
    """Print the comparison figures, one line per baseline."""
    energy = figures["iso_time_energy_reduction_pct"]
    time_ = figures["iso_energy_time_reduction_pct"]
    throughput = figures["max_throughput"]
    methods = [method.value for method in Method if method.value in {*energy, *throughput}]
    print_table(
        (
            "against Megatron-LM at maximum throughput",
            "less time (%)",
            "less energy (%)",
        ),
        [
            (
                method,
                throughput[method]["time_reduction_pct"],
                throughput[method]["energy_reduction_pct"],
            )
            for method in methods
            if method in throughput
        ],
    )
    print_table(
        (
            "against Megatron-LM + Perseus",
            "less energy, equal time (%)",
            "less time, equal energy (%)",
        ),
        [(method, energy[method], time_.get(method)) for method in methods if method in energy],
    )


@click.command()
@click.argument("study")
@click.option("--deadline", type=float, help="Iteration time not to exceed (s).")
@click.option("--energy-budget", type=float, help="Job energy per iteration not to exceed (J).")
@click.option("--power-cap", type=float, help="Average power of the job not to exceed (W).")
@click.option(
    "--clocks",
    type=StageValues(),
    multiple=True,
    help="Clocks allowed (MHz), as 900,1200 for all stages or 0:900,1200 for stage 0.",
)
@click.option(
    "--clock-floor", type=StageValues(), multiple=True, help="Lowest clock (MHz), likewise."
)
@click.option(
    "--clock-ceiling", type=StageValues(), multiple=True, help="Highest clock (MHz), likewise."
)
@click.option("--straggler", help="A stage slowed down, as STAGE:PERCENT.")
@click.option("--max-clocks", type=int, help="Distinct clocks one stage may use.")
@click.option("--name", help="Name of the new study.")
@existing_database_option
@json_option
def replan(service: Service, study: str, name: str | None, as_json: bool, **given: Any) -> None:
    """Plan a finished study again under constraints; nothing is measured."""
    num_stages = service.study(study).workload.parallelism.pp
    constraints = Constraints(
        deadline_s=given["deadline"],
        energy_budget_j=given["energy_budget"],
        power_cap_w=given["power_cap"],
        stage_clocks_mhz=_per_stage(given["clocks"], num_stages),
        clock_floor_mhz=_one_per_stage(given["clock_floor"], num_stages),
        clock_ceiling_mhz=_one_per_stage(given["clock_ceiling"], num_stages),
        straggler=_straggler(given["straggler"]),
        max_clocks_per_stage=given["max_clocks"],
    )
    result = service.replan(study, constraints, name=name)
    if as_json:
        print_json({"study": result.study, "compare": result.compare})
        return
    click.echo(f"Study {result.study}: planned under constraints")
    _print_comparison(result.compare)


def _per_stage(
    given: Sequence[tuple[int | None, tuple[int, ...]]], num_stages: int
) -> dict[int, tuple[int, ...]]:
    """Values by stage; what names no stage holds for those that nothing names.

    Raises:
        ConfigError: Several were given for one stage, or for all.
    """
    named: dict[int | None, tuple[int, ...]] = {}
    for stage, numbers in given:
        if stage in named:
            where = "all stages" if stage is None else f"stage {stage}"
            raise ConfigError(
                f"{','.join(map(str, numbers))}: {where} has {','.join(map(str, named[stage]))} "
                "already; give one list of clocks for it"
            )
        named[stage] = numbers
    everywhere = named.pop(None, None)
    values = {} if everywhere is None else dict.fromkeys(range(num_stages), everywhere)
    return values | {stage: numbers for stage, numbers in named.items() if stage is not None}


def _one_per_stage(
    given: Sequence[tuple[int | None, tuple[int, ...]]], num_stages: int
) -> dict[int, int]:
    """One value by stage.

    Raises:
        ConfigError: Several were given for one.
    """
    for _, numbers in given:
        if len(numbers) > 1:
            raise ConfigError(
                f"{','.join(map(str, numbers))}: a clock floor or ceiling is one clock, such as "
                f"{numbers[0]}; --clocks takes a list"
            )
    return {stage: numbers[0] for stage, numbers in _per_stage(given, num_stages).items()}


def _straggler(text: str | None) -> Straggler | None:
    """The straggler written as STAGE:PERCENT."""
    if text is None:
        return None
    stage, _, percent = text.partition(":")
    try:
        return Straggler(stage=int(stage), slowdown_pct=float(percent))
    except ValueError as error:
        raise ConfigError(
            f"--straggler '{text}' is not STAGE:PERCENT: write 1:20 for stage 1 slowed by 20 %"
        ) from error


COMMANDS = (optimize, studies, show, frontier, compare, export, replan)

"""Commands about background jobs."""

import click

from kareus.cli.options import database_option, json_option
from kareus.cli.output import print_json, print_table
from kareus.service import Service


@click.group(invoke_without_command=True)
@database_option
@json_option
@click.pass_context
def jobs(ctx: click.Context, service: Service, as_json: bool) -> None:
    """List, cancel, resume and read background jobs."""
    if ctx.invoked_subcommand is None:
        _print_jobs(service, as_json)


@jobs.command("list")
@database_option
@json_option
def list_jobs(service: Service, as_json: bool) -> None:
    """List the jobs, newest first."""
    _print_jobs(service, as_json)


@jobs.command()
@click.argument("job")
@database_option
@json_option
def cancel(service: Service, job: str, as_json: bool) -> None:
    """Cancel a job and its children; what it measured is kept."""
    state = service.cancel_job(job).state
    if as_json:
        print_json({"job": job, "state": state})
    else:
        click.echo(f"Job {job}: {state}")


@jobs.command()
@click.argument("job")
@click.option("--wait", is_flag=True, help="Return when the job has ended.")
@database_option
@json_option
def resume(service: Service, job: str, wait: bool, as_json: bool) -> None:
    """Resume a job that was cancelled, failed or interrupted; nothing is measured twice."""
    view = service.resume_job(job)
    if wait:
        view = service.wait_for_job(job)
    if as_json:
        print_json({"job": view.job, "study": view.study, "state": view.state})
    else:
        click.echo(f"Job {view.job}: {view.state}")


@jobs.command()
@click.argument("job")
@click.option("--last", type=int, default=200, show_default=True, help="Lines from the end.")
@database_option
def logs(service: Service, job: str, last: int) -> None:
    """Print a job's log."""
    click.echo(service.job_log(job, last=last), nl=False)


def _print_jobs(service: Service, as_json: bool) -> None:
    """Print all jobs as JSON or as a table."""
    found = service.jobs()
    if as_json:
        print_json([view.as_document() for view in found])
        return
    if not found:
        click.echo("No jobs yet: run kareus optimize --detach")
        return
    print_table(
        ("job", "study", "state", "measurements", "planned"),
        [(view.job, view.study, view.state, view.measurements, view.planned) for view in found],
    )


COMMANDS = (jobs,)

"""Commands about jobs: submit, jobs, logs, stop, watch."""

from __future__ import annotations

from typing import Any

import click

from tradewind.cli_base import Options, emit, json_option, parse_duration, table_width, tell_of_bare_number, to_json


@click.command(
    context_settings={"ignore_unknown_options": False},
    epilog="Examples:  tradewind submit job.yaml   |   tradewind submit --workers 2..4 --gpus 1 -- python train.py",
)
@click.argument("what", nargs=-1, required=True, metavar="JOB.YAML | -- COMMAND...")
@click.option("--name", help="A name to recognise it by.")
@click.option("--workers", metavar="N | MIN..MAX", help="How many workers; a range makes it elastic.")
@click.option("--cpus", type=click.FloatRange(0), help="CPUs of each worker.")
@click.option("--gpus", type=click.FloatRange(0), help="GPUs of each worker.")
@click.option("--accelerator", metavar="NAME", help="Of this type: A100, H100, L4, ...")
@click.option(
    "--working-dir",
    type=click.Path(exists=True, file_okay=False),
    help="Run it here [default: the job file's folder; for a command: .].",
)
@click.option("--tenant", help="Whose job it is.")
@click.option("--team", help="Which part of the tenant, for reports.")
@click.option(
    "--deadline",
    metavar="6h | TIME",
    help="It is to be done by then, at the least cost. A TIME without a zone is in this machine's.",
)
@click.option("--budget", metavar="USD", help="It may cost this much; then it saves and stops.")
@click.option("--work", metavar="48h", help="What one replica would need, until its steps tell (for --deadline).")
@click.option("--env", "env", multiple=True, metavar="KEY=VALUE", help="For its environment; may be repeated.")
@click.option("--retries", type=click.IntRange(0), help="Start it again so often when it fails (lost nodes aside).")
@click.option("--watch", is_flag=True, help="Show its progress until it ends; with --json one line per change.")
@click.option("--follow", "-f", is_flag=True, help="Show what it prints until it ends.")
@json_option
@click.pass_obj
def submit(options: Options, /, what: tuple[str, ...], watch: bool, follow: bool, as_json: bool, **given: Any) -> None:
    """Submit a job file or a command. Starts a controller when none runs."""
    import time

    from tradewind.submission import build_spec
    from tradewind.watch import watch_job

    if follow and as_json:
        raise click.UsageError("what a job prints is no JSON: take --watch, or leave out --json")
    for option in ("work", "deadline"):
        tell_of_bare_number(f"--{option}", given[option])
    spec = build_spec(_what(what), now_s=time.time(), **_words(given))  # a mistake must not start a controller
    with options.connect(start=True) as fleet:
        job = fleet.submit(spec)
        if not (watch and as_json):
            emit(job.info, as_json, lambda: _submitted(job.info))
        elif job.info.warning:
            click.echo(f"Warning: {_warning(job.info)}", err=True)
        try:
            if watch:
                watch_job(job, _json_lines() if as_json else None)
            if follow:
                _print_logs(job.logs(follow=True))
            if watch or follow:
                job.wait()  # fails here when the job failed, so that scripts see it
        except KeyboardInterrupt:
            click.echo(f"\n{job.job_id} goes on: `tradewind stop {job.job_id}` ends it.", err=True)
            raise


def _what(words: tuple[str, ...]) -> Any:
    from pathlib import Path

    return Path(words[0]) if len(words) == 1 and words[0].endswith((".yaml", ".yml")) else list(words)


def _words(given: dict[str, Any]) -> dict[str, Any]:
    """Flags to the SDK's words."""
    cpus, gpus, accelerator = given.pop("cpus"), given.pop("gpus"), given.pop("accelerator")
    amounts = {"CPU": cpus, "GPU": gpus}
    resources = {key: amount for key, amount in amounts.items() if amount is not None}
    if accelerator:
        from tradewind.model import LABEL_ACCELERATOR

        given["labels"] = {LABEL_ACCELERATOR: accelerator}
    pairs = given.pop("env")
    bad = [pair for pair in pairs if "=" not in pair]
    if bad:
        raise click.UsageError(f"--env {bad[0]}: write it as KEY=VALUE")
    given["max_retries"] = given.pop("retries")
    given["env"] = dict(pair.split("=", 1) for pair in pairs) or None
    return {**given, "resources": resources or None}


def _submitted(info: Any) -> str:
    from tradewind.render import contract_text

    job_id = info.job_id
    promise = f"  contract: {contract_text(info.contract)}\n" if info.contract else ""
    doubt = f"  warning: {_warning(info)}\n" if info.warning else ""
    return (
        f"Submitted {job_id}\n{doubt}{promise}"
        f"  tradewind watch {job_id}      its progress\n"
        f"  tradewind logs -f {job_id}    what it prints\n"
        f"  tradewind cost {job_id}       what it costs"
    )


def _warning(info: Any) -> str:
    return f"{info.warning}; they wait until the fleet's file says otherwise, or nodes are added by hand"


@click.command()
@click.option("--open", "only_open", is_flag=True, help="Only those that are not over.")
@json_option
@click.pass_obj
def jobs(options: Options, only_open: bool, as_json: bool) -> None:
    """List the jobs."""
    from tradewind.render import jobs_table
    from tradewind.states import is_over

    with options.connect_or_read() as fleet:
        found = [job.info for job in fleet.jobs() if not (only_open and is_over(job.info.state))]
    emit(found, as_json, lambda: jobs_table(found, table_width()))


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="JOB | node NODE")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job ends.")
@click.option("--tail", "-n", type=click.IntRange(0), metavar="LINES", help="Only the last lines.")
@click.pass_obj
def logs(options: Options, words: tuple[str, ...], follow: bool, tail: int | None) -> None:
    """Print what a job printed, or what a node's machine wrote while it booted."""
    is_node = len(words) == 2 and words[0] == "node"
    if not is_node and len(words) != 1:
        raise click.UsageError("name one job, or `node` and a node")
    with options.connect() as fleet:
        if is_node:
            lines = fleet.node_log(words[1]).splitlines(keepends=True)
            _print_logs(lines if tail is None else lines[max(0, len(lines) - tail) :])
            return
        job = fleet.job(words[0])
        _print_logs(job.logs(follow=True, tail=tail) if follow else [job.logs(tail=tail)])


def _print_logs(pieces: Any) -> None:
    for piece in pieces:
        click.echo(piece, nl=False)


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--wait", is_flag=True, help="Return when it has stopped.")
@json_option
@click.pass_obj
def stop(options: Options, job_id: str, wait: bool, as_json: bool) -> None:
    """Ask a job to save and stop."""
    from tradewind.render import progress_line

    with options.connect() as fleet:
        job = fleet.job(job_id)
        info = job.stop()
        if wait:
            info = job.wait()
    emit(info, as_json, lambda: progress_line(info))


@click.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option("--for", "duration_s", metavar="DURATION", callback=parse_duration, help="End after this time.")
@json_option
@click.pass_obj
def watch(options: Options, job_id: str | None, duration_s: float | None, as_json: bool) -> None:
    """Follow a job, or the whole fleet, live. With --json one line per change or event.

    Exit status 1 where the job failed.
    """
    import sys

    from tradewind import watch as watching

    with options.connect() as fleet:
        if job_id is not None:
            job = fleet.job(job_id)
            watching.watch_job(job, _json_lines() if as_json else None)
            job.wait()  # over: fails here when the job failed, as `submit --watch` does
        elif sys.stdout.isatty() and not as_json:
            watching.watch_fleet(fleet, duration_s)
        else:
            show_event = (lambda line: click.echo(_json_line(line))) if as_json else watching.show_event
            watching.watch_events(fleet, show_event, duration_s)


def _json_lines() -> Any:
    """Shows a job as one line of JSON whenever something has changed."""
    last: list[Any] = [None]

    def show(info: Any) -> None:
        if info != last[0]:
            last[0] = info
            click.echo(_json_line(info))

    return show


def _json_line(value: Any) -> str:
    import json

    return json.dumps(json.loads(to_json(value)))


COMMANDS = (submit, jobs, logs, stop, watch)

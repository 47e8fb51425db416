"""Commands about the fleet and this machine: demo, up, down, status, dashboard, why, nodes, doctor and others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from tradewind.cli_base import Options, emit, json_option, parse_duration, table_width, terminal_width, to_json

if TYPE_CHECKING:
    from tradewind.api import About
    from tradewind.client import Fleet
    from tradewind.config import FleetConfig
    from tradewind.home import FleetHome


@click.command()
@click.pass_obj
def demo(options: Options) -> None:
    """Train through two preemptions on pretend clouds, and print the receipt."""
    from tradewind import demo as show

    raise click.exceptions.Exit(show.run(home=options.home))


@click.command()
@click.argument("config", required=False, metavar="[FLEET.YAML]", type=click.Path(exists=True, dir_okay=False))
@click.option("--foreground", is_flag=True, help="Stay here until Ctrl-C, with the log on the screen.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Look and decide, but launch and end nothing: `why now` tells what. In clouds: only show checks and prices.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask before money is spent in clouds.")
@json_option
@click.pass_obj
def up(options: Options, config: str | None, foreground: bool, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Start a fleet: its controller and its Ray head. Nodes are bought when jobs ask for them.

    For a fleet in clouds, checks and prices come first, and a question.
    """
    fleet_name = None
    if config:
        found = _fleet_in(config)
        fleet_name = found.name
        if not _runs(options, fleet_name) and not _may_start(options, config, found, yes, dry_run, as_json):
            return
    options = _dry(options) if dry_run else options
    if foreground:
        raise click.exceptions.Exit(_run(options, config, fleet_name))
    with options.connect(start=True, config=config, fleet=fleet_name) as fleet:
        status = fleet.status()
        answer = {"fleet": status.fleet, "url": fleet.url, "pid": fleet.pid, "started": fleet.started}
        answer["dry_run"] = status.dry_run
        dry = (
            "\nDry run: nothing is launched or ended; `tradewind why now` tells what would be" if status.dry_run else ""
        )
        emit(answer, as_json, lambda: _started(options, fleet, status.fleet, status.ray_address) + dry)
    if config and not fleet.started:
        click.echo(f"{config} was not read again: `tradewind down` first, to start with it.", err=True)
    if dry_run and not status.dry_run:
        click.echo("The fleet runs, and not dry: `tradewind down` first.", err=True)


def _may_start(options: Options, config: str, found: FleetConfig, yes: bool, dry_run: bool, as_json: bool) -> bool:
    """What is not sold is told before a controller is started; in clouds, what it would cost, too."""
    from pathlib import Path

    from tradewind.cli_catalog import lists_folder
    from tradewind.cost import catalog
    from tradewind.fleet_offers import check_offers

    catalog.use(lists_folder(options))  # as the controller does
    check_offers(Path(config), found)
    if not found.cloud_names:
        return True
    from tradewind.cli_clouds import ask_before_spending

    return ask_before_spending(found, yes=yes, dry_run=dry_run, as_json=as_json)


def _dry(options: Options) -> Options:
    from dataclasses import replace

    from tradewind.controller_process import CONTROLLER

    return replace(options, command=[*(options.command or CONTROLLER), "--dry-run"])


def _fleet_in(config: str) -> FleetConfig:
    """The file, all of which is checked by this."""
    from pathlib import Path

    from tradewind.config import load_fleet

    return load_fleet(Path(config))


def _runs(options: Options, fleet_name: str) -> bool:
    from tradewind.controller_process import find_controller

    return find_controller(options.place(fleet_name)) is not None


def _run(options: Options, config: str | None, fleet_name: str | None) -> int:
    from pathlib import Path

    from tradewind.controller_process import CONTROLLER, run_controller

    return run_controller(options.place(fleet_name), Path(config) if config else None, options.command or CONTROLLER)


def _started(options: Options, fleet: Fleet, name: str, ray_address: str) -> str:
    import shlex

    log = f"\n  its log is {fleet.place.log_file}" if fleet.place else ""
    did = f"Started fleet {name}" if fleet.started else f"Fleet {name} is running already"
    home = f" --home {shlex.quote(options.home)}" if options.home else ""
    program = f"tradewind{home}" if _is_meant(options, name) else f"tradewind{home} --fleet {name}"
    tips = {
        f"{program} submit -- python train.py": "run something",
        f"{program} status": "see what goes on (dashboard: in a browser)",
        f"{program} down": "end all of it",
    }
    width = max(map(len, tips)) + 3
    return (
        f"{did}: {fleet.url}, process {fleet.pid}{log}\n"
        + (f"  Ray is at {ray_address}\n" if ray_address else "")
        + "\n".join(f"  {tip:<{width}} {what}" for tip, what in tips.items())
    )


def _is_meant(options: Options, name: str) -> bool:
    """Is it this fleet that commands without --fleet go to? Another one that runs must not be ended instead of it."""
    from dataclasses import replace

    from tradewind.errors import ControllerError

    try:
        return replace(options, fleet=None).place(is_sure=True).fleet == name
    except ControllerError:  # several run
        return False


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def down(options: Options, yes: bool, as_json: bool) -> None:
    """Stop all jobs, end all nodes and the controller, and prove that nothing is left.

    It asks where jobs are not over. Where several fleets run, name one: tradewind --fleet NAME down.
    """
    from dataclasses import replace

    from tradewind.errors import ControllerError
    from tradewind.render import shutdown_text
    from tradewind.states import is_over

    # A controller that ended in order withdrew its word; of one that died, head and nodes still run: they are adopted.
    place = options.place(is_sure=not options.is_elsewhere)
    died = place.announced() is not None
    if not died and not options.is_elsewhere:
        told = f"no controller runs for fleet {place.fleet} in {place.root}: there is nothing to end"
        raise ControllerError(told, _hint_to_end(place))
    with options.connect(start=died) as fleet:
        running = [job for job in fleet.jobs() if not is_over(job.info.state)]
        if running and not yes:
            names = ", ".join(job.job_id for job in running)
            name = f"fleet {place.fleet}" if fleet.place else "the fleet"
            click.confirm(f"{len(running)} not over: {names}. Stop and end {name}?", abort=True, err=True)
        report = fleet.down()
    left = _left_in_clouds(fleet)
    report = replace(report, left=(*report.left, *left))
    emit(report, as_json, lambda: shutdown_text(report))
    raise click.exceptions.Exit(1 if report.left else 0)


def _hint_to_end(place: FleetHome) -> str:
    from tradewind.home import announced_fleets, meant_fleet

    if meant := meant_fleet(place):
        return f"did you mean `tradewind --fleet {meant} down`?"
    others = announced_fleets(place.root)
    if others:
        return f"others do: `tradewind --fleet {others[0]} down`"
    return "`tradewind cost` and `tradewind jobs` still tell what it did; `tradewind reap` looks for what clouds keep"


def _left_in_clouds(fleet: Fleet) -> list[str]:
    """The controller has ended what it knows. What else carries the fleet's tag goes now, and all regions are asked."""
    if fleet.place is None or not (kept := fleet.place.folder / "fleet.yaml").exists():
        return []
    from tradewind.cli_clouds import prove_nothing_is_left

    config = _fleet_in(str(kept))
    if not config.cloud_names:
        return []
    sight = prove_nothing_is_left(config)
    return [str(each) for each in (*sight.found, *sight.blind)]


@click.command()
@json_option
@click.pass_obj
def status(options: Options, as_json: bool) -> None:
    """The fleet on one screen: jobs, nodes, cost, what is asked for, what was decided."""
    from tradewind.render import status_screen

    with options.connect() as fleet:
        found = fleet.status()
    emit(found, as_json, lambda: status_screen(found, table_width()))


@click.command()
@json_option
@click.pass_obj
def dashboard(options: Options, as_json: bool) -> None:
    """Print the address of the fleet's web page. It holds the fleet's token: do not pass it on."""
    with options.connect() as fleet:
        address = fleet.dashboard_address
    emit({"url": address}, as_json, lambda: address)


@click.command()
@click.argument("about", metavar="node ID | job ID | now", type=click.Choice(["node", "job", "now"]))
@click.argument("subject", required=False, default="", metavar="")
@click.option("--last", "-n", type=click.IntRange(min=1, max=10_000), help="So many lines at the most, the newest.")
@json_option
@click.pass_obj
def why(options: Options, about: About, subject: str, last: int | None, as_json: bool) -> None:
    """Why a node was bought and what it beat, what a job waits for, or what goes on now.

    A beginning of the ID is enough. Of a fleet that does not run, nodes and jobs are told from its log.
    """
    from tradewind.render import story_text

    if bool(subject) is (about == "now"):
        raise click.UsageError("`why now` takes no ID" if subject else f"give the ID: tradewind why {about} ID")
    with options.connect() if about == "now" else options.connect_or_read() as fleet:
        found = fleet.why(about, subject, last)
    emit(found, as_json, lambda: story_text(found, terminal_width()))


@click.command()
@json_option
@click.pass_obj
def env(options: Options, as_json: bool) -> None:
    """Print what plain `ray` needs to find this fleet: eval "$(tradewind env)"; ray job submit ..."""
    import shlex

    with options.connect() as fleet:
        found = fleet.ray_env()
    lines = [f"export {name}={shlex.quote(value)}" for name, value in found.items()]
    emit(found, as_json, lambda: "\n".join(lines))


@click.command()
@click.option("--all", "-a", "everything", is_flag=True, help="Ended ones too.")
@json_option
@click.pass_obj
def nodes(options: Options, everything: bool, as_json: bool) -> None:
    """List the nodes. Of a fleet that does not run, its log tells: --all lists those that it had."""
    from tradewind.render import nodes_table
    from tradewind.states import is_alive

    with options.connect_or_read() as fleet:
        known = fleet.nodes()
    found = [node for node in known if everything or is_alive(node.state)]
    emit(found, as_json, lambda: nodes_table(found, table_width(), num_ended=len(known) - len(found)))


@click.command()
@click.argument("target", metavar="NODE | MARKET")
@click.option(
    "--notice",
    "notice_s",
    metavar="DURATION",
    callback=parse_duration,
    help="Announce it so long before [default: take it at once].",
)
@json_option
@click.pass_obj
def preempt(options: Options, target: str, notice_s: float | None, as_json: bool) -> None:
    """Play the cloud: take a node away (local cloud only). MARKET may be a glob: 'aws/*/spot'."""
    with options.connect() as fleet:
        found = fleet.preempt(target, notice_s)
    when = f"in {notice_s:g}s" if notice_s else "at once"
    emit({"launch_ids": found}, as_json, lambda: f"Taken {when}: {', '.join(found) or 'none matches'}")


@click.command()
@click.argument("config", required=False, metavar="[FLEET.YAML]", type=click.Path(exists=True, dir_okay=False))
@click.option("--cloud", type=click.Choice(["aws", "gcp", "azure"]), help="Only what this cloud says of the file.")
@json_option
@click.pass_obj
def doctor(options: Options, config: str | None, cloud: str | None, as_json: bool) -> None:
    """Check this machine and the fleet; with a file, its clouds, too. Each line that fails says what to do.

    In clouds: credentials, permissions (by dry runs), quotas, images, networks, secrets.
    """
    from tradewind.doctor import run_checks
    from tradewind.render import checks_text

    checks = [] if cloud else run_checks(options.place())
    if config or cloud:
        from tradewind.cli_clouds import cloud_checks

        checks += cloud_checks(options, config, cloud)
    emit(checks, as_json, lambda: checks_text(checks))
    raise click.exceptions.Exit(0 if all(check.ok for check in checks) else 1)


@click.command()
@click.argument("kind", type=click.Choice(["fleet", "job"]))
def schema(kind: Literal["fleet", "job"]) -> None:
    """Print the JSON Schema of fleet or job files, for editors."""
    from tradewind.config import json_schema

    click.echo(to_json(json_schema(kind)))


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    from tradewind import __version__

    emit({"version": __version__}, as_json, lambda: f"tradewind {__version__}")


COMMANDS = (demo, up, down, status, dashboard, why, env, nodes, preempt, doctor, schema, version)

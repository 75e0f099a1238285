"""The `hydraulis` command: gathers the subcommands of whatever parts are installed."""

import sys
from collections.abc import Callable
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from typing import Annotated

COMMANDS_GROUP = "hydraulis.commands"

NEEDED = {"service": "ortools", "agent": "torch"}
"""A package that only this extra brings; commands import it when they run, so its absence has to be looked for. The
client's own commands need neither: any extra brings what they print with."""

_EXTRAS = {"planner_service": "service", "worker_agent": "agent"}


def main() -> None:
    """Run the `hydraulis` command."""
    try:
        import typer  # noqa: PLC0415 - the base install has no typer; the message below says what brings it
    except ImportError:
        sys.exit(
            "hydraulis: the command line needs an extra: pip install 'hydraulis-planner[service]' to plan and serve, "
            "or 'hydraulis-planner[agent]' to train; either brings what looks at a service (jobs, iterations, plans, "
            "profiles)"
        )
    app = typer.Typer(
        name="hydraulis",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )

    def show_version(wanted: bool) -> None:  # noqa: FBT001 - how typer calls back
        if wanted:
            typer.echo(f"hydraulis {version('hydraulis-planner')}")
            raise typer.Exit

    @app.callback()
    def hydraulis(
        *,
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        """Plan the parallel strategy and the sequence assignment of each training iteration."""

    for entry in sorted(entry_points(group=COMMANDS_GROUP), key=lambda entry: entry.name):
        extra = _EXTRAS.get(entry.value.partition(".")[0])
        if extra is not None and find_spec(NEEDED[extra]) is None:
            # Whatever follows the command, the answer is what to install.
            settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
            app.command(name=entry.name, context_settings=settings)(_explain(entry.name, extra))
        else:
            command = entry.load()
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=entry.name)
            else:
                app.command(name=entry.name)(command)
    app()


def _explain(name: str, extra: str) -> Callable[[], None]:
    """Make a command that stands in for one whose extra is not installed, and says so."""

    def explain() -> None:
        sys.exit(f"hydraulis {name}: {NEEDED[extra]} is missing; pip install 'hydraulis-planner[{extra}]'")

    explain.__doc__ = f"(needs hydraulis-planner[{extra}])"
    return explain

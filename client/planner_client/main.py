"""The `hydraulis` command: gathers the subcommands of whatever parts are installed."""

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

COMMANDS_GROUP = "hydraulis.commands"


def main() -> None:
    """Run the `hydraulis` command."""
    try:
        import typer  # noqa: PLC0415 - the base install has no typer; the message below says what brings it
    except ImportError:
        sys.exit(
            "hydraulis: the command line needs an extra: pip install 'hydraulis-planner[service]' to plan and serve, "
            "or 'hydraulis-planner[agent]' to train"
        )
    app = typer.Typer(
        name="hydraulis",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Plan the parallel strategy and the sequence assignment of each training iteration.",
    )
    for entry in sorted(entry_points(group=COMMANDS_GROUP), key=lambda entry: entry.name):
        app.command(name=entry.name)(_load(entry))
    app()


def _load(entry: EntryPoint) -> Callable[..., None]:
    """Load a subcommand; where its extra is not installed, a command that says so stands in."""
    extra = "agent" if entry.value.startswith("worker_agent") else "service"
    try:
        command: Callable[..., None] = entry.load()
    except ModuleNotFoundError as missing:
        package = missing.name

        def explain() -> None:
            sys.exit(f"hydraulis {entry.name}: {package} is missing; pip install 'hydraulis-planner[{extra}]'")

        explain.__doc__ = f"(needs hydraulis-planner[{extra}])"
        return explain
    return command

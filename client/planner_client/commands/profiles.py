"""`hydraulis profiles`: the profiles that a service has."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner_client.commands.deletion import YesOption, delete_all
from planner_client.commands.export import ForceOption, FormatOption, OutputOption, export
from planner_client.commands.options import JsonOption
from planner_client.commands.service import asks_service

if TYPE_CHECKING:
    from planner_client.client import PlannerClient
    from planner_client.contract import Fit, Profile

profiles = typer.Typer(
    name="profiles",
    help="List, show, export and delete a service's profiles. `hydraulis profile` measures one.",
    no_args_is_help=True,
)


@profiles.command("list")
@asks_service("profiles list")
def list_profiles(client: "PlannerClient", *, as_json: JsonOption = False) -> None:
    """List all profiles, by name."""
    from planner_client.commands.shown import print_json, print_table  # noqa: PLC0415 - keeps `hydraulis --help` fast

    found = client.profiles()
    if as_json:
        print_json([profile.model_dump(mode="json") for profile in found])
        return
    print_table(
        ("profile", "model", "device", "layouts", "from"),
        (
            (one.name, one.model, one.device, str(one.num_layouts), "built in" if one.is_builtin else one.source)
            for one in found
        ),
        right=("layouts",),
    )


@profiles.command("show")
@asks_service("profiles show")
def show_profile(
    client: "PlannerClient",
    profile: Annotated[str, typer.Argument(help="The profile's name.", show_default=False)],
    *,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the fit beside its samples: a file ending in .svg, .png or .pdf.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a profile's coefficients, how well they fit if they were fitted, and why not to trust them."""
    from planner_client.commands.fit_plot import plot_fit, refuse_unusable_plot  # noqa: PLC0415 - fast `--help`
    from planner_client.commands.naming import profile_named  # noqa: PLC0415
    from planner_client.commands.shown import note, print_json  # noqa: PLC0415

    if plot is not None:
        refuse_unusable_plot(plot)
    found = client.profile(profile_named(profile))
    if plot is not None:
        num_left_out = plot_fit(found, plot)
        note(f"wrote {plot}" + (f" without {num_left_out} layouts that had no room" if num_left_out else ""))
    if as_json:
        print_json(found.model_dump(mode="json", exclude_none=True))  # as `--profile FILE` and POST take it
    else:
        _show(found)


@profiles.command("export")
@asks_service("profiles export")
def export_profiles(
    client: "PlannerClient",
    profile: Annotated[
        list[str] | None, typer.Argument(help="Profiles; all if none is named.", show_default=False)
    ] = None,
    *,
    output: OutputOption = "-",
    given_format: FormatOption = None,
    force: ForceOption = False,
) -> None:
    """Write whole profiles (json), or a row for each layout (csv)."""
    from planner_client.commands.figures import PROFILE_HEADINGS, profile_rows  # noqa: PLC0415 - fast `--help`
    from planner_client.commands.naming import profile_named  # noqa: PLC0415
    from planner_client.commands.paging import all_named, those_still_there  # noqa: PLC0415

    export(
        all_named("profiles", list(map(profile_named, profile)), client.profile)
        if profile
        else those_still_there("profiles", [found.name for found in client.profiles()], client.profile),
        as_document=lambda found: found.model_dump(mode="json", exclude_none=True),
        headings=PROFILE_HEADINGS,
        as_rows=profile_rows,
        output=output,
        given_format=given_format,
        force=force,
    )


@profiles.command("delete")
@asks_service("profiles delete", needs="admin")
def delete_profiles(
    client: "PlannerClient",
    profile: Annotated[list[str], typer.Argument(help="Profiles to delete.", show_default=False)],
    *,
    yes: YesOption = False,
) -> None:
    """Delete registered profiles that no job uses."""
    from planner_client.commands.naming import profile_named  # noqa: PLC0415 - keeps `hydraulis --help` fast

    names = [client.profile(profile_named(name)).name for name in profile]
    delete_all("profile", names, client.delete_profile, yes=yes)


def _show(profile: "Profile") -> None:
    from planner_client.commands.figures import layout_name  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_client.commands.shown import print_facts, print_space, print_table  # noqa: PLC0415

    model, device = profile.model, profile.device
    memory = "a model of it" if profile.memory is not None else "limits of the layouts"
    print_facts(
        (
            ("profile", profile.name),
            ("source", profile.source),
            ("model", f"{model.name}: {model.num_layers} layers, {model.hidden_size} wide"),
            ("device", f"{device.name}: {device.memory_bytes:,} bytes, {device.gpus_per_node} in a node"),
            ("memory", memory),
        )
    )
    figures = ("a ms/token²", "b ms/token", "c ms", "max tokens")
    print_space()
    print_table(
        ("layout", *figures, "from"),
        (
            (
                layout_name(layout),
                f"{layout.a_ms_per_token2:.4g}",
                f"{layout.b_ms_per_token:.4g}",
                f"{layout.c_ms:.4g}",
                "-" if layout.max_tokens is None else f"{layout.max_tokens:,}",
                "estimate" if layout.is_estimated else "coefficients" if layout.fit is None else "samples",
            )
            for layout in profile.layouts
        ),
        right=figures,
    )
    if any(layout.fit is not None for layout in profile.layouts):
        _show_fits(profile)
    if profile.collectives:
        _show_collectives(profile)


def _show_fits(profile: "Profile") -> None:
    from planner_client.commands.figures import layout_name  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_client.commands.shown import print_space, print_table  # noqa: PLC0415

    fits = [(layout_name(layout), layout.fit) for layout in profile.layouts if layout.fit is not None]
    figures = ("samples", "outliers", "R²", "median error", "held out", "worst")
    print_space()
    print_table(("fit of", *figures), ((name, *_fit_cells(fit)) for name, fit in fits), right=figures)
    if any(fit.warnings for _, fit in fits):
        print_space()
        print_table(("fit of", "warning"), ((name, text) for name, fit in fits for text in fit.warnings))


def _fit_cells(fit: "Fit") -> tuple[str, ...]:
    held_out = fit.held_out
    return (
        str(fit.num_samples),
        str(fit.num_outliers),
        f"{fit.r2:.4f}",
        f"{fit.median_abs_pct_error:.1f}%",
        "-" if held_out is None else f"{held_out.median_abs_pct_error:.1f}%",
        "-" if held_out is None else f"{held_out.worst_abs_pct_error:.0f}%",
    )


def _show_collectives(profile: "Profile") -> None:
    from planner_client.commands.shown import print_space, print_table  # noqa: PLC0415 - keeps `hydraulis --help` fast

    figures = ("ranks", "latency ms", "ms/MiB", "median error")
    print_space()
    print_table(
        ("collective", *figures),
        (
            (
                one.kind,
                str(one.num_ranks),
                f"{one.latency_ms:.4g}",
                f"{one.ms_per_byte * 2**20:.4g}",
                f"{one.median_abs_pct_error:.1f}%",
            )
            for one in profile.collectives
        ),
        right=figures,
    )

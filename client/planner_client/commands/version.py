"""`hydraulis version`: what is installed here."""

from planner_client.commands.options import JsonOption


def version(*, as_json: JsonOption = False) -> None:
    """Show the versions of the planner, of Python, and of the packages that matter most."""
    from planner_client.commands.shown import print_facts, print_json  # noqa: PLC0415 - fast `--help`
    from planner_client.doctor.environment import versions  # noqa: PLC0415

    found = versions()
    if as_json:
        print_json(found)
        return
    print_facts((name, number or "not installed") for name, number in found.items())

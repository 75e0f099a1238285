"""Options and arguments that several of these commands have."""

from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Most to show; all if not given.", show_default=False)]
JobArgument = Annotated[str, typer.Argument(help="The job's name.", show_default=False)]
LengthsOption = Annotated[
    bool, typer.Option("--lengths", help="Add the histogram of lengths, as length:count with spaces between.")
]

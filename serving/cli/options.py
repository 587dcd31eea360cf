"""Options that several commands share, each defined once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serving.cli.output import Output
from serving.domain import stages
from serving.local import home

Home = Annotated[
    Path,
    typer.Option("--home", envvar="SLIPWAY_HOME", help="Folder with the state of a local stack.", show_default=True),
]
Format = Annotated[Output, typer.Option("--output", "-o", help="table for people, json for scripts.")]
Stage = Annotated[stages.Name, typer.Option("--stage", help="Stage of the model.")]
Reason = Annotated[str, typer.Option("--reason", help="Kept with the change for those who look later.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return once it is done; non-zero when it failed.")]
WaitTimeout = Annotated[float, typer.Option("--timeout", min=0, help="Most seconds that --wait takes.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="Most rows.")]

DEFAULT_HOME = home.DEFAULT
DEFAULT_WAIT_S = 900.0

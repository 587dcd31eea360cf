"""One Rich table for each benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from bench import harness

VERDICTS = {True: "[green]reached[/]", False: "[red]missed[/]", None: ""}


def show(console: Console, report: harness.Report) -> None:
    table = Table(title=report.title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("", "ours", "baseline", "ratio", "goal", ""):
        table.add_column(heading, justify="left" if heading == "" else "right")
    for figure in report.figures:
        match figure:
            case harness.Comparison():
                table.add_row(
                    f"{figure.name} [dim]beside {figure.baseline_name}[/]",
                    _sample(figure.ours, figure.unit),
                    _sample(figure.baseline, figure.unit),
                    f"{figure.ratio:.2f}",
                    "" if figure.goal is None else f"≥ {figure.goal:.2f}",
                    VERDICTS[figure.reached],
                )
            case harness.Reading():
                goal = "" if figure.limit is None else f"≤ {_number(figure.limit)} {figure.unit}".rstrip()
                table.add_row(figure.name, _sample(figure.values, figure.unit), "", "", goal, VERDICTS[figure.reached])
    console.print(table)
    for note in report.notes:
        console.print(f"  {note}", style="dim", highlight=False)
    console.print()


def _sample(values: Sequence[float], unit: str) -> str:
    """Median, and the spread from the lowest to the highest round."""
    middle = f"{_number(statistics.median(values))} {unit}".rstrip()
    if len(values) == 1 or min(values) == max(values):
        return middle
    return f"{middle} [dim]({_number(min(values))} to {_number(max(values))})[/]"


def _number(value: float) -> str:
    if value == 0 or abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"

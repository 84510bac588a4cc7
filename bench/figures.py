"""What every figure of docs is made by: measured into a file and drawn, or drawn again."""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import machine
from bench.record import RESULTS

DOCS = Path(__file__).parents[1] / "docs"
Panels = list[dict[str, Any]]


def measure_or_draw(
    name: str,
    about: str | None,
    measure: Callable[[], Panels],
    draw: Callable[[dict[str, Any], Path], None],
) -> None:
    """Command line of a figure.

    measure: its panels, kept with the machine in bench/results/<name>-plot.json, unless --draw says
    that what was measured last will do; draw: that file's contents into docs/<name>.svg.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--draw", action="store_true", help="draw what was measured last")
    kept, drawn = RESULTS.with_name(f"{name}-plot.json"), DOCS / f"{name}.svg"
    if not parser.parse_args().draw:
        began, load = datetime.datetime.now(datetime.UTC), machine.load()
        panels = measure()
        record = {"machine": machine.describe(began, load), "panels": panels}
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    draw(json.loads(kept.read_text(encoding="utf-8")), drawn)
    print(drawn)

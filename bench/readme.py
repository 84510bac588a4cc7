"""The ratios that the README shows, out of the record of one run of make bench.

python -m bench.readme     keep bench/results/latest.json as docs/measured.json, write the table
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.record import RESULTS, figure

ROOT = Path(__file__).parents[1]
README, KEPT = ROOT / "README.md", ROOT / "docs" / "measured.json"
BEGIN, END = "<!-- from docs/measured.json -->", "<!-- end -->"


def table(measured: dict[str, Any]) -> str:
    """The rows that have a goal, and where they were measured, as Markdown."""
    lines = ["| piece | size | peer | times faster | must | goal |", "|---|---|---|---|---|---|"]
    for row in measured["rows"]:
        if row["must"] is not None:
            got, bounds = figure(row["ratio"]), f"{row['must']:,g} | {row['goal']:,g}"
            lines.append(f"| {row['piece']} | {row['size']} | {row['peer']} | {got} | {bounds} |")
    at = measured["machine"]
    where = (
        f"{at['processor']}, {at['cores']} cores, {at['memory_gib']:.0f} GiB, "
        f"{at['build']['isa']}, {at['build']['compiler']}, Python {at['python']}, load "
        f"{at['load'][0]} to {at['load'][1]}; {at['date'][:10]}, commit {at['commit']}, "
        f"{at['seconds']} s."
    )
    return "\n".join([*lines, "", where])


def written(readme: str, measured: dict[str, Any]) -> str:
    """The README with the table between its marks."""
    found = re.compile(f"(?<={BEGIN}\n).*?(?={END})", re.DOTALL)
    text, n = found.subn(lambda _: f"\n{table(measured)}\n\n", readme)
    if n != 1:
        raise ValueError(f"README.md: expected one place between {BEGIN} and {END}, got {n}")
    return text


def main() -> None:
    KEPT.write_text(RESULTS.read_text(encoding="utf-8"), encoding="utf-8")
    measured = json.loads(KEPT.read_text(encoding="utf-8"))
    README.write_text(written(README.read_text(encoding="utf-8"), measured), encoding="utf-8")


if __name__ == "__main__":
    main()

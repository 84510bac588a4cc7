"""The ratios that the README shows: records of make bench, bench-verifier and bench-train.

python -m bench.readme     keep what lies in bench/results under docs, write the README's tables
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from bench.record import RESULTS, figure

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
# Where a run leaves its record → where it is kept. The README names the latter.
KEPT = {
    RESULTS.with_name("latest.json"): ROOT / "docs" / "measured.json",
    RESULTS.with_name("verifier.json"): ROOT / "docs" / "verifier.json",
    RESULTS.with_name("train.json"): ROOT / "docs" / "trained.json",
}
END = "<!-- end -->"


def table(measured: dict[str, Any]) -> str:
    """The rows that have a bound, and where they were measured, as Markdown."""
    lines = ["| piece | size | peer | times faster | must | goal |", "|---|---|---|---|---|---|"]
    for row in measured["rows"]:
        if row["must"] is not None:
            got, goal = figure(row["ratio"]), "" if row["goal"] is None else f"{row['goal']:,g}"
            bounds = f"{row['must']:,g} | {goal}"
            lines.append(f"| {row['piece']} | {row['size']} | {row['peer']} | {got} | {bounds} |")
    at = measured["machine"]
    where = (
        f"{at['processor']}, {at['cores']} cores, {at['memory_gib']:.0f} GiB, "
        f"{at['build']['isa']}, {at['build']['compiler']}, Python {at['python']}, load "
        f"{at['load'][0]} to {at['load'][1]}; {at['date'][:10]}, commit {at['commit']}, "
        f"{at['seconds']} s."
    )
    return "\n".join([*lines, "", where])


def written(readme: str, kept: Path) -> str:
    """The README with the table of a kept record between its marks."""
    begin = f"<!-- from docs/{kept.name} -->"
    made = table(json.loads(kept.read_text(encoding="utf-8")))
    found = re.compile(f"(?<={begin}\n).*?(?={END})", re.DOTALL)
    text, n = found.subn(lambda _: f"\n{made}\n\n", readme)
    if n != 1:
        raise ValueError(f"README.md: expected one place between {begin} and {END}, got {n}")
    return text


def main() -> None:
    text = README.read_text(encoding="utf-8")
    for results, kept in KEPT.items():
        if results.exists():
            kept.write_text(results.read_text(encoding="utf-8"), encoding="utf-8")
        text = written(text, kept)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

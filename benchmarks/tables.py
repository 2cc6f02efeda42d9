"""Writes the sections of README.md that come from records, each between its marks.

    python benchmarks/tables.py      (or: make tables)

A section without records stays empty.
"""

import re
from collections.abc import Callable
from pathlib import Path

from findings_table import findings_section
from results_table import results_section
from speed_table import speed_section

ROOT = Path(__file__).parents[1]

SECTIONS: dict[str, Callable[[Path], str]] = {
    "results": results_section,
    "findings": findings_section,
    "speed": speed_section,
}
"""The functions that make each section from the folder of records."""


def fill(readme: str, name: str, table: str) -> str:
    """The page with a new table between the marks of that name."""
    first, last = f"<!-- table: {name} -->", f"<!-- end: {name} -->"
    between = re.compile(f"{re.escape(first)}.*?{re.escape(last)}", re.DOTALL)
    if len(between.findall(readme)) != 1:
        raise ValueError(f"The page must hold {first} and then {last}, each once.")
    inside = f"\n{table.strip()}\n" if table.strip() else "\n"
    return between.sub(lambda _: f"{first}{inside}{last}", readme)


def current(readme: str, records: Path) -> str:
    """The page with all sections from these records."""
    for name, section in SECTIONS.items():
        readme = fill(readme, name, section(records))
    return readme


def main() -> None:
    page = ROOT / "README.md"
    page.write_text(current(page.read_text(), ROOT / "records"))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Puts the tables of runs into docs/performance/tables.md, and draws the plots in docs/plots.

performance.py FILE...    each FILE is what `tako bench --bars`, `tako bench fabric --tune --bars` or
                          `BARS=1 scripts/programs.sh` printed

A table stands behind a comment that names it: `<!-- table: fabric -->`. Prose is not touched; read it again after each run.
"""

import pathlib
import re
import sys

from svg import plot

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "performance" / "tables.md"
PLOTS = ROOT / "docs" / "plots"
# The groups of `tako bench` that have a table of their own.
APART = ["through the mount", "cluster", "fabric"]
HEAD = ["", "Tako", "limit", "limit is", "ratio", "at least"]
UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "/s": 1.0, "k/s": 1e3, "M/s": 1e6, "G/s": 1e9}


def fail(message):
    sys.exit(f"performance.py: {message}")


# ---- reading


def cells(line, head):
    """A row's six cells. Numbers end where their head ends, names begin where theirs begins."""
    tako, limit = head.index("Tako") + 4, head.index("limit") + 5
    which, ratio = head.index("limit is"), head.index("ratio") + 5
    # Names that belong to the one above are set in further.
    name, _, value = line[2:tako].rstrip().rpartition("  ")
    return [name.rstrip(), value.strip(), line[tako:limit].strip(), line[which : ratio - 5].strip(),
            line[ratio - 5 : ratio].strip(), line[ratio:].strip()]  # fmt: skip


def read(text):
    """The groups of a run, each with its rows, and the notes behind them."""
    head, *lines = text.strip("\n").split("\n")
    groups, notes = {}, []
    for index, line in enumerate(lines):
        if not line:
            notes = [note for note in lines[index + 1 :] if not note.endswith("bars met")]
            break
        if line.startswith("  "):
            rows.append(cells(line, head))
        else:
            # Behind the name stands what the two sides do.
            rows = groups.setdefault(line.partition(": ")[0], [])
    return groups, notes


def number(quantity):
    """A quantity in seconds, or by the second."""
    value, _, unit = quantity.rpartition(" ")
    if unit not in UNITS:
        fail(f"'{quantity}' has a unit that no plot knows")
    return float(value) * UNITS[unit]


# ---- tables


def render(groups, notes):
    rows = [HEAD] + [row for group in groups.values() for row in group]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]

    def line(row):
        name, tako, limit, which, ratio, bar = row
        text = f"  {name:<{widths[0]}}  {tako:>{widths[1]}}  {limit:>{widths[2]}}  {which:<{widths[3]}}  {ratio:>{widths[4]}}  {bar}"
        return text.rstrip()

    lines = [line(HEAD)]
    for name, group in groups.items():
        lines += [name] + [line(row) for row in group]
    return "\n".join(lines + ([""] + notes if notes else []))


def replace(document, name, table):
    """The document with the block behind the comment that names it replaced."""
    pattern = re.compile(rf"(<!-- table: {re.escape(name)} -->\n```\n).*?(\n```\n)", re.S)
    document, count = pattern.subn(lambda found: found[1] + table + found[2], document)
    if count != 1:
        fail(f"there are {count} tables '{name}' in {DOCUMENT.name}, not one")
    return document


# ---- plots


def plot_messages(rows):
    lines, limits = {}, {}
    name = ""
    for row in rows:
        found = re.fullmatch(r"(shm|tcp) messages from (\d+) peers?", row[0])
        if found:
            name, peers = found[1], int(found[2])
            lines.setdefault(name, []).append((peers, number(row[1])))
            limits.setdefault(f"{name}: {row[3]}", []).append((peers, number(row[2])))
        elif row[0].strip() == "16 at a time" and name:
            lines.setdefault(f"{name}, 16 at a time", []).append((peers, number(row[1])))
    plot(PLOTS / "messages.svg", "Small messages per second", "peers", "/s", [*lines.items(), *limits.items()])


def plot_sizes(rows):
    lines = {}
    for row in rows:
        found = re.fullmatch(r"(shm|tcp): (\d+) B in the message", row[0])
        if found:
            lines.setdefault(f"{found[1]}, in the message", []).append((int(found[2]), number(row[1])))
            lines.setdefault(f"{found[1]}, {row[3]}", []).append((int(found[2]), number(row[2])))
    plot(PLOTS / "sizes.svg", "A payload and the news of it, until it has arrived", "bytes", "s", list(lines.items()))


# ---- one run after the other


def main():
    if len(sys.argv) < 2:
        fail(__doc__)
    document = DOCUMENT.read_text()
    for name in sys.argv[1:]:
        text = pathlib.Path(name).read_text()
        # Before the table stand the sources, and peers that are not mounted.
        programs = re.search(r"^programs, .*", text, re.M | re.S)
        if programs:
            document = replace(document, "programs", programs[0].rstrip())
            continue
        groups, notes = read(text)
        fabric = groups.get("fabric", [])
        if any("in the message up to" in row[0] for row in fabric):
            document = replace(document, "fabric --tune", render(groups, []))
            plot_sizes(fabric)
            continue
        rest = {name: rows for name, rows in groups.items() if name not in APART}
        if rest:
            document = replace(document, "tako bench", render(rest, notes))
        for group in APART:
            if group in groups:
                document = replace(document, group, render({group: groups[group]}, []))
        if fabric:
            plot_messages(fabric)
    DOCUMENT.write_text(document)


main()

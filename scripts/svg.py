"""Plots as SVG, for the documents."""

import math


def ticks(low, high):
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, last + 1)]


def quantity(value, unit):
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")):
        if value >= factor * 0.999:
            return f"{value / factor:g} {prefix}{unit}"
    return f"{value:g} {unit}"


def plot(path, title, across, unit, lines, label=str):
    """Writes lines over logarithmic axes: each a name, and points of a number and a value. `label` names a column."""
    width, height, left, top, right, bottom = 720, 420, 80, 40, 200, 50
    colours = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]
    points = [point for _, line in lines for point in line]
    columns = sorted({x for x, _ in points})
    marks = ticks(min(y for _, y in points), max(y for _, y in points))
    span_x = math.log(columns[-1] / columns[0]) or 1
    span_y = math.log(marks[-1] / marks[0]) or 1

    def at(x, y):
        return (left + (width - left - right) * math.log(x / columns[0]) / span_x,
                height - bottom - (height - top - bottom) * math.log(y / marks[0]) / span_y)  # fmt: skip

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{left}" y="22" font-size="15">{title}</text>']  # fmt: skip
    for value in marks:
        _, y = at(columns[0], value)
        svg.append(f'<path d="M{left} {y:.1f}H{width - right}" stroke="#ddd"/>')
        svg.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{quantity(value, unit)}</text>')
    for value in columns:
        x, _ = at(value, marks[0])
        svg.append(f'<path d="M{x:.1f} {top}V{height - bottom}" stroke="#eee"/>')
        svg.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{label(value)}</text>')
    svg.append(f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">{across}</text>')
    for index, (name, line) in enumerate(lines):
        colour = colours[index % len(colours)]
        path_data = "L".join("{:.1f} {:.1f}".format(*at(x, y)) for x, y in line)
        svg.append(f'<path d="M{path_data}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = top + 14 + 20 * index
        svg.append(f'<path d="M{width - right + 14} {y - 4}h20" stroke="{colour}" stroke-width="2"/>')
        svg.append(f'<text x="{width - right + 40}" y="{y}">{name}</text>')
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(svg + ["</svg>"]) + "\n")

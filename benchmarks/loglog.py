"""Growth laws: the exponent of a power law fitted to points, and a log-log plot of them as SVG."""

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, MARGIN = 640, 440, 60
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e")


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x, by least squares."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    covariance = sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True))
    return covariance / sum((p - mean_a) ** 2 for p in a)


def plot(file: str, curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], x_name: str, y_name: str) -> None:
    """Writes {name: (x, y)} as lines on logarithmic axes; each label carries its curve's exponent."""
    xs, ys = ([v for curve in curves.values() for v in curve[i]] for i in (0, 1))
    left, right = math.log10(min(xs)), math.log10(max(xs))
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))

    def place(x, y):
        across = MARGIN + (math.log10(x) - left) / (right - left) * (WIDTH - 2 * MARGIN)
        up = HEIGHT - MARGIN - (math.log10(y) - low) / max(high - low, 1) * (HEIGHT - 2 * MARGIN)
        return across, up

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">']
    parts.append(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>')
    for power in range(low, high + 1):
        _, y = place(xs[0], 10.0**power)
        parts.append(f'<path d="M{MARGIN} {y:.1f}H{WIDTH - MARGIN}" stroke="#ddd"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{y + 4:.1f}" font-size="11" text-anchor="end">1e{power}</text>')
    for x in sorted(set(xs)):
        across, _ = place(x, ys[0])
        parts.append(
            f'<text x="{across:.1f}" y="{HEIGHT - MARGIN + 18}" font-size="11" text-anchor="middle">{x:,}</text>'
        )
    for index, (name, (x, y)) in enumerate(curves.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = [place(a, b) for a, b in zip(x, y, strict=True)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        label = f"{name}: grows as T^{exponent(x, y):.2f}"
        y_label = MARGIN - 20 + 16 * index
        parts.append(f'<text x="{MARGIN + 10}" y="{y_label}" font-size="13" fill="{colour}">{label}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" font-size="13" text-anchor="middle">{x_name}</text>')
    parts.append(
        f'<text x="14" y="{HEIGHT / 2}" font-size="13" transform="rotate(-90 14 {HEIGHT / 2})">{y_name}</text>'
    )
    parts.append("</svg>")
    with open(file, "w") as out:
        out.write("\n".join(parts) + "\n")

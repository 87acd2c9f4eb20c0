"""Line charts as SVG, on linear or logarithmic axes; and the exponent of a power law fitted to points."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN, LEGEND = 640, 440, 60, 220
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")

Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # label: (x, y)


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of log y over log x, by least squares."""
    a, b = [math.log(v) for v in x], [math.log(v) for v in y]
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    covariance = sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True))
    return covariance / sum((p - mean_a) ** 2 for p in a)


def chart(file: str, curves: Curves, x_name: str, y_name: str, *, logarithmic: bool) -> None:
    """Writes the curves to an SVG file, their labels beside them.

    Linear axes are marked at round numbers, logarithmic ones at powers of ten.
    """
    x_axis = _Axis([v for x, _ in curves.values() for v in x], MARGIN, WIDTH - MARGIN, logarithmic)
    y_axis = _Axis([v for _, y in curves.values() for v in y], HEIGHT - MARGIN, MARGIN, logarithmic)
    size = f'width="{WIDTH + LEGEND}" height="{HEIGHT}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">']
    parts.append(f'<rect {size} fill="white"/>')
    for value in y_axis.marks():
        y = y_axis.place(value)
        parts.append(f'<path d="M{MARGIN} {y:.1f}H{WIDTH - MARGIN}" stroke="#ddd"/>')
        parts.append(_text(MARGIN - 6, y + 4, f"{value:g}", 'text-anchor="end"', 11))
    for value in x_axis.marks():
        x = x_axis.place(value)
        parts.append(f'<path d="M{x:.1f} {MARGIN}V{HEIGHT - MARGIN}" stroke="#eee"/>')
        parts.append(_text(x, HEIGHT - MARGIN + 18, f"{value:,.10g}", 'text-anchor="middle"', 11))
    for index, (label, (xs, ys)) in enumerate(curves.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = [(x_axis.place(x), y_axis.place(y)) for x, y in zip(xs, ys, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        parts.append(_text(WIDTH - MARGIN + 12, MARGIN + 20 * index, label, f'fill="{colour}"', 13))
    parts.append(_text(WIDTH / 2, HEIGHT - 12, x_name, 'text-anchor="middle"', 13))
    turned = f'text-anchor="middle" transform="rotate(-90 14 {HEIGHT / 2})"'
    parts.append(_text(14, HEIGHT / 2, y_name, turned, 13))
    with open(file, "w", encoding="utf-8") as out:
        out.write("\n".join([*parts, "</svg>", ""]))


class _Axis:
    """Values to pixels, from `start` to `stop`."""

    def __init__(self, values: Sequence[float], start: float, stop: float, logarithmic: bool):
        self.start, self.stop, self.scale = start, stop, math.log10 if logarithmic else float
        low, high = self.scale(min(values)), self.scale(max(values))
        self.step = 1.0 if logarithmic else _round_step(high - low)
        self.low, self.high = math.floor(low / self.step) * self.step, math.ceil(high / self.step) * self.step
        self.high = max(self.high, self.low + self.step)
        self.logarithmic = logarithmic

    def place(self, value: float) -> float:
        share = (self.scale(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def marks(self) -> list[float]:
        count = round((self.high - self.low) / self.step)
        at = [self.low + i * self.step for i in range(count + 1)]
        return [10.0**v for v in at] if self.logarithmic else [round(v, 10) for v in at]


def _round_step(extent: float) -> float:
    """1, 2 or 5 times a power of ten: four to nine of them are `extent`."""
    extent = extent or 1.0  # of values that are all the same
    power = 10.0 ** math.floor(math.log10(extent / 4))
    return next(power * m for m in (5, 2, 1) if extent / (power * m) >= 4)


def _text(x: float, y: float, text: str, attributes: str, size: int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" {attributes}>{escape(text)}</text>'

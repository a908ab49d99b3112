"""Labels beside points that keep off points, lines and each other, at every width of the page."""

from __future__ import annotations

from collections.abc import Sequence

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels
Line = Sequence[tuple[float, float]]  # its two ends

FONT_PX, CHAR_PX = 11, 6.6  # height of a label's text, width of one of its characters at most
APART_PX = 5  # between two labels of one line: "2" and "4" are not "24"
POINT_PX = 6  # half the side of a marker with its margin
WIDTHS_PX = (250, 600)  # of the plot, on a phone and in the page's column
SIDES = {
    "right": (1, 8, 0), "left": (-1, -8, 0), "above": (0, 0, -12), "below": (0, 0, 13),
    "above right": (1, -4, -12), "above left": (-1, 4, -12),
    "below right": (1, -4, 13), "below left": (-1, 4, 13),
}  # fmt: skip
"""Where a label may stand: whether its text runs to the right of its anchor (1), to the left (-1)
or is centred on it (0), and the anchor's pixels to the right of the point and below it."""


def box(x: float, y: float, text: str, side: str) -> Box:
    """Box of a label whose point is at ``x``, ``y`` (pixels, y downward)."""
    wide, (runs, dx, dy) = len(text) * CHAR_PX, SIDES[side]
    left, middle_y = x + dx + (runs - 1) * wide / 2, y + dy
    return left, middle_y - FONT_PX / 2, left + wide, middle_y + FONT_PX / 2


def overlap(a: Box, b: Box) -> bool:
    """Whether two boxes share an area."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def crosses(line: Line, b: Box) -> bool:
    """Whether a straight line between two points runs through a box (Liang and Barsky, 1984)."""
    (x0, y0), (x1, y1) = line
    enters, leaves = 0.0, 1.0
    for start, way, low, high in ((x0, x1 - x0, b[0], b[2]), (y0, y1 - y0, b[1], b[3])):
        if not way:
            if not low < start < high:
                return False
            continue
        near, far = sorted(((low - start) / way, (high - start) / way))
        enters, leaves = max(enters, near), min(leaves, far)
    return enters < leaves


def place(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    order: Sequence[int],
    height_px: float,
    widths_px: Sequence[float] = WIDTHS_PX,
    lines: Sequence[Line] = (),
    needed: Sequence[int] = (),
) -> list[str | None]:
    """Side of every label, None for one that fits nowhere.

    Parameters
    ----------
    points : sequence of (x, y)
        Places in the plot, both from 0 to 1, y upward.
    texts : sequence of str
        Their labels.
    order : sequence of int
        Points in the order in which they choose.
    height_px : float
        Height of the plot.
    widths_px : sequence of float
        Widths of the plot; a side is taken only when it is free at each of them.
    lines : sequence of pairs of points, optional
        Lines of the plot, off which labels keep.
    needed : sequence of int, optional
        Points whose label stands on a line rather than nowhere.
    """

    def pixels(at: Sequence[tuple[float, float]], wide: float) -> list[tuple[float, float]]:
        return [(x * wide, (1 - y) * height_px) for x, y in at]

    spots = [pixels(points, w) for w in widths_px]
    drawn = [[pixels(line, w) for line in lines] for w in widths_px]
    markers = [
        [(x - POINT_PX, y - POINT_PX, x + POINT_PX, y + POINT_PX) for x, y in row] for row in spots
    ]
    taken: list[list[Box]] = [[] for _ in widths_px]
    sides: list[str | None] = [None] * len(points)
    for i in order:
        boxes = {side: [box(*row[i], texts[i], side) for row in spots] for side in SIDES}
        free = [
            side for side, own in boxes.items()
            if all(
                0 <= b[0] and b[2] <= w and 0 <= b[1] and b[3] <= height_px
                and not any(overlap(b, other) for other in [*kept, *seen])
                for b, w, kept, seen in zip(own, widths_px, taken, markers, strict=True)
            )
        ]  # fmt: skip
        clear = [
            side for side in free
            if not any(crosses(line, b) for b, own in zip(boxes[side], drawn, strict=True)
                       for line in own)
        ]  # fmt: skip
        sides[i] = next(iter([*clear, *(free if i in needed else ())]), None)
        if sides[i]:
            for kept, b in zip(taken, boxes[sides[i]], strict=True):
                kept.append((b[0] - APART_PX, b[1], b[2] + APART_PX, b[3]))
    return sides

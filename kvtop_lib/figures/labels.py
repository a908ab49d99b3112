"""Labels beside points that keep off points and off each other, at every width of the page."""

from __future__ import annotations

from collections.abc import Sequence

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels

FONT_PX, CHAR_PX = 11, 6.6  # height of a label's text, width of one of its characters at most
POINT_PX = 6  # half the side of a marker with its margin
WIDTHS_PX = (250, 600)  # of the plot, on a phone and in the page's column
SIDES = {"right": (1, 0), "left": (-1, 0), "above": (0, -1), "below": (0, 1)}
GAP_PX = {"right": 8, "left": 8, "above": 12, "below": 13}
"""From a point to the near end of its text (right, left) or to the text's middle."""


def box(x: float, y: float, text: str, side: str) -> Box:
    """Box of a label whose point is at ``x``, ``y`` (pixels, y downward)."""
    wide, (to_x, to_y), gap = len(text) * CHAR_PX, SIDES[side], GAP_PX[side]
    middle_x, middle_y = x + to_x * (gap + wide / 2), y + to_y * gap
    return (
        middle_x - wide / 2, middle_y - FONT_PX / 2, middle_x + wide / 2, middle_y + FONT_PX / 2,
    )  # fmt: skip


def overlap(a: Box, b: Box) -> bool:
    """Whether two boxes share an area."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def place(
    points: Sequence[tuple[float, float]],
    texts: Sequence[str],
    order: Sequence[int],
    height_px: float,
    widths_px: Sequence[float] = WIDTHS_PX,
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
    """
    spots = [[(x * w, (1 - y) * height_px) for x, y in points] for w in widths_px]
    markers = [
        [(x - POINT_PX, y - POINT_PX, x + POINT_PX, y + POINT_PX) for x, y in row] for row in spots
    ]
    taken: list[list[Box]] = [[] for _ in widths_px]
    sides: list[str | None] = [None] * len(points)
    for i in order:
        for side in SIDES:
            boxes = [box(*row[i], texts[i], side) for row in spots]
            if all(
                0 <= b[0] and b[2] <= w and 0 <= b[1] and b[3] <= height_px
                and not any(overlap(b, other) for other in [*kept, *seen])
                for b, w, kept, seen in zip(boxes, widths_px, taken, markers, strict=True)
            ):  # fmt: skip
                sides[i] = side
                for kept, b in zip(taken, boxes, strict=True):
                    kept.append(b)
                break
    return sides

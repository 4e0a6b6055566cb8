#!/usr/bin/env python3
"""Draws a file of trace events, as `Timeline` writes them, as SVG: `python3 docs/draw_timeline.py FILE [FROM_MS TO_MS] > timeline.svg`.

A row for each thread and each stream, with what lies in what below it, and one for each counter.
"""
import json
import sys
from collections import defaultdict
from html import escape

WIDTH, LEFT, LANE, CURVE, GAP = 1100, 190, 13, 30, 9
COLOURS = {
    "start_copy": "#4e79a7", "traverse": "#a0cbe8", "plan": "#f28e2b", "allocate": "#ffbe7d", "prepare": "#8cd17d", "carry": "#b6992d",
    "stage": "#59a14f", "submit": "#e15759", "unstage": "#86bcb6", "wait": "#bab0ac", "finish": "#b07aa1",
}
ON_DEVICE = "#9c755f"


def main():
    path, *span = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    first, last = (float(at) * 1e3 for at in span) if span else (0, max(e["ts"] + e.get("dur", 0) for e in events if "ts" in e))
    print(drawn(events, first, last))


def drawn(events, first, last):
    def x(at):
        return LEFT + (min(max(at, first), last) - first) / (last - first) * (WIDTH - LEFT - 10)

    names = {(e["pid"], e["tid"], e["name"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    spans, curves = defaultdict(list), defaultdict(list)
    for event in events:
        if event["ph"] == "X" and event["ts"] < last and event["ts"] + event["dur"] > first:
            spans[event["pid"], event["tid"]].append(event)
        elif event["ph"] == "C":
            curves[event["pid"], event["name"]].append((event["ts"], sum(event["args"].values())))

    body, top = [], 30
    for track in sorted(spans, key=lambda track: (names.get((*track, "thread_name")) != "main", track)):
        process, thread = (names.get((track[0], tid, f"{what}_name"), "") for tid, what in ((0, "process"), (track[1], "thread")))
        body.append(label(top, thread if track[0] == 1 else f"{process}, {thread}"))
        lanes = 0
        for depth, event in nested(spans[track]):
            lanes = max(lanes, depth + 1)
            colour = ON_DEVICE if track[0] != 1 else COLOURS.get(event["name"], "#ccc")
            body.append(box(x(event["ts"]), x(event["ts"] + event["dur"]), top + depth * LANE, colour, event))
        top += lanes * LANE + GAP
    for (pid, name), points in sorted(curves.items()):
        peak = max(value for _, value in points)
        if peak > 0:
            body += curve(points, peak, x, top, last, f"{names.get((pid, 0, 'process_name'), '')}, {name}")
            top += CURVE + GAP
    return "\n".join([head(top), *ruler(first, last, x, top), *body, "</svg>"])


def nested(events):
    """Each event with how many others it lies in."""
    open_ones = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        open_ones = [end for end in open_ones if end > event["ts"]]
        yield len(open_ones), event
        open_ones.append(event["ts"] + event["dur"])


def head(height):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0f}" font-family="sans-serif" font-size="10">\n'
            '<rect width="100%" height="100%" fill="white"/>')


def ruler(first, last, x, height):
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1e9) if (last - first) / 1e3 / s <= 16)
    tick = int(first / 1e3 / step)
    while tick * step * 1e3 <= last:
        if tick * step * 1e3 >= first:
            at = x(tick * step * 1e3)
            yield f'<path d="M{at:.1f} 18V{height:.0f}" stroke="#eee"/><text x="{at:.1f}" y="13" text-anchor="middle">{tick * step:g} ms</text>'
        tick += 1


def label(top, text):
    return f'<text x="{LEFT - 6}" y="{top + 9}" text-anchor="end">{escape(text)}</text>'


def box(left, right, top, colour, event):
    width = max(right - left, 0.4)
    text = event["name"]
    shown = f'<text x="{left + 2:.1f}" y="{top + 9}" fill="white">{escape(text)}</text>' if width > 6 * len(text) + 4 else ""
    return f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{LANE - 2}" fill="{colour}"/>{shown}'


def curve(points, peak, x, top, last, name):
    def y(value):
        return top + CURVE * (1 - value / peak)

    points = sorted(points)
    path = f"M{x(points[0][0]):.1f} {top + CURVE}" + "".join(f"H{x(at):.1f}V{y(value):.1f}" for at, value in points)
    yield f'<path d="{path}H{x(last):.1f}V{top + CURVE}Z" fill="#cfe2f3"/>'
    yield label(top, name)
    yield f'<text x="{LEFT - 6}" y="{top + 21}" text-anchor="end" fill="#777">peak {peak / 1e6:.0f} MB</text>'


if __name__ == "__main__":
    main()

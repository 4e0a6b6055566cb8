"""Draws a trace of PyTorch's profiler as SVG: what the main thread asked for, and what ran on each stream of the GPU.

    python python/examples/draw_trace.py trace.json picture.svg
"""

import json
import pathlib
import sys
from xml.sax.saxutils import escape

WIDTH, ROW, LEFT = 1200, 26, 150
COLOURS = {"next batch": "#d9822b", "step": "#8f8f8f", "kernel": "#2d6fb5", "gpu_memcpy": "#3a9a4e", "gpu_memset": "#3a9a4e"}


def rows_of(events):
    """Rows by name, each a list of (start, end, kind)."""
    rows = {}
    for event in events:
        if event.get("ph") != "X":
            continue
        span = event["ts"], event["ts"] + event["dur"]
        if event.get("cat") == "user_annotation" and event["name"] in COLOURS:
            rows.setdefault("main thread", []).append((*span, event["name"]))
        elif event.get("cat") in COLOURS:
            rows.setdefault(f"stream {event['args'].get('stream', '?')}", []).append((*span, event["cat"]))
    return dict(sorted(rows.items()))


def drawn(rows):
    """The middle of the trace, where nothing starts or ends any more."""
    first = min(span[0] for row in rows.values() for span in row)
    last = max(span[1] for row in rows.values() for span in row)
    begin, end = first + (last - first) * 0.4, first + (last - first) * 0.7
    scale = (WIDTH - LEFT) / (end - begin)
    height = ROW * (len(rows) + 2)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">']
    for number, (name, row) in enumerate(rows.items()):
        top = ROW * number + 6
        lines.append(f'<text x="4" y="{top + 14}">{escape(name)}</text>')
        for start, stop, kind in row:
            if stop > begin and start < end:
                x, width = max(start, begin) - begin, min(stop, end) - max(start, begin)
                lines.append(
                    f'<rect x="{LEFT + x * scale:.2f}" y="{top}" width="{max(width * scale, 0.2):.2f}" height="{ROW - 8}" fill="{COLOURS[kind]}"/>'
                )
    for number, (kind, colour) in enumerate(list(COLOURS.items())[:4]):
        x = LEFT + number * 140
        lines.append(f'<rect x="{x}" y="{height - 20}" width="12" height="12" fill="{colour}"/><text x="{x + 18}" y="{height - 10}">{kind}</text>')
    lines.append(f'<text x="{WIDTH - 130}" y="{height - 10}">{(end - begin) / 1000:.1f} ms in all</text></svg>')
    return "\n".join(lines)


def main():
    source, target = map(pathlib.Path, sys.argv[1:])
    rows = rows_of(json.loads(source.read_text())["traceEvents"])
    if not rows:
        raise SystemExit(f"{source} has nothing to draw")
    target.write_text(drawn(rows))


if __name__ == "__main__":
    main()

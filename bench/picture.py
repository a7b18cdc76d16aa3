"""Draws the results as one picture: bars for ratios, curves for growth."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")  # before the import of pyplot, because there may be no screen

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.process import ROOT

__all__ = ["PICTURE", "draw"]

PICTURE = ROOT / "docs/images/benchmarks.svg"

_COLOURS = {"keep-alive": "#1f6f8b", "new connection": "#99c1b9"}
_GROWTH = (
    ("ready_s", "start until it answers, s", "#1f6f8b"),
    ("rss_mib", "resident memory, MiB", "#d1603d"),
    ("schedule_ms", "schedule for one host, ms", "#6b8f3a"),
)


def draw(content: dict[str, Any], path: Path = PICTURE) -> bool:
    """Draw the picture if the results of both halves are there.

    Returns:
        Whether the picture was drawn.
    """
    parts = content["parts"]
    if not {"get", "inventory"} <= parts.keys():
        return False
    mpl.rcParams.update(
        {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "bench"}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), width_ratios=(1.15, 1), layout="constrained")
    _bars(left, parts["get"])
    _curves(right, parts["inventory"]["raw"]["sizes"])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return True


def _bars(axes: Axes, part: dict[str, Any]) -> None:
    """Draw the ratio of Forewarn's requests per second to those of each other server."""
    rows = [row for row in part["rows"] if row["unit"] == "x"]
    names = list(dict.fromkeys(row["what"].partition(" to ")[2] for row in rows))
    height = 0.38
    for row in rows:
        mode, _, name = row["what"].partition(", Forewarn to ")
        y = names.index(name) + (-height / 2 if mode == "keep-alive" else height / 2)
        label = mode if name == names[0] else None
        axes.barh(y, row["value"], height, color=_COLOURS[mode], label=label)
        axes.annotate(
            f"{row['value']:.2f}", (row["value"], y), (4, 0), textcoords="offset points", va="center", fontsize=9
        )
        if row["target"] is not None:
            label = "target" if (mode, name) == ("keep-alive", names[0]) else None
            axes.plot([row["target"]] * 2, [y - height / 2, y + height / 2], color="#c0392b", linewidth=2, label=label)
    axes.axvline(1, color="#555555", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_xlim(0.5, max(row["value"] for row in rows) * 1.6)
    axes.set_xticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    axes.minorticks_off()
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("requests per second, Forewarn : other (logarithmic)")
    axes.set_title("GET of a current document, one core each", loc="left", fontsize=11)
    axes.legend(loc="upper right", frameon=False)


def _curves(axes: Axes, sizes: dict[str, dict[str, list[float]]]) -> None:
    """Draw what grows with the inventory, and what does not."""
    counts = [int(size) for size in sizes]
    for name, words, colour in _GROWTH:
        values = [statistics.median(found[name]) for found in sizes.values()]
        axes.plot(counts, values, marker="o", color=colour)
        axes.annotate(words, (counts[0], values[0]), (0, 12), textcoords="offset points", color=colour, fontsize=9)
        for count, value in zip(counts, values, strict=True):
            axes.annotate(
                f"{value:.3g}",
                (count, value),
                (0, -14),
                textcoords="offset points",
                ha="center",
                color=colour,
                fontsize=8,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    low = min(statistics.median(found[name]) for found in sizes.values() for name, _, _ in _GROWTH)
    high = max(statistics.median(found[name]) for found in sizes.values() for name, _, _ in _GROWTH)
    axes.set_ylim(low / 2.5, high * 2.5)
    axes.set_xlim(counts[0] / 1.6, counts[-1] * 1.8)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("VMs in the inventory, all enabled")
    axes.set_title("Growth, both axes logarithmic", loc="left", fontsize=11)

"""A picture for each experiment: SVG that is readable on light and dark pages, in colours that colour-blind people tell apart."""

import statistics

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib import ticker

# Okabe and Ito's, without the two that vanish on white or black; markers and lines differ, too.
COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"]
MARKERS = ["o", "s", "^", "D", "v"]
LINES = ["-", "--", "-.", ":", "-"]
# Between black and white: it stands out from both.
GREY = "#7f7f7f"

UNITS = {
    "p50_ms": "latency, p50 (ms)",
    "p99_ms": "latency, p99 (ms)",
    "answers_per_s": "answers (1/s)",
    "ms": "latency (ms)",
    "highest_per_s": "highest rate (1/s)",
    "deviation_percent": "furthest from an equal share (%)",
}
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "pappus",
    "font.family": "sans-serif",
    "font.size": 11,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def summary(points, series, x, figure):
    """Median, lowest and highest of all repetitions; nothing where no call was answered."""
    values = [one[figure] for one in points if one["series"] == series and one["x"] == x and one.get(figure)]
    return (statistics.median(values), min(values), max(values)) if values else None


def order(points, key):
    """The different values of all points, as they came."""
    return list(dict.fromkeys(one[key] for one in points))


def draw(experiment, points, floor, path):
    """The picture of one experiment, with the bare floor where there is one: its name and milliseconds."""
    plot = experiment["plot"]
    with plt.rc_context(SETTINGS):
        figure, axes = plt.subplots(figsize=(7.2, 3.8))
        if plot.get("bars"):
            bars(axes, points, plot)
        else:
            lines(axes, points, plot)
        if floor:
            name, value = floor
            axes.axhline(value, color=GREY, linestyle=(0, (1, 2)), linewidth=1.5, label=f"{name} (bare)")
        if plot.get("log_y"):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(ticker.NullFormatter())
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(plot["x"])
        axes.set_ylabel(UNITS[plot["y"]])
        axes.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, loc="best")
        figure.tight_layout()
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def lines(axes, points, plot):
    values = order(points, "x")
    for nth, series in enumerate(order(points, "series")):
        found = [(x, summary(points, series, x, plot["y"])) for x in values]
        found = [(x, *one) for x, one in found if one]
        if not found:
            continue
        x, middle, low, high = zip(*found)
        colour = COLOURS[nth % len(COLOURS)]
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        style = {"marker": MARKERS[nth % len(MARKERS)], "linestyle": LINES[nth % len(LINES)]}
        axes.plot(x, middle, color=colour, label=series, linewidth=2, **style)
    if plot.get("log_x"):
        axes.set_xscale("log")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()


def bars(axes, points, plot):
    values = order(points, "x")
    found = [summary([one | {"series": ""} for one in points], "", x, plot["y"]) or (0, 0, 0) for x in values]
    middle = [one[0] for one in found]
    spread = [[one[0] - one[1] for one in found], [one[2] - one[0] for one in found]]
    places = range(len(values))
    axes.bar(places, middle, width=0.55, color=COLOURS[0], alpha=0.85)
    axes.errorbar(places, middle, yerr=spread, fmt="none", ecolor=GREY, capsize=5, linewidth=1.5)
    for place, one in zip(places, found):
        axes.annotate(number(one[0]), (place, one[2]), textcoords="offset points", xytext=(0, 4), ha="center")
    axes.set_xticks(list(places), [str(value) for value in values])
    axes.margins(y=0.15)


def number(value):
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"

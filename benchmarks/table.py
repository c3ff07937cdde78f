"""Results as Markdown."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.adapters import CACHED, EVERYONE, RAW
from benchmarks.building import READ_METADATA
from benchmarks.timing import spread

MISSING = "-"

READS = {
    "random": ("random_s", "time"),
    "32 together": ("batched_s", "time"),
    "first touch of a file": ("first_touch_s", "time"),
}
EPOCHS = {
    "0 workers, cold": ("epoch_1_0_workers", "rate"),
    "warm": ("epoch_2_0_workers", "rate"),
    "2 workers, cold": ("epoch_1_2_workers", "rate"),
    " warm": ("epoch_2_2_workers", "rate"),
}
COSTS = {
    "index or conversion": ("prepare_s", "plain time"),
    "disk": ("disk_bytes", "size"),
    "to the first batch": ("from_nothing_s", "plain time"),
    "memory of 2 workers": ("workers_pss_bytes", "size"),
}
SECTIONS = {
    "A sequence, read": READS,
    "Shuffled epochs, sequences/s": EPOCHS,
    "From nothing": COSTS,
}

LIFE = {
    "conversion or index": ("prepare_s", "plain time"),
    "its CPU": ("prepare_cpu_s", "plain time"),
    "to the first batch": ("from_nothing_s", "plain time"),
    "first epoch": ("epoch_1_wall", "rate"),
    "second": ("epoch_2_wall", "rate"),
    "first epoch, CPU": ("epoch_1_cpu", "rate"),
    "second, CPU": ("epoch_2_cpu", "rate"),
    "disk": ("disk_bytes", "size"),
    "shared memory": ("shared_bytes", "size"),
    "peak memory, converting": ("prepare_peak_bytes", "size"),
    "training": ("peak_bytes", "size"),
    "memory of workers": ("workers_pss_bytes", "size"),
}
CLOCKS = {"wall": "", "cpu": " of CPU time"}
AGAINST = {
    "a first epoch": ("epoch_1", ("dataset",)),
    "a second epoch": (
        "epoch_2",
        ("dataset", "mds", "hf-arrow", "litdata", "lance", "webdataset", "memmap"),
    ),
}


def page(document: dict[str, Any]) -> str:
    """Return all results: what the machine is, the index, and the contenders of each shape."""
    results = document["results"]
    machines = [
        ", ".join(f"{name} {value}" for name, value in result["machine"].items()) for result in results
    ]
    parts = list(dict.fromkeys(machines))
    built = [result for result in results if result["building"]]
    if built:
        parts += ["## The index", building(built)]
    for result in results:
        parts.append(f"## {title(result)}")
        for heading, columns in SECTIONS.items():
            parts += [f"### {heading}", contenders(result, columns)]
        parts.append(remarks(result))
    return "\n\n".join(parts) + "\n"


def epochs_page(document: dict[str, Any]) -> str:
    """Return all lives: what the machine is, the contenders of each shape, and what the cache is against the others."""
    results = document["results"]
    machines = [
        ", ".join(f"{name} {value}" for name, value in result["machine"].items()) for result in results
    ]
    parts = list(dict.fromkeys(machines))
    for result in results:
        workers = f", {result['num_workers']} workers" if result["num_workers"] else ""
        parts += [f"## {title(result)}{workers}", contenders(result, LIFE), against(result), remarks(result)]
    return "\n\n".join(part for part in parts if part) + "\n"


def against(result: dict[str, Any]) -> str:
    """Return the time of an epoch with a cache as a multiple of others' in the same turn, the median of the turns."""
    lines = []
    for name in CACHED:
        for epoch, (measure, others) in AGAINST.items():
            for clock, of_what in CLOCKS.items():
                ratios = [
                    f"{ratio:.2f} x {EVERYONE[other].label.replace('**', '')}"
                    for other in others
                    if (ratio := _ratio(result["samples"], name, other, f"{measure}_{clock}")) is not None
                ]
                if ratios:
                    lines.append(f"- {EVERYONE[name].label}: {epoch} takes{of_what} {', '.join(ratios)}.")
    return "\n".join(lines)


def _ratio(samples: dict[str, Any], name: str, other: str, rate: str) -> float | None:
    """Return how many times as long one takes as another, of their rates turn by turn."""
    turns = zip(samples.get(name, {}).get(rate, []), samples.get(other, {}).get(rate, []), strict=False)
    ratios = [theirs / ours for ours, theirs in turns]
    return _median(ratios) if ratios else None


def title(result: dict[str, Any]) -> str:
    """Return what a shape is, in a line."""
    shape = result["shape"]
    return (
        f"{shape['key']}: {shape['name']} ({shape['n_files']} files, {result['n_sequences']:,} sequences of "
        f"{shape['rows'][0]}-{shape['rows'][1]} rows, {result['n_columns_read']} of {shape['n_columns']} columns)"
    )


def building(results: list[dict[str, Any]]) -> str:
    """Return what the index costs, a column a shape."""
    names = list(results[0]["building"]["seconds"])
    header = ["", *(f"{result['shape']['key']}: {result['shape']['name']}" for result in results)]
    rows = []
    for name in names:
        cells = []
        for result in results:
            seconds = result["building"]["seconds"]
            floor = READ_METADATA if name.startswith("build") else None
            cells.append(_time(_median(seconds[name]), _median(seconds[floor]) if floor else None))
        rows.append([name, *cells])
    both = [(result["building"]["index_bytes"], result["building"]["data_bytes"]) for result in results]
    rows.append(["index size, data size", *(f"{_size(index)}, {_size(data)}" for index, data in both)])
    per_chunk = [result["building"]["chunks_bytes_per_column_chunk"] for result in results]
    rows.append(["bytes of `chunks` a column chunk", *(f"{n:.1f}" for n in per_chunk)])
    return _markdown(header, rows)


def contenders(result: dict[str, Any], columns: dict[str, tuple[str, str]]) -> str:
    """Return some measures of one shape, a row a contender; ratios are to raw PyArrow."""
    samples = result["samples"]
    rows = []
    for name, contender in EVERYONE.items():
        if name in samples:
            cells = [_cell(samples, name, measure, kind) for measure, kind in columns.values()]
            if any(cell != MISSING for cell in cells):
                rows.append(
                    [f"{contender.label}{', converted' if contender.kind == 'converted' else ''}", *cells]
                )
    return _markdown(["", *(name.strip() for name in columns)], rows)


def remarks(result: dict[str, Any]) -> str:
    """Return who did not run, and how far apart the rounds were."""
    lines = [f"- {EVERYONE[name].label}: {note}." for name, note in result["notes"].items()]
    spreads = sorted(
        spread(values)
        for measures in result["samples"].values()
        for values in measures.values()
        if len(values) > 2
    )
    if spreads:
        lines.append(
            f"- Spread of the rounds (distance of the quartiles over the median): {statistics.median(spreads):.0%} at "
            f"the median of all figures, {spreads[len(spreads) * 9 // 10]:.0%} at the worst tenth."
        )
    return "\n".join(lines)


def _cell(samples: dict[str, Any], name: str, measure: str, kind: str) -> str:
    values = samples[name].get(measure)
    if not values:
        return MISSING
    value = _median(values)
    if kind == "size":
        return _size(value) if value else MISSING
    if kind == "plain time":
        return _time(value, None)
    floor = samples[RAW].get(measure)
    against = _median(floor) if floor and name != RAW else None
    if kind == "rate":
        return _with_ratio(f"{value:,.0f}", value, against)
    return _time(value, against)


def _time(seconds: float, floor: float | None) -> str:
    if seconds < 1e-3:
        shown = f"{seconds * 1e6:.0f} us"
    else:
        shown = f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
    return _with_ratio(shown, seconds, floor)


def _with_ratio(shown: str, value: float, floor: float | None) -> str:
    if floor is None:
        return shown
    ratio = value / floor
    return f"{shown} ({ratio:.0f} x)" if ratio >= 10 else f"{shown} ({ratio:.2f} x)"


def _size(n_bytes: float) -> str:
    return f"{n_bytes / 1e6:.2f} MB" if n_bytes < 1e7 else f"{n_bytes / 1e6:,.0f} MB"


def _median(samples: list[float]) -> float:
    return statistics.median(samples)


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])

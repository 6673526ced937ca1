"""Computes from the trace of a run (docs/tracing.md) how a worker spent its time: compute,
transfers and updates that were not hidden, and the rest."""

import json
from pathlib import Path

Spans = list[tuple[float, float]]


def union(spans: Spans) -> Spans:
    merged: Spans = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > begin:
            merged.append((begin, end))
    return merged


def without(spans: Spans, taken: Spans) -> Spans:
    """Returns the parts of `spans` that are not in `taken`. Both are unions."""
    left: Spans = []
    place = 0
    for begin, end in spans:
        while place < len(taken) and taken[place][1] <= begin:
            place += 1
        i = place
        while begin < end and i < len(taken) and taken[i][0] < end:
            if taken[i][0] > begin:
                left.append((begin, taken[i][0]))
            begin = max(begin, taken[i][1])
            i += 1
        if begin < end:
            left.append((begin, end))
    return left


def length(spans: Spans) -> float:
    return sum(end - begin for begin, end in spans)


def within(spans: Spans, begin: float, end: float) -> Spans:
    return [(max(a, begin), min(b, end)) for a, b in spans if a < end and b > begin]


def split(path: Path, worker: int = 0, first_step: int = 3) -> dict[str, float]:
    """Returns shares of the time from the beginning of the first task of `first_step` to the end of
    the last task. Each instant counts only for the first of these that applies: compute, weights,
    inputs, outputs (with gradients), updates, rest."""
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    mine = [event for event in events if event["pid"] == worker + 1]
    tasks = [event for event in mine if event.get("cat") == "task" and event["args"].get("step", 0) >= first_step]
    if not tasks:
        raise RuntimeError("the trace has no task of the steps that count")
    begin, end = min(event["ts"] for event in tasks), max(event["ts"] + event["dur"] for event in tasks)

    def spans(chosen) -> Spans:
        return union(within([(event["ts"], event["ts"] + event["dur"]) for event in chosen], begin, end))

    # A task's own event lasts from its first to its last microbatch. The microbatches' events are
    # the computation.
    kinds = {"compute": spans(event for event in mine if event.get("cat") == "compute")}
    for name, tracks in (("weights", (3,)), ("inputs", (2,)), ("outputs", (4, 9))):
        kinds[name] = spans(event for event in mine if event["tid"] in tracks and event.get("cat") in ("upload", "download"))
    kinds["updates"] = spans(event for event in events if event["pid"] == 0 and event.get("cat") == "update")
    shares, taken = {}, []
    for name, its in kinds.items():
        shares[name] = length(without(its, taken)) / (end - begin)
        taken = union(taken + its)
    shares["rest"] = 1 - length(taken) / (end - begin)
    return shares

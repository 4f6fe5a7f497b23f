#!/usr/bin/env python3
"""Writes captures that repeat a Kineto trace several times, to measure how conversion time grows with size.

    python3 benches/repeat.py KINETO.json FOLDER 1 10 100

Every event is repeated at later times with new ids, as in a capture of more steps. The file for 10 repetitions is
FOLDER/10/kineto.0.json. The file for 1 is the trace itself, in the same layout.
"""

import gzip
import json
import pathlib
import sys

IDS = "External id", "external id", "Record function id", "correlation", "Ev Idx", "Sequence number"
IDS += "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id"


def spread(events, key):
    """Returns one more than the largest integer `key` in events and their arguments."""
    values = [part[key] for event in events for part in (event, event.get("args", {})) if key in part]
    return max((value for value in values if isinstance(value, int)), default=0) + 1


def later(event, turn, period, steps):
    event = dict(event, ts=event["ts"] + turn * period)
    if event["ph"] in "sf":
        event["id"] += turn * steps["id"]
    args = event.get("args")
    if args:
        moved = {key: args[key] + turn * steps[key] for key in IDS if isinstance(args.get(key), int) and args[key] > 0}
        event["args"] = {**args, **moved}
    return event


def main():
    source, folder, *counts = sys.argv[1:]
    opened = gzip.open(source) if source.endswith(".gz") else open(source, "rb")
    trace = json.load(opened)
    head = trace if isinstance(trace, dict) else {}
    events = head.pop("traceEvents", trace)
    timed = [event for event in events if event.get("ph") in ("X", "s", "f", "i") and isinstance(event.get("ts"), (int, float))]
    other = [event for event in events if event.get("ph") == "M"]
    # The repeated capture is longer, so the profiler's span would be wrong.
    timed = [event for event in timed if event.get("cat") != "Trace"]
    starts, ends = [event["ts"] for event in timed], [event["ts"] + event.get("dur", 0) for event in timed]
    period = int(max(ends) - min(starts)) + 1000
    ids = {event["id"] for event in timed if event["ph"] in "sf"}
    steps = {"id": max(ids, default=0) + 1, **{key: spread(timed, key) for key in IDS}}
    # This id refers to a correlation id, so shift both equally.
    steps["wait_on_cuda_event_record_corr_id"] = steps["correlation"]
    for count in map(int, counts):
        own = pathlib.Path(folder) / str(count)
        own.mkdir(parents=True, exist_ok=True)
        with open(own / "kineto.0.json", "w") as out:
            out.write(json.dumps(head)[:-1] + (", " if head else "") + '"traceEvents": [\n')
            lines = [json.dumps(event) for event in other]
            out.write(",\n".join(lines))
            for turn in range(count):
                for event in timed:
                    out.write(",\n" + json.dumps(later(event, turn, period, steps)))
            out.write("\n]}\n")


if __name__ == "__main__":
    main()

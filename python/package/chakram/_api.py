"""Functions, one for each command. Written by generate_api.py: change that, or the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, Union, overload

from . import _call
from .results import ArchiveCheck, Comparison, Conversion, Diff, Machine, Report, Result, Score, ServeReport, Sweep

PathLike = Union[str, "os.PathLike[str]"]
MachineLike = Union[str, "os.PathLike[str]", Machine]


def convert(
    inputs: Union[PathLike, Sequence[PathLike]],
    output: PathLike,
    *,
    source: Optional[Literal['goal', 'msccl', 'nsys', 'pytorch', 'simai', 'text', 'trace', 'xplane']] = None,
    compress: Optional[Literal['zst', 'gz']] = None,
    size: Optional[Union[str, int]] = None,
    comm_kernel: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    step: Optional[int] = None,
    infer_ranks: Optional[int] = None,
    threads: Optional[int] = None,
    npus: Optional[int] = None,
    passes: Optional[int] = None,
    machine: Optional[MachineLike] = None,
    compute: Optional[str] = None,
    recorded_on: Optional[MachineLike] = None,
    efficiency: Optional[Union[str, int, float]] = None,
    host: Optional[str] = None,
    launch: Optional[Literal['eager', 'graph', 'none']] = None,
    collectives: Optional[Literal['curves', 'algorithms']] = None,
    comm: Optional[Literal['model', 'captured', 'recorded']] = None,
    network: Optional[Literal['contention-free', 'ports', 'links', 'fair-sharing', 'exclusive']] = None,
    bandwidth: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    latency: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    map: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    fill_domains: Optional[bool] = None,
    stepwise: Optional[bool] = None,
    aggregate: Optional[bool] = None,
    lower_bound: Optional[bool] = None,
    custom: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    set: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    kernel: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    collective: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    slow: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    jitter: Optional[str] = None,
    fail: Optional[Union[str, Sequence[str]]] = None,
    timeline: Optional[PathLike] = None,
    timeline_ranks: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    timeline_from: Optional[str] = None,
    timeline_to: Optional[str] = None,
    html: Optional[PathLike] = None,
    tile_map: Optional[PathLike] = None,
    fit: Optional[Literal['report', 'require']] = None,
    links: Optional[bool] = None,
    sensitivities: Optional[bool] = None,
    price: Optional[Union[str, int, float]] = None,
    total_tokens: Optional[Union[str, int, float]] = None,
    all_operators: Optional[bool] = None,
    to: Optional[Literal['et', 'jsonl']] = None,
    generation: Optional[str] = None,
    no_verify: Optional[bool] = None,
    salvage: Optional[bool] = None,
    keep_dangling: Optional[bool] = None,
    max_memory: Optional[Union[str, int]] = None,
    max_ratio: Optional[int] = None,
) -> Conversion:
    """Converts captures and workloads of other tools to traces.

    Other calls accept the result in place of the path of the traces. With a ``source`` that has a summary, the result is
    the document of the summary; otherwise ``text`` describes the conversion.

    Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

    Arguments:
        inputs: Files, folders or prefixes of traces, all of one source.
        output: Prefix of the traces, ``PREFIX.0.et`` and so on, or the file of a single trace.
        source: Source of the inputs; detected from their contents by default.
        compress: (goal, msccl, nsys, pytorch, simai, text, xplane) Compress the traces (ASTRA-sim reads only
            uncompressed traces). ``zst``: zstd; ``gz``: gzip
        size: (msccl) Buffer size of a rank (for all-gather and gather, the size of its shard)
        comm_kernel: (nsys, pytorch) Treat kernels with PART in their name as collectives of this KIND, such as
            all-reduce; repeatable
        step: (pytorch) Convert only this step, which is ProfilerStep#N in the capture
        infer_ranks: (pytorch) Total number of ranks; copy each rank without a capture from captured ranks of the same
            role
        threads: (pytorch) Number of ranks that are read at the same time; one per core by default
        npus: (simai, text) Number of NPUs, each with one trace; all_gpus in the file by default
        passes: (simai, text) Number of passes: training steps, one after another
        machine: (simai) Replay on this machine: preset (`chakram machine list`) or file
        compute: (simai) Compute model: recorded (without a recording: curves, else roofline), scaled:F (recorded times
            F), curves (measured, by class and shape), roofline (by FLOPs and bytes) or loopnest:gemmini-16
        recorded_on: (simai) Machine on which the kernels were recorded, or capture for the devices named in the
            capture; scales recorded times by the ratio of the machines' rooflines
        efficiency: (simai) Fraction of the peak rates that roofline kernels reach, up to 1
        host: (simai) Host timing: recorded, or scaled:F (recorded times F; below 1 is a faster host)
        launch: (simai) How the machine's host launches kernels, collectives and messages, for traces without host work;
            by default eager if kernel times come from curves, else none. ``eager``: Each kernel and collective
            separately, at the machine's [host] costs; ``graph``: All work of a step together, like CUDA graphs;
            ``none``: Launches cost nothing
        collectives: (simai) How to time uncontended collectives; by default curves if kernels use curves. ``curves``:
            Measured times for the same number of NPUs, if the machine has them; ``algorithms``: By the machine's
            algorithms and links
        comm: (simai) How to time collectives and messages. ``model``: Simulated on the machine's network; ``captured``:
            As captured, including waiting; no rank waits for another; ``recorded``: Transfers as recorded; waiting is
            simulated
        network: (simai) Network contention model; by default the machine's own. ``contention-free``: No contention
            between operations; ``ports``: Operations share each NPU's port into a dimension; ``links``: Operations
            share every link of their routes; ``fair-sharing``: Messages in flight share all links of their routes,
            max-min fairly; ``exclusive``: A transfer occupies all links of its route from start to end
        bandwidth: (simai) Bandwidth of an NPU into each dimension of ``machine`` 'Ring(4)_Switch(2)': 250GB/s,50GB/s,
            or one for all
        latency: (simai) Latency of a link in each dimension of ``machine`` 'Ring(4)_Switch(2)': 500ns,1us, or one for
            all
        map: (simai) NPUs of ranks 0, 1, …, such as 0-3,8-11; by default rank r runs on NPU r
        fill_domains: (simai) Place ranks on all NPUs of each rack, even if the machine's jobs leave some free
        stepwise: (simai) Simulate every collective message by message, even if the analytical result is exact
        aggregate: (simai) Simulate one rank in place of several, as long as they do the same at the same time; fewer
            events, same result
        lower_bound: (simai) Give communication without size and recorded duration no time, instead of rejecting it
        custom: (simai) Custom algorithm for a kind of collective, from files PREFIX.0.et, …, one per member:
            all-reduce=ring8; repeatable
        set: (simai) Change the value of a key in the machine file: machine.dimension.nvlink.bandwidth=900GB/s;
            repeatable
        kernel: (simai) Change the time of kernels: '*flash*=0.5' (names), class:gemm=0.9, 'shape:gemm*k=4096=12us',
            'module:*mlp*=0.8' or op:aten::mm=2; a number is a factor; repeatable
        collective: (simai) Change the uncontended time of collectives by kind or name: all-reduce=0.5 or '*grad*=2ms';
            a number is a factor; repeatable
        slow: (simai) Multiply the time of a rank's kernels by a factor: 3=1.2; repeatable
        jitter: (simai) Change each kernel's time at random by up to this spread, uniformly in both directions: 5% or
            5%,seed=7
        fail: (simai) Make an NPU fail (3@2ms), which deadlocks its job, or a link (0-1@500us), which messages avoid;
            repeatable
        timeline: (simai) Write a timeline: FILE.pftrace for ui.perfetto.dev, or FILE.json for any viewer; add .gz to
            compress it
        timeline_ranks: (simai) Ranks in the timeline, such as 0-3,8
        timeline_from: (simai) Start of the timeline, such as 1.5ms
        timeline_to: (simai) End of the timeline
        html: (simai) Also write the report as a self-contained page with charts
        tile_map: (simai) Also draw a machine of tiles: cores by stage, links and memory ports by load
        fit: (simai) What to do if peak memory exceeds the NPU's capacity. ``report``: Warn in the report; ``require``:
            Warn, and exit with code 3
        links: (simai) Report the bytes and load of dimensions and links; this simulates collectives message by message
        sensitivities: (simai) Also report what faster kernels, collectives, host, and machine rates and latencies would
            gain, and the limits of these gains
        price: (simai) Dollars per NPU hour, such as 2.50; by default from the machine's file
        total_tokens: (simai) Also report the days, NPU hours, dollars and energy that a run of this many tokens takes,
            such as 15T
        all_operators: (simai) In JSON and the table of operators, list each micro-batch's operators, mb*/…, instead of
            their sums
        to: (trace) Output format; needed if the name ends with neither .et nor .jsonl (with or without .gz or .zst).
            ``et``: Length-prefixed records, which every Chakra tool reads; ``jsonl``: JSON Lines
        generation: (trace) Schema generation of binary inputs that do not declare it: 0.0.1, 0.0.2, 0.0.3a, 0.0.3b,
            0.0.4
        no_verify: (trace) Accept traces that differ from their job's file, PREFIX.job.json
        salvage: (trace) Keep the intact records of damaged inputs, and report the losses
        keep_dangling: (trace) With ``salvage``, keep dependencies on missing nodes
        max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
            container
        max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
            (default: 200)

    Raises:
        ChakramError: One of ``chakram.errors``; it says where the error is.
    """
    limits = _call.options(
        [
            ("--max-memory", max_memory, "size"),
            ("--max-ratio", max_ratio, "value"),
        ]
    )
    given = _call.options(
        [
            ("--compress", compress, "value"),
            ("--size", size, "size"),
            ("--comm-kernel", comm_kernel, "list"),
            ("--step", step, "value"),
            ("--infer-ranks", infer_ranks, "value"),
            ("--threads", threads, "value"),
            ("--npus", npus, "value"),
            ("--passes", passes, "value"),
            ("--machine", machine, "value"),
            ("--compute", compute, "value"),
            ("--recorded-on", recorded_on, "value"),
            ("--efficiency", efficiency, "value"),
            ("--host", host, "value"),
            ("--launch", launch, "value"),
            ("--collectives", collectives, "value"),
            ("--comm", comm, "value"),
            ("--network", network, "value"),
            ("--bandwidth", bandwidth, "joined"),
            ("--latency", latency, "joined"),
            ("--map", map, "joined"),
            ("--fill-domains", fill_domains, "switch"),
            ("--stepwise", stepwise, "switch"),
            ("--aggregate", aggregate, "switch"),
            ("--lower-bound", lower_bound, "switch"),
            ("--custom", custom, "list"),
            ("--set", set, "list"),
            ("--kernel", kernel, "list"),
            ("--collective", collective, "list"),
            ("--slow", slow, "list"),
            ("--jitter", jitter, "value"),
            ("--fail", fail, "list"),
            ("--timeline", timeline, "value"),
            ("--timeline-ranks", timeline_ranks, "joined"),
            ("--timeline-from", timeline_from, "value"),
            ("--timeline-to", timeline_to, "value"),
            ("--html", html, "value"),
            ("--tile-map", tile_map, "value"),
            ("--fit", fit, "value"),
            ("--links", links, "switch"),
            ("--sensitivities", sensitivities, "switch"),
            ("--price", price, "value"),
            ("--total-tokens", total_tokens, "value"),
            ("--all-operators", all_operators, "switch"),
            ("--to", to, "value"),
            ("--generation", generation, "value"),
            ("--no-verify", no_verify, "switch"),
            ("--salvage", salvage, "switch"),
            ("--keep-dangling", keep_dangling, "switch"),
        ]
    )
    has_summary = source in ('nsys', 'pytorch', 'simai', 'text', 'trace', 'xplane')
    paths = _call.inputs(inputs, "inputs")
    if source is None:
        line = ["convert", "auto", f"--output={_call.word(output, 'output')}", *limits, "--format=json"]
        line += [*paths, "--", *given]
    else:
        line = ["convert", source, f"--output={_call.word(output, 'output')}", *limits, *given, *paths]
        if has_summary:
            line += ["--format=json"]
    result = _call.execute(line, Conversion)
    result._output = _call.word(output, "output")
    return result


@overload
def replay(
    traces: Union[PathLike, Sequence[PathLike]],
    *,
    machine: Optional[MachineLike] = None,
    threads: Optional[int] = None,
    no_verify: Optional[bool] = None,
    groups: Optional[PathLike] = None,
    deps: Optional[Literal['auto', 'both', 'data']] = None,
    absent: Optional[Literal['refuse', 'mirror']] = None,
    ranks: Optional[int] = None,
    without: Optional[Literal['profiler', 'nothing']] = None,
    step: Optional[int] = None,
    delay: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    edit: Optional[Union[str, Sequence[str]]] = None,
    repeat: Optional[int] = None,
    starts: Optional[PathLike] = None,
    with_: Optional[Union[PathLike, Sequence[PathLike]]] = None,
    on: Optional[Union[Union[str, Sequence[Union[str, int]]], Sequence[Union[str, Sequence[Union[str, int]]]]]] = None,
    compute: Optional[str] = None,
    recorded_on: Optional[MachineLike] = None,
    efficiency: Optional[Union[str, int, float]] = None,
    host: Optional[str] = None,
    launch: Optional[Literal['eager', 'graph', 'none']] = None,
    collectives: Optional[Literal['curves', 'algorithms']] = None,
    comm: Optional[Literal['model', 'captured', 'recorded']] = None,
    network: Optional[Literal['contention-free', 'ports', 'links', 'fair-sharing', 'exclusive']] = None,
    bandwidth: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    latency: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    map: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    fill_domains: Optional[bool] = None,
    stepwise: Optional[bool] = None,
    aggregate: Optional[bool] = None,
    lower_bound: Optional[bool] = None,
    custom: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    set: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    kernel: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    collective: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    slow: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    jitter: Optional[str] = None,
    fail: Optional[Union[str, Sequence[str]]] = None,
    timeline: Optional[PathLike] = None,
    timeline_ranks: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    timeline_from: Optional[str] = None,
    timeline_to: Optional[str] = None,
    fit: Optional[Literal['report', 'require']] = None,
    links: Optional[bool] = None,
    sensitivities: Optional[bool] = None,
    price: Optional[Union[str, int, float]] = None,
    total_tokens: Optional[Union[str, int, float]] = None,
    all_operators: Optional[bool] = None,
    max_memory: Optional[Union[str, int]] = None,
    max_ratio: Optional[int] = None,
    keep_nodes: bool = False,
) -> Report: ...
@overload
def replay(
    traces: Union[PathLike, Sequence[PathLike]],
    *,
    machine: Union[list[MachineLike], tuple[MachineLike, ...]],
    threads: Optional[int] = None,
    no_verify: Optional[bool] = None,
    groups: Optional[PathLike] = None,
    deps: Optional[Literal['auto', 'both', 'data']] = None,
    absent: Optional[Literal['refuse', 'mirror']] = None,
    ranks: Optional[int] = None,
    without: Optional[Literal['profiler', 'nothing']] = None,
    step: Optional[int] = None,
    delay: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    edit: Optional[Union[str, Sequence[str]]] = None,
    repeat: Optional[int] = None,
    starts: Optional[PathLike] = None,
    with_: Optional[Union[PathLike, Sequence[PathLike]]] = None,
    on: Optional[Union[Union[str, Sequence[Union[str, int]]], Sequence[Union[str, Sequence[Union[str, int]]]]]] = None,
    compute: Optional[str] = None,
    recorded_on: Optional[MachineLike] = None,
    efficiency: Optional[Union[str, int, float]] = None,
    host: Optional[str] = None,
    launch: Optional[Literal['eager', 'graph', 'none']] = None,
    collectives: Optional[Literal['curves', 'algorithms']] = None,
    comm: Optional[Literal['model', 'captured', 'recorded']] = None,
    network: Optional[Literal['contention-free', 'ports', 'links', 'fair-sharing', 'exclusive']] = None,
    bandwidth: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    latency: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    map: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    fill_domains: Optional[bool] = None,
    stepwise: Optional[bool] = None,
    aggregate: Optional[bool] = None,
    lower_bound: Optional[bool] = None,
    custom: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    set: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    kernel: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    collective: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    slow: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    jitter: Optional[str] = None,
    fail: Optional[Union[str, Sequence[str]]] = None,
    timeline: Optional[PathLike] = None,
    timeline_ranks: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    timeline_from: Optional[str] = None,
    timeline_to: Optional[str] = None,
    fit: Optional[Literal['report', 'require']] = None,
    links: Optional[bool] = None,
    sensitivities: Optional[bool] = None,
    price: Optional[Union[str, int, float]] = None,
    total_tokens: Optional[Union[str, int, float]] = None,
    all_operators: Optional[bool] = None,
    max_memory: Optional[Union[str, int]] = None,
    max_ratio: Optional[int] = None,
    keep_nodes: bool = False,
) -> Comparison: ...
def replay(
    traces: Union[PathLike, Sequence[PathLike]],
    *,
    machine: Optional[Union[MachineLike, Sequence[MachineLike]]] = None,
    threads: Optional[int] = None,
    no_verify: Optional[bool] = None,
    groups: Optional[PathLike] = None,
    deps: Optional[Literal['auto', 'both', 'data']] = None,
    absent: Optional[Literal['refuse', 'mirror']] = None,
    ranks: Optional[int] = None,
    without: Optional[Literal['profiler', 'nothing']] = None,
    step: Optional[int] = None,
    delay: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    edit: Optional[Union[str, Sequence[str]]] = None,
    repeat: Optional[int] = None,
    starts: Optional[PathLike] = None,
    with_: Optional[Union[PathLike, Sequence[PathLike]]] = None,
    on: Optional[Union[Union[str, Sequence[Union[str, int]]], Sequence[Union[str, Sequence[Union[str, int]]]]]] = None,
    compute: Optional[str] = None,
    recorded_on: Optional[MachineLike] = None,
    efficiency: Optional[Union[str, int, float]] = None,
    host: Optional[str] = None,
    launch: Optional[Literal['eager', 'graph', 'none']] = None,
    collectives: Optional[Literal['curves', 'algorithms']] = None,
    comm: Optional[Literal['model', 'captured', 'recorded']] = None,
    network: Optional[Literal['contention-free', 'ports', 'links', 'fair-sharing', 'exclusive']] = None,
    bandwidth: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    latency: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    map: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    fill_domains: Optional[bool] = None,
    stepwise: Optional[bool] = None,
    aggregate: Optional[bool] = None,
    lower_bound: Optional[bool] = None,
    custom: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    set: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    kernel: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    collective: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    slow: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    jitter: Optional[str] = None,
    fail: Optional[Union[str, Sequence[str]]] = None,
    timeline: Optional[PathLike] = None,
    timeline_ranks: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    timeline_from: Optional[str] = None,
    timeline_to: Optional[str] = None,
    fit: Optional[Literal['report', 'require']] = None,
    links: Optional[bool] = None,
    sensitivities: Optional[bool] = None,
    price: Optional[Union[str, int, float]] = None,
    total_tokens: Optional[Union[str, int, float]] = None,
    all_operators: Optional[bool] = None,
    max_memory: Optional[Union[str, int]] = None,
    max_ratio: Optional[int] = None,
    keep_nodes: bool = False,
) -> Any:
    """Replays traces on a machine, or on several to compare them.

    Returns a :class:`Report`, or for several machines a :class:`Comparison`. Times are in picoseconds.

    Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

    Arguments:
        traces: Folder of traces, prefix of files named PREFIX.RANK.et, or files
        machine: Preset (`chakram machine list`) or file; by default machine.toml in the folder of the traces; several
            are compared
        threads: How many machines to replay at the same time; one per core by default
        no_verify: Accept traces that differ from their job's file, PREFIX.job.json
        groups: Process groups as JSON, replacing the job's: {"1": [0, 1], …}
        deps: Which dependencies to enforce (default: auto). ``auto``: Data and control; only data, with a warning, if
            control closes a cycle; ``both``: Data and control; ``data``: Data only
        absent: Action for ranks without a trace (default: refuse). ``refuse``: Reject the job; ``mirror``: Missing
            members of a collective arrive with the present ones
        ranks: Number of ranks of the job, if more than the traces show; by default all NPUs with ``absent`` mirror
        without: Part of a captured job to leave out; by default the profiler, if the capture has steps without it.
            ``profiler``: Estimated host time that the profiler added; ``nothing``: Nothing
        step: Use only this profiled step, like `chakram slice`
        delay: Start a rank late, to find the ranks that wait for a straggler: 3=10ms; repeatable
        edit: Change the job first: batch=2x, layers=+4, … (`chakram help edit`), or a file of `edits`; repeatable
        repeat: Replay the traces N times in a row; each rank begins a step when its previous step ends
        starts: Replay the traces at each time in this file, which has one time per line, such as 10 ms; a rank that is
            still busy begins when its previous launch ends
        with_: Also replay this job once on the same machine; repeatable
        on: NPUs of ranks 0, 1, … of the ``with`` job, such as 4-7; once per ``with``
        compute: Compute model: recorded (without a recording: curves, else roofline), scaled:F (recorded times F),
            curves (measured, by class and shape), roofline (by FLOPs and bytes) or loopnest:gemmini-16 (default:
            recorded)
        recorded_on: Machine on which the kernels were recorded, or capture for the devices named in the capture; scales
            recorded times by the ratio of the machines' rooflines
        efficiency: Fraction of the peak rates that roofline kernels reach, up to 1
        host: Host timing: recorded, or scaled:F (recorded times F; below 1 is a faster host) (default: recorded)
        launch: How the machine's host launches kernels, collectives and messages, for traces without host work; by
            default eager if kernel times come from curves, else none. ``eager``: Each kernel and collective separately,
            at the machine's [host] costs; ``graph``: All work of a step together, like CUDA graphs; ``none``: Launches
            cost nothing
        collectives: How to time uncontended collectives; by default curves if kernels use curves. ``curves``: Measured
            times for the same number of NPUs, if the machine has them; ``algorithms``: By the machine's algorithms and
            links
        comm: How to time collectives and messages (default: model). ``model``: Simulated on the machine's network;
            ``captured``: As captured, including waiting; no rank waits for another; ``recorded``: Transfers as
            recorded; waiting is simulated
        network: Network contention model; by default the machine's own. ``contention-free``: No contention between
            operations; ``ports``: Operations share each NPU's port into a dimension; ``links``: Operations share every
            link of their routes; ``fair-sharing``: Messages in flight share all links of their routes, max-min fairly;
            ``exclusive``: A transfer occupies all links of its route from start to end
        bandwidth: Bandwidth of an NPU into each dimension of ``machine`` 'Ring(4)_Switch(2)': 250GB/s,50GB/s, or one
            for all
        latency: Latency of a link in each dimension of ``machine`` 'Ring(4)_Switch(2)': 500ns,1us, or one for all
        map: NPUs of ranks 0, 1, …, such as 0-3,8-11; by default rank r runs on NPU r
        fill_domains: Place ranks on all NPUs of each rack, even if the machine's jobs leave some free
        stepwise: Simulate every collective message by message, even if the analytical result is exact
        aggregate: Simulate one rank in place of several, as long as they do the same at the same time; fewer events,
            same result
        lower_bound: Give communication without size and recorded duration no time, instead of rejecting it
        custom: Custom algorithm for a kind of collective, from files PREFIX.0.et, …, one per member: all-reduce=ring8;
            repeatable
        set: Change the value of a key in the machine file: machine.dimension.nvlink.bandwidth=900GB/s; repeatable
        kernel: Change the time of kernels: '*flash*=0.5' (names), class:gemm=0.9, 'shape:gemm*k=4096=12us',
            'module:*mlp*=0.8' or op:aten::mm=2; a number is a factor; repeatable
        collective: Change the uncontended time of collectives by kind or name: all-reduce=0.5 or '*grad*=2ms'; a number
            is a factor; repeatable
        slow: Multiply the time of a rank's kernels by a factor: 3=1.2; repeatable
        jitter: Change each kernel's time at random by up to this spread, uniformly in both directions: 5% or 5%,seed=7
        fail: Make an NPU fail (3@2ms), which deadlocks its job, or a link (0-1@500us), which messages avoid; repeatable
        timeline: Write a timeline: FILE.pftrace for ui.perfetto.dev, or FILE.json for any viewer; add .gz to compress
            it
        timeline_ranks: Ranks in the timeline, such as 0-3,8
        timeline_from: Start of the timeline, such as 1.5ms
        timeline_to: End of the timeline
        fit: What to do if peak memory exceeds the NPU's capacity (default: report). ``report``: Warn in the report;
            ``require``: Warn, and exit with code 3
        links: Report the bytes and load of dimensions and links; this simulates collectives message by message
        sensitivities: Also report what faster kernels, collectives, host, and machine rates and latencies would gain,
            and the limits of these gains
        price: Dollars per NPU hour, such as 2.50; by default from the machine's file
        total_tokens: Also report the days, NPU hours, dollars and energy that a run of this many tokens takes, such as
            15T
        all_operators: In JSON and the table of operators, list each micro-batch's operators, mb*/…, instead of their
            sums
        max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
            container
        max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
            (default: 200)
        keep_nodes: Keep a row for each node, for ``Report.node_table()``; otherwise the table is made on demand.

    Raises:
        ChakramError: One of ``chakram.errors``; it says where the error is.
    """
    line = ['replay', '--format', 'json']
    line += _call.options(
        [
            ("--machine", machine, "list"),
            ("--threads", threads, "value"),
            ("--no-verify", no_verify, "switch"),
            ("--groups", groups, "value"),
            ("--deps", deps, "value"),
            ("--absent", absent, "value"),
            ("--ranks", ranks, "value"),
            ("--without", without, "value"),
            ("--step", step, "value"),
            ("--delay", delay, "list"),
            ("--edit", edit, "list"),
            ("--repeat", repeat, "value"),
            ("--starts", starts, "value"),
            ("--with", with_, "list"),
            ("--on", on, "list"),
            ("--compute", compute, "value"),
            ("--recorded-on", recorded_on, "value"),
            ("--efficiency", efficiency, "value"),
            ("--host", host, "value"),
            ("--launch", launch, "value"),
            ("--collectives", collectives, "value"),
            ("--comm", comm, "value"),
            ("--network", network, "value"),
            ("--bandwidth", bandwidth, "joined"),
            ("--latency", latency, "joined"),
            ("--map", map, "joined"),
            ("--fill-domains", fill_domains, "switch"),
            ("--stepwise", stepwise, "switch"),
            ("--aggregate", aggregate, "switch"),
            ("--lower-bound", lower_bound, "switch"),
            ("--custom", custom, "list"),
            ("--set", set, "list"),
            ("--kernel", kernel, "list"),
            ("--collective", collective, "list"),
            ("--slow", slow, "list"),
            ("--jitter", jitter, "value"),
            ("--fail", fail, "list"),
            ("--timeline", timeline, "value"),
            ("--timeline-ranks", timeline_ranks, "joined"),
            ("--timeline-from", timeline_from, "value"),
            ("--timeline-to", timeline_to, "value"),
            ("--fit", fit, "value"),
            ("--links", links, "switch"),
            ("--sensitivities", sensitivities, "switch"),
            ("--price", price, "value"),
            ("--total-tokens", total_tokens, "value"),
            ("--all-operators", all_operators, "switch"),
            ("--max-memory", max_memory, "size"),
            ("--max-ratio", max_ratio, "value"),
        ]
    )
    line += _call.inputs(traces, "traces")
    return _call.execute(line, _call.replayed, keep_nodes)


def generate(
    model: str,
    *,
    tokens: Optional[int] = None,
    dry_run: Optional[bool] = None,
    output: Optional[PathLike] = None,
    machine: Optional[MachineLike] = None,
    stack: Optional[str] = None,
    extrapolate: Optional[int] = None,
    edit: Optional[Union[str, Sequence[str]]] = None,
    compute: Optional[str] = None,
    recorded_on: Optional[MachineLike] = None,
    efficiency: Optional[Union[str, int, float]] = None,
    host: Optional[str] = None,
    launch: Optional[Literal['eager', 'graph', 'none']] = None,
    collectives: Optional[Literal['curves', 'algorithms']] = None,
    comm: Optional[Literal['model', 'captured', 'recorded']] = None,
    network: Optional[Literal['contention-free', 'ports', 'links', 'fair-sharing', 'exclusive']] = None,
    bandwidth: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    latency: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    map: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    fill_domains: Optional[bool] = None,
    stepwise: Optional[bool] = None,
    aggregate: Optional[bool] = None,
    lower_bound: Optional[bool] = None,
    custom: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    set: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    kernel: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    collective: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    slow: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    jitter: Optional[str] = None,
    fail: Optional[Union[str, Sequence[str]]] = None,
    timeline: Optional[PathLike] = None,
    timeline_ranks: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    timeline_from: Optional[str] = None,
    timeline_to: Optional[str] = None,
    fit: Optional[Literal['report', 'require']] = None,
    links: Optional[bool] = None,
    sensitivities: Optional[bool] = None,
    price: Optional[Union[str, int, float]] = None,
    total_tokens: Optional[Union[str, int, float]] = None,
    all_operators: Optional[bool] = None,
    plan: Optional[PathLike] = None,
    pass_orders: Optional[PathLike] = None,
    data: Optional[int] = None,
    tensor: Optional[int] = None,
    stage_tensor: Optional[Union[int, Sequence[int]]] = None,
    pipeline: Optional[int] = None,
    expert: Optional[int] = None,
    expert_tensor: Optional[int] = None,
    expert_products: Optional[Literal['one-by-one', 'grouped', 'fused']] = None,
    expert_exchange: Optional[Literal['copies', 'ranks', 'nodes', 'all-gather']] = None,
    expert_node: Optional[int] = None,
    expert_exchange_dtype: Optional[Literal['fp64', 'fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'fp4', 'int8']] = None,
    routing: Optional[str] = None,
    expert_counts: Optional[Union[str, Sequence[str]]] = None,
    capacity_factor: Optional[str] = None,
    redundant_experts: Optional[int] = None,
    context: Optional[int] = None,
    context_exchange: Optional[Literal['all-gather', 'all-to-all', 'ring']] = None,
    sequence_parallel: Optional[bool] = None,
    pad_heads: Optional[bool] = None,
    zero: Optional[Literal['0', '1', '2', '3']] = None,
    shard: Optional[int] = None,
    batch: Optional[int] = None,
    micro_batch: Optional[int] = None,
    schedule: Optional[Literal['gpipe', '1f1b', 'interleaved', 'interleaved-pairs', 'layer-wise', 'inference', 'zb-h1', 'zb-v', 'dualpipe', 'dualpipe-v']] = None,
    chunks: Optional[int] = None,
    split_backward: Optional[bool] = None,
    split: Optional[Literal['blocks', 'layers', 'multiplications']] = None,
    order: Optional[Union[Literal['tp', 'dp', 'pp'], Sequence[Literal['tp', 'dp', 'pp']]]] = None,
    ranks: Optional[Union[Union[str, Sequence[Union[str, int]]], Sequence[Union[str, Sequence[Union[str, int]]]]]] = None,
    place: Optional[Union[str, Sequence[str]]] = None,
    tensor_neighbours: Optional[Literal['near', 'opposite']] = None,
    recompute: Optional[Literal['none', 'selective', 'full', 'as-needed', 'operators']] = None,
    recompute_blocks: Optional[int] = None,
    recompute_modules: Optional[Union[Literal['layernorm', 'mla-up', 'moe-act', 'mlp', 'moe', 'shared-experts'], Sequence[Literal['layernorm', 'mla-up', 'moe-act', 'mlp', 'moe', 'shared-experts']]]] = None,
    saved: Optional[Union[str, Sequence[str]]] = None,
    capacity: Optional[Union[str, int]] = None,
    residency: Optional[Literal['none', 'corrected', 'as-printed']] = None,
    sram: Optional[Union[str, int]] = None,
    largest_access: Optional[Union[str, int]] = None,
    offload: Optional[Literal['none', 'optimizer', 'all']] = None,
    offload_gather: Optional[Literal['network', 'in-switch']] = None,
    offload_activations: Optional[bool] = None,
    lora: Optional[str] = None,
    lora_targets: Optional[Union[str, Sequence[str]]] = None,
    frozen: Optional[Union[str, Sequence[str]]] = None,
    prefetch: Optional[int] = None,
    backward_prefetch: Optional[Literal['pre', 'post']] = None,
    reshard: Optional[bool] = None,
    reshard_blocks: Optional[int] = None,
    accumulate: Optional[bool] = None,
    optimizer: Optional[Literal['none', 'sgd', 'adam']] = None,
    mixed: Optional[bool] = None,
    clip: Optional[bool] = None,
    overlap: Optional[bool] = None,
    tensor_overlap: Optional[bool] = None,
    pipeline_overlap: Optional[bool] = None,
    gather_overlap: Optional[bool] = None,
    branches: Optional[Literal['in-order', 'parallel']] = None,
    scatter_gather: Optional[bool] = None,
    adapters: Optional[int] = None,
    adapter_sums: Optional[Literal['source', 'destination']] = None,
    buckets: Optional[Literal['layers', 'parameters']] = None,
    bucket: Optional[Union[str, int]] = None,
    first_bucket: Optional[Union[str, int]] = None,
    dtype: Optional[Literal['fp64', 'fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'fp4', 'int8']] = None,
    gradients: Optional[Literal['fp64', 'fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'fp4', 'int8']] = None,
    linears: Optional[Literal['fp64', 'fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'fp4', 'int8']] = None,
    scaling: Optional[Literal['delayed', 'current', 'block']] = None,
    elementwise: Optional[Literal['fused', 'megatron', 'eager', 'compiled']] = None,
    attention: Optional[Literal['flash', 'unpadded', 'unfused']] = None,
    softmax: Optional[Literal['fused', 'unfused', 'megatron']] = None,
    loss: Optional[Literal['composite', 'fused']] = None,
    dropout: Optional[bool] = None,
    steps: Optional[int] = None,
    without: Optional[Union[Literal['bubble', 'logits', 'memory-bound', 'tensor-communication', 'expert-communication', 'context-communication', 'data-communication', 'pipeline-communication', 'optimizer', 'recompute'], Sequence[Literal['bubble', 'logits', 'memory-bound', 'tensor-communication', 'expert-communication', 'context-communication', 'data-communication', 'pipeline-communication', 'optimizer', 'recompute']]]] = None,
    max_memory: Optional[Union[str, int]] = None,
    max_ratio: Optional[int] = None,
    keep_nodes: bool = False,
) -> Any:
    """Replays a training step of a model on a machine, or writes its traces.

    With ``machine`` returns a :class:`Report`, with ``dry_run`` the plan, and with ``output`` alone a :class:`Conversion`.

    Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

    Arguments:
        model: Preset (`chakram model list`) or file, NAME.toml or config.json; - is stdin
        tokens: Tokens per sequence; by default the model's length
        dry_run: Print FLOPs, memory, communication and placement, without a replay
        output: Write the traces to PREFIX.0.et, …, and PREFIX.job.json
        machine: Replay on this machine: preset (`chakram machine list`) or file
        stack: Software stack, preset or file: kernels, launches, plan options
        extrapolate: Simulate N micro-batches of the step and extrapolate to all
        edit: Change the job: layers=+4, hidden=1.5x, delay=…, or a file of `edits`; repeatable
        compute: Compute model: recorded (without a recording: curves, else roofline), scaled:F (recorded times F),
            curves (measured, by class and shape), roofline (by FLOPs and bytes) or loopnest:gemmini-16 (default:
            recorded)
        recorded_on: Machine on which the kernels were recorded, or capture for the devices named in the capture; scales
            recorded times by the ratio of the machines' rooflines
        efficiency: Fraction of the peak rates that roofline kernels reach, up to 1
        host: Host timing: recorded, or scaled:F (recorded times F; below 1 is a faster host) (default: recorded)
        launch: How the machine's host launches kernels, collectives and messages, for traces without host work; by
            default eager if kernel times come from curves, else none. ``eager``: Each kernel and collective separately,
            at the machine's [host] costs; ``graph``: All work of a step together, like CUDA graphs; ``none``: Launches
            cost nothing
        collectives: How to time uncontended collectives; by default curves if kernels use curves. ``curves``: Measured
            times for the same number of NPUs, if the machine has them; ``algorithms``: By the machine's algorithms and
            links
        comm: How to time collectives and messages (default: model). ``model``: Simulated on the machine's network;
            ``captured``: As captured, including waiting; no rank waits for another; ``recorded``: Transfers as
            recorded; waiting is simulated
        network: Network contention model; by default the machine's own. ``contention-free``: No contention between
            operations; ``ports``: Operations share each NPU's port into a dimension; ``links``: Operations share every
            link of their routes; ``fair-sharing``: Messages in flight share all links of their routes, max-min fairly;
            ``exclusive``: A transfer occupies all links of its route from start to end
        bandwidth: Bandwidth of an NPU into each dimension of ``machine`` 'Ring(4)_Switch(2)': 250GB/s,50GB/s, or one
            for all
        latency: Latency of a link in each dimension of ``machine`` 'Ring(4)_Switch(2)': 500ns,1us, or one for all
        map: NPUs of ranks 0, 1, …, such as 0-3,8-11; by default rank r runs on NPU r
        fill_domains: Place ranks on all NPUs of each rack, even if the machine's jobs leave some free
        stepwise: Simulate every collective message by message, even if the analytical result is exact
        aggregate: Simulate one rank in place of several, as long as they do the same at the same time; fewer events,
            same result
        lower_bound: Give communication without size and recorded duration no time, instead of rejecting it
        custom: Custom algorithm for a kind of collective, from files PREFIX.0.et, …, one per member: all-reduce=ring8;
            repeatable
        set: Change the value of a key in the machine file: machine.dimension.nvlink.bandwidth=900GB/s; repeatable
        kernel: Change the time of kernels: '*flash*=0.5' (names), class:gemm=0.9, 'shape:gemm*k=4096=12us',
            'module:*mlp*=0.8' or op:aten::mm=2; a number is a factor; repeatable
        collective: Change the uncontended time of collectives by kind or name: all-reduce=0.5 or '*grad*=2ms'; a number
            is a factor; repeatable
        slow: Multiply the time of a rank's kernels by a factor: 3=1.2; repeatable
        jitter: Change each kernel's time at random by up to this spread, uniformly in both directions: 5% or 5%,seed=7
        fail: Make an NPU fail (3@2ms), which deadlocks its job, or a link (0-1@500us), which messages avoid; repeatable
        timeline: Write a timeline: FILE.pftrace for ui.perfetto.dev, or FILE.json for any viewer; add .gz to compress
            it
        timeline_ranks: Ranks in the timeline, such as 0-3,8
        timeline_from: Start of the timeline, such as 1.5ms
        timeline_to: End of the timeline
        fit: What to do if peak memory exceeds the NPU's capacity (default: report). ``report``: Warn in the report;
            ``require``: Warn, and exit with code 3
        links: Report the bytes and load of dimensions and links; this simulates collectives message by message
        sensitivities: Also report what faster kernels, collectives, host, and machine rates and latencies would gain,
            and the limits of these gains
        price: Dollars per NPU hour, such as 2.50; by default from the machine's file
        total_tokens: Also report the days, NPU hours, dollars and energy that a run of this many tokens takes, such as
            15T
        all_operators: In JSON and the table of operators, list each micro-batch's operators, mb*/…, instead of their
            sums
        plan: Read the plan from this file; options override it
        pass_orders: Read the order of passes from this file, with a line per stage in PyTorch's form: 0F0,0F1,0B0,…
        data: Data-parallel degree [default: 1]
        tensor: Tensor-parallel degree [default: 1]
        stage_tensor: Tensor-parallel degree of each stage (4,2), joined by ``adapters``
        pipeline: Pipeline-parallel degree [default: 1]
        expert: Expert-parallel degree [default: 1]
        expert_tensor: Tensor-parallel degree of experts; by default ``tensor``
        expert_products: Kernels of experts' products: one-by-one, grouped, or fused with copies, gates and casts
            [default: grouped]
        expert_exchange: How tokens reach experts: copies per expert, per rank of an expert, or per node and then per
            rank, or an all-gather [default: copies]
        expert_node: Ranks of an expert group on one node, with ``expert_exchange`` nodes
        expert_exchange_dtype: Data type of tokens sent to experts; by default as activations
        routing: Tokens per expert: balanced, or by a power law, skewed:POWER or skewed:POWER:SEED [default: balanced]
        expert_counts: Measured number of tokens of each expert: 40,3,17,…
        capacity_factor: Token slots of each expert divided by its mean tokens; further tokens are dropped, free slots
            padded
        redundant_experts: Copies of full experts, in addition to one copy of each, with ``schedule`` inference
            [default: 0]
        context: Context-parallel degree [default: 1]
        context_exchange: Context parallelism: gather keys and values, exchange heads, or pass keys and values around a
            ring [default: all-gather]
        sequence_parallel: Sequence parallelism: shard tokens over the tensor group [default: false]
        pad_heads: Pad attention heads to a multiple of ``tensor`` [default: false]
        zero: ZeRO stage: shard optimizer states (1), gradients (2), parameters (3, as FSDP) [default: 0]
        shard: Number of neighbouring replicas that shard state, with ``zero``; others have copies (HSDP)
        batch: Global batch size, in samples per step [default: 1]
        micro_batch: Micro-batch size, in samples [default: 1]
        schedule: Pipeline schedule [default: 1f1b]
        chunks: Model chunks per stage, with ``schedule`` interleaved or interleaved-pairs
        split_backward: Compute gradients of inputs first, for the previous stage, and gradients of weights later
            [default: false]
        split: Unit divided evenly among pipeline stages [default: blocks]
        order: Rank order: axes of neighbouring ranks, innermost first [default: tp,dp,pp]
        ranks: Rank at each position of that order: 0,2,1,3
        place: Map axes to dimensions of the machine (tp@nvlink,dp:2@1,pp@1), or ranks to cores of tiles: line, s_shape,
            spiral, or x:y for each
        tensor_neighbours: Places of a tensor group's members on tiles (opposite: replicas between) [default: near]
        recompute: Activation recomputation (checkpointing) [default: none]
        recompute_blocks: Recompute only the first N blocks of each stage and chunk, with ``recompute`` full
        recompute_modules: Parts of blocks that are recomputed one by one, beside ``recompute`` none or selective;
            comma-separated, repeatable
        saved: Operators whose outputs are saved, with ``recompute`` operators; others are recomputed:
            attention.qkv,attention.core
        capacity: Memory capacity of an NPU; by default the machine's
        residency: Rule for data that SRAM does not keep (as-printed: as in PALM) [default: none]
        sram: SRAM of a core, for ``residency``; by default the machine's
        largest_access: Largest load or store, for ``residency``; by default all of memory
        offload: State in remote memory: the optimizer's, or all, with ``zero`` 3 (as ZeRO-Infinity) [default: none]
        offload_gather: Where offloaded parameters are gathered and gradients reduced: network, or in-switch (of a pool)
            [default: network]
        offload_activations: Keep saved activations of blocks in remote memory until the backward pass [default: false]
        lora: Rank of low-rank adapters (LoRA), with all other weights frozen
        lora_targets: Products with adapters, with ``lora``; by default all of blocks: attention.qkv,mlp.*
        frozen: Operators whose weights are not trained: tokens,layer0/*
        prefetch: Number of layers whose parameters are gathered ahead, with ``zero`` 3 [default: 1]
        backward_prefetch: Whether backward passes gather parameters ahead before (pre) or after (post) the current
            layer (``zero`` 3) [default: pre]
        reshard: Free gathered parameters after each pass (``zero`` 3) [default: true]
        reshard_blocks: Free gathered parameters only of the first N blocks of each stage and chunk
        accumulate: Reduce gradients once per step, with ``zero`` 2 or 3 [default: false]
        optimizer: Optimizer [default: adam]
        mixed: Mixed precision: Adam keeps fp32 master weights [default: true]
        clip: Clip gradients by their global norm [default: false]
        overlap: Overlap gradient reduction with the backward pass [default: true]
        tensor_overlap: Overlap tensor-parallel sums with weight gradients [default: true]
        pipeline_overlap: Overlap messages between stages with other passes [default: true]
        gather_overlap: Gather parameters during the next forward pass, with ``zero`` 1 or 2 [default: false]
        branches: How independent operators of a layer run, such as branches [default: in-order]
        scatter_gather: Scatter-gather activations between stages [default: false]
        adapters: Number of members of a tensor group that send to the next stage, where each receiver broadcasts; by
            default all
        adapter_sums: When adapters sum a stage's result: before or after it is sent [default: source]
        buckets: Bucket gradients by layers, or by parameters like PyTorch [default: layers]
        bucket: Gradient bucket size [default: 40 MB]
        first_bucket: Size of the first gradient buckets; by default ``bucket``
        dtype: Data type of weights and activations [default: bf16]
        gradients: Data type of gradients; by default as weights
        linears: Data type of operands of linear layers in blocks; by default as weights
        scaling: Scaling of 8-bit operands (block is MXFP8) [default: delayed]
        elementwise: Kernels other than products: fused (one per operator), megatron (like Megatron-LM), eager or
            compiled (like PyTorch) [default: fused]
        attention: Attention kernel [default: flash]
        softmax: Softmax of unfused attention: fused with scale and mask, unfused, or megatron (fused when Megatron-LM
            fuses it) [default: fused]
        loss: Cross entropy of logits: composite (kernel by kernel) or fused [default: composite]
        dropout: Apply the model's dropout [default: true]
        steps: Number of training steps [default: 1]
        without: Ablation: effects to leave out; comma-separated, repeatable
        max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
            container
        max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
            (default: 200)
        keep_nodes: Keep a row for each node, for ``Report.node_table()``; otherwise the table is made on demand.

    Raises:
        ChakramError: One of ``chakram.errors``; it says where the error is.
    """
    line = ['generate']
    line += _call.options(
        [
            ("--tokens", tokens, "value"),
            ("--dry-run", dry_run, "switch"),
            ("--output", output, "value"),
            ("--machine", machine, "value"),
            ("--stack", stack, "value"),
            ("--extrapolate", extrapolate, "value"),
            ("--edit", edit, "list"),
            ("--compute", compute, "value"),
            ("--recorded-on", recorded_on, "value"),
            ("--efficiency", efficiency, "value"),
            ("--host", host, "value"),
            ("--launch", launch, "value"),
            ("--collectives", collectives, "value"),
            ("--comm", comm, "value"),
            ("--network", network, "value"),
            ("--bandwidth", bandwidth, "joined"),
            ("--latency", latency, "joined"),
            ("--map", map, "joined"),
            ("--fill-domains", fill_domains, "switch"),
            ("--stepwise", stepwise, "switch"),
            ("--aggregate", aggregate, "switch"),
            ("--lower-bound", lower_bound, "switch"),
            ("--custom", custom, "list"),
            ("--set", set, "list"),
            ("--kernel", kernel, "list"),
            ("--collective", collective, "list"),
            ("--slow", slow, "list"),
            ("--jitter", jitter, "value"),
            ("--fail", fail, "list"),
            ("--timeline", timeline, "value"),
            ("--timeline-ranks", timeline_ranks, "joined"),
            ("--timeline-from", timeline_from, "value"),
            ("--timeline-to", timeline_to, "value"),
            ("--fit", fit, "value"),
            ("--links", links, "switch"),
            ("--sensitivities", sensitivities, "switch"),
            ("--price", price, "value"),
            ("--total-tokens", total_tokens, "value"),
            ("--all-operators", all_operators, "switch"),
            ("--plan", plan, "value"),
            ("--pass-orders", pass_orders, "value"),
            ("--data", data, "value"),
            ("--tensor", tensor, "value"),
            ("--stage-tensor", stage_tensor, "list"),
            ("--pipeline", pipeline, "value"),
            ("--expert", expert, "value"),
            ("--expert-tensor", expert_tensor, "value"),
            ("--expert-products", expert_products, "value"),
            ("--expert-exchange", expert_exchange, "value"),
            ("--expert-node", expert_node, "value"),
            ("--expert-exchange-dtype", expert_exchange_dtype, "value"),
            ("--routing", routing, "value"),
            ("--expert-counts", expert_counts, "list"),
            ("--capacity-factor", capacity_factor, "value"),
            ("--redundant-experts", redundant_experts, "value"),
            ("--context", context, "value"),
            ("--context-exchange", context_exchange, "value"),
            ("--sequence-parallel", sequence_parallel, "value"),
            ("--pad-heads", pad_heads, "value"),
            ("--zero", zero, "value"),
            ("--shard", shard, "value"),
            ("--batch", batch, "value"),
            ("--micro-batch", micro_batch, "value"),
            ("--schedule", schedule, "value"),
            ("--chunks", chunks, "value"),
            ("--split-backward", split_backward, "value"),
            ("--split", split, "value"),
            ("--order", order, "list"),
            ("--ranks", ranks, "list"),
            ("--place", place, "list"),
            ("--tensor-neighbours", tensor_neighbours, "value"),
            ("--recompute", recompute, "value"),
            ("--recompute-blocks", recompute_blocks, "value"),
            ("--recompute-modules", recompute_modules, "list"),
            ("--saved", saved, "list"),
            ("--capacity", capacity, "size"),
            ("--residency", residency, "value"),
            ("--sram", sram, "size"),
            ("--largest-access", largest_access, "size"),
            ("--offload", offload, "value"),
            ("--offload-gather", offload_gather, "value"),
            ("--offload-activations", offload_activations, "value"),
            ("--lora", lora, "value"),
            ("--lora-targets", lora_targets, "list"),
            ("--frozen", frozen, "list"),
            ("--prefetch", prefetch, "value"),
            ("--backward-prefetch", backward_prefetch, "value"),
            ("--reshard", reshard, "value"),
            ("--reshard-blocks", reshard_blocks, "value"),
            ("--accumulate", accumulate, "value"),
            ("--optimizer", optimizer, "value"),
            ("--mixed", mixed, "value"),
            ("--clip", clip, "value"),
            ("--overlap", overlap, "value"),
            ("--tensor-overlap", tensor_overlap, "value"),
            ("--pipeline-overlap", pipeline_overlap, "value"),
            ("--gather-overlap", gather_overlap, "value"),
            ("--branches", branches, "value"),
            ("--scatter-gather", scatter_gather, "value"),
            ("--adapters", adapters, "value"),
            ("--adapter-sums", adapter_sums, "value"),
            ("--buckets", buckets, "value"),
            ("--bucket", bucket, "size"),
            ("--first-bucket", first_bucket, "size"),
            ("--dtype", dtype, "value"),
            ("--gradients", gradients, "value"),
            ("--linears", linears, "value"),
            ("--scaling", scaling, "value"),
            ("--elementwise", elementwise, "value"),
            ("--attention", attention, "value"),
            ("--softmax", softmax, "value"),
            ("--loss", loss, "value"),
            ("--dropout", dropout, "value"),
            ("--steps", steps, "value"),
            ("--without", without, "list"),
            ("--max-memory", max_memory, "size"),
            ("--max-ratio", max_ratio, "value"),
        ]
    )
    line += _call.inputs(model, "model")
    return _call.generated(line, machine, output, keep_nodes, dry_run)


def diff(
    before: PathLike,
    after: PathLike,
    *,
    threshold: Optional[str] = None,
    fail_on: Optional[Union[Literal['structure', 'time', 'bytes', 'any'], Sequence[Literal['structure', 'time', 'bytes', 'any']]]] = None,
    tolerance: Optional[str] = None,
    show: Optional[int] = None,
    salvage: Optional[bool] = None,
    threads: Optional[int] = None,
    no_verify: Optional[bool] = None,
    step: Optional[int] = None,
    html: Optional[PathLike] = None,
    max_memory: Optional[Union[str, int]] = None,
    max_ratio: Optional[int] = None,
) -> Diff:
    """Compares two jobs, traces or reports.

    ``differs`` names the kinds of differences, ``differences`` lists them.

    Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

    Arguments:
        before: Traces (folder, PREFIX or file), or a report; - is a report on standard input
        after: Traces or report to compare with A
        threshold: Exit with code 3 if the makespan of reports, or the total time or bytes of traces, changes by more
            than this, such as 1%
        fail_on: Exit with code 3 if one of these differs; comma-separated. ``structure``: Nodes, dependencies, and
            attributes other than times and sizes; in reports, counts; ``time``: Durations, delays and waiting times of
            nodes; in reports, any time; ``bytes``: Bytes and FLOPs of nodes; in reports, the buffers of collectives;
            ``any``: Any of these
        tolerance: Ignore changes of a node's times up to this limit, such as 2% or 5us (default: 0ps)
        show: Maximum number of lines per list, or `all`; by default 10 in text and all in other formats
        salvage: Compare the intact records of damaged traces, and report the losses
        threads: Number of ranks that are compared at the same time; one per core by default
        no_verify: Accept traces that differ from their job's file, PREFIX.job.json
        step: Use only this profiled step, like `chakram slice`
        html: Also write the differences of reports as a self-contained page with charts
        max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
            container
        max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
            (default: 200)

    Raises:
        ChakramError: One of ``chakram.errors``; it says where the error is.
    """
    line = ['diff', '--format', 'json']
    line += _call.options(
        [
            ("--threshold", threshold, "value"),
            ("--fail-on", fail_on, "list"),
            ("--tolerance", tolerance, "value"),
            ("--show", show, "value"),
            ("--salvage", salvage, "switch"),
            ("--threads", threads, "value"),
            ("--no-verify", no_verify, "switch"),
            ("--step", step, "value"),
            ("--html", html, "value"),
            ("--max-memory", max_memory, "size"),
            ("--max-ratio", max_ratio, "value"),
        ]
    )
    line += _call.inputs(before, "before")
    line += _call.inputs(after, "after")
    return _call.execute(line, Diff)


def sweep(
    study: PathLike,
    *,
    output: Optional[PathLike] = None,
    resume: Optional[bool] = None,
    shard: Optional[str] = None,
    threads: Optional[int] = None,
    max_memory: Optional[Union[str, int]] = None,
    max_ratio: Optional[int] = None,
) -> Sweep:
    """Finds the best machine, plan or schedule of a study.

    With ``output``, a folder keeps a journal, from which ``resume=True`` continues an interrupted sweep.

    Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

    Arguments:
        study: The study: settings that all points share, axes, limits, objectives and strategies
        output: Write the journal, the result rows, the Pareto front and an HTML page into this folder
        resume: Continue the study in the output folder
        shard: Only compute the points whose number has remainder I when divided by N
        threads: How many points to compute at the same time; one per core by default
        max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
            container
        max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
            (default: 200)

    Raises:
        ChakramError: One of ``chakram.errors``; it says where the error is.
    """
    line = ['sweep', '--format', 'json']
    line += _call.options(
        [
            ("--output", output, "value"),
            ("--resume", resume, "switch"),
            ("--shard", shard, "value"),
            ("--threads", threads, "value"),
            ("--max-memory", max_memory, "size"),
            ("--max-ratio", max_ratio, "value"),
        ]
    )
    line += _call.inputs(study, "study")
    return _call.execute(line, Sweep)


def merge_sweep(
    study: PathLike,
    shards: Union[PathLike, Sequence[PathLike]],
    *,
    output: PathLike,
    max_memory: Optional[Union[str, int]] = None,
    max_ratio: Optional[int] = None,
) -> Result:
    """Joins the shards of a study, and writes the rows to the folder ``output``.

    Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

    Arguments:
        study: The study
        shards: Folders of the shards
        output: Write the rows, the front and the page into this folder
        max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
            container
        max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
            (default: 200)

    Raises:
        ChakramError: One of ``chakram.errors``; it says where the error is.
    """
    line = ['sweep', 'merge']
    line += _call.options(
        [
            ("--output", output, "value"),
            ("--max-memory", max_memory, "size"),
            ("--max-ratio", max_ratio, "value"),
        ]
    )
    line += _call.inputs(study, "study")
    line += _call.inputs(shards, "shards")
    return _call.execute(line, Result)


def serve(
    scenario: PathLike,
    *,
    machine: Optional[Union[MachineLike, Sequence[MachineLike]]] = None,
    seed: Optional[int] = None,
    rate: Optional[Union[str, int, float]] = None,
    requests: Optional[int] = None,
    rates: Optional[Union[Union[str, Sequence[Union[str, int]]], Sequence[Union[str, Sequence[Union[str, int]]]]]] = None,
    find_capacity: Optional[bool] = None,
    attain: Optional[Union[str, int, float]] = None,
    slo: Optional[str] = None,
    timeline: Optional[PathLike] = None,
    input: Optional[Union[str, int, float]] = None,
    users: Optional[int] = None,
    arrivals: Optional[PathLike] = None,
    tensor: Optional[int] = None,
    replicas: Optional[int] = None,
    weights: Optional[str] = None,
    engine: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    plan: Optional[bool] = None,
    max_memory: Optional[Union[str, int]] = None,
    max_ratio: Optional[int] = None,
) -> ServeReport:
    """Serves requests over time: waiting, batching, latency percentiles.

    ``reports`` has a report for each platform.

    Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

    Arguments:
        scenario: A scenario file (models, arrivals, end of the run and policy), or a language model: a preset or a file
        machine: Platform to serve on: a preset from `chakram platform list`, a machine for traces or a language model,
            or a file; several are compared, except with a language model
        seed: Seed of all random numbers, overriding the scenario
        rate: Arrivals per second, overriding the scenario
        requests: Number of requests, overriding the scenario
        rates: Run at each of these arrival rates, in requests per second, and show latency against load
        find_capacity: Find the highest arrival rate at which enough requests meet their limit
        attain: Share of requests that must meet their limits, for ``find_capacity`` and ``plan`` (default: 0.99); 1
            means all requests of the run
        slo: Limit on serve times, for goodput and capacity; the default is the models' deadlines; for a language model,
            give ttft=TIME,tpot=TIME,e2e=TIME
        timeline: Write a timeline of requests and jobs to this file, for Perfetto or chrome://tracing
        input: Tokens per prompt, if SCENARIO is a language model: 1024, 512..1024 or 'lognormal 1024 0.6'; ``output``
            gives the tokens per answer
        users: Number of users, each of whom sends a new request after each answer; instead of ``rate``
        arrivals: File of requests, instead of ``rate``, ``input`` and ``output``: CSV from Azure or BurstGPT, or JSON
            lines from Mooncake
        tensor: NPUs that share an engine's layers; by default the fewest whose memory can hold the model
        replicas: Number of engines
        weights: Number format of weights: bf16, fp16, fp8 or fp4
        engine: Set a key of [engine], such as max_num_seqs=256, kv=fp8, router=longest-prefix or rules=static
        plan: Find the fewest NPUs on which enough requests meet the limits of ``slo``, and the highest request rate of
            these NPUs
        max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
            container
        max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
            (default: 200)

    Raises:
        ChakramError: One of ``chakram.errors``; it says where the error is.
    """
    line = ['serve', '--format', 'json']
    line += _call.options(
        [
            ("--machine", machine, "list"),
            ("--seed", seed, "value"),
            ("--rate", rate, "value"),
            ("--requests", requests, "value"),
            ("--rates", rates, "list"),
            ("--find-capacity", find_capacity, "switch"),
            ("--attain", attain, "value"),
            ("--slo", slo, "value"),
            ("--timeline", timeline, "value"),
            ("--input", input, "value"),
            ("--users", users, "value"),
            ("--arrivals", arrivals, "value"),
            ("--tensor", tensor, "value"),
            ("--replicas", replicas, "value"),
            ("--weights", weights, "value"),
            ("--engine", engine, "list"),
            ("--plan", plan, "switch"),
            ("--max-memory", max_memory, "size"),
            ("--max-ratio", max_ratio, "value"),
        ]
    )
    line += _call.inputs(scenario, "scenario")
    return _call.execute(line, ServeReport)


def score(
    runs: Optional[Union[PathLike, Sequence[PathLike]]] = None,
    *,
    columns: Optional[Union[PathLike, Sequence[PathLike]]] = None,
    scenarios: Optional[PathLike] = None,
    pairs: Optional[PathLike] = None,
    machine: Optional[MachineLike] = None,
    stack: Optional[str] = None,
    set: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    by: Optional[str] = None,
    fit: Optional[Union[str, Sequence[str]]] = None,
    folds: Optional[int] = None,
    signs: Optional[bool] = None,
    leave_out: Optional[str] = None,
    steps: Optional[str] = None,
    compute: Optional[str] = None,
    recorded_on: Optional[MachineLike] = None,
    efficiency: Optional[Union[str, int, float]] = None,
    host: Optional[str] = None,
    launch: Optional[Literal['eager', 'graph', 'none']] = None,
    collectives: Optional[Literal['curves', 'algorithms']] = None,
    scatter: Optional[PathLike] = None,
    max_memory: Optional[Union[str, int]] = None,
    max_ratio: Optional[int] = None,
) -> Score:
    """Compares predictions with measured runs.

    Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

    Arguments:
        runs: Measured runs: CSV with a line of headings and a run in each row; several tables are scored together
        columns: File that maps columns to options of `chakram generate` and to measured values; give one per table
        scenarios: Serve language models instead: this file turns each row of RUNS.csv into a scenario, and names the
            columns of measured times
        pairs: Score changes of captured jobs instead; each pair has traces, edits, and the measured step
        machine: Replay the runs on this machine instead of the machine that the file of columns names
        stack: Software stack for all runs instead of the stack that the file of columns names: preset or file
        set: Set an option for all runs, overriding the file of columns; repeatable
        by: Also score the runs separately for each value of this option, or, with ``scenarios``, of this column
        fit: Fit these constants of the machine to the runs, in folds: each run is predicted with constants fitted to
            runs that differ from it in the options `folds`. The constants are launch, backward, collective, message,
            memory, softmax and cross-entropy
        folds: Number of folds (default: 5)
        signs: Also count pairs of runs that differ in one option, and how many of these pairs are predicted in the
            measured order
        leave_out: Also correct each run with the errors of runs that have other values of this option, such as model
        steps: Also correct all runs with these measured steps, a table with the same columns
        compute: Compute model: recorded (without a recording: curves, else roofline), scaled:F (recorded times F),
            curves (measured, by class and shape), roofline (by FLOPs and bytes) or loopnest:gemmini-16 (default:
            recorded)
        recorded_on: Machine on which the kernels were recorded, or capture for the devices named in the capture; scales
            recorded times by the ratio of the machines' rooflines
        efficiency: Fraction of the peak rates that roofline kernels reach, up to 1
        host: Host timing: recorded, or scaled:F (recorded times F; below 1 is a faster host) (default: recorded)
        launch: How the machine's host launches kernels, collectives and messages, for traces without host work; by
            default eager if kernel times come from curves, else none. ``eager``: Each kernel and collective separately,
            at the machine's [host] costs; ``graph``: All work of a step together, like CUDA graphs; ``none``: Launches
            cost nothing
        collectives: How to time uncontended collectives; by default curves if kernels use curves. ``curves``: Measured
            times for the same number of NPUs, if the machine has them; ``algorithms``: By the machine's algorithms and
            links
        scatter: Draw predicted against measured times, as SVG
        max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
            container
        max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
            (default: 200)

    Raises:
        ChakramError: One of ``chakram.errors``; it says where the error is.
    """
    line = ['score', '--format', 'json']
    line += _call.options(
        [
            ("--columns", columns, "list"),
            ("--scenarios", scenarios, "value"),
            ("--pairs", pairs, "value"),
            ("--machine", machine, "value"),
            ("--stack", stack, "value"),
            ("--set", set, "list"),
            ("--by", by, "value"),
            ("--fit", fit, "list"),
            ("--folds", folds, "value"),
            ("--signs", signs, "switch"),
            ("--leave-out", leave_out, "value"),
            ("--steps", steps, "value"),
            ("--compute", compute, "value"),
            ("--recorded-on", recorded_on, "value"),
            ("--efficiency", efficiency, "value"),
            ("--host", host, "value"),
            ("--launch", launch, "value"),
            ("--collectives", collectives, "value"),
            ("--scatter", scatter, "value"),
            ("--max-memory", max_memory, "size"),
            ("--max-ratio", max_ratio, "value"),
        ]
    )
    if runs is not None:
        line += _call.inputs(runs, "runs")
    return _call.execute(line, Score)


def generate_pattern(
    pattern: Literal['collective', 'p2p', 'chain', 'memory', 'data-parallel', 'palm'],
    kind: Optional[str] = None,
    *,
    keep_nodes: bool = False,
    size: Optional[Union[str, int]] = None,
    ranks: Optional[int] = None,
    group: Optional[Union[Union[str, Sequence[Union[str, int]]], Sequence[Union[str, Sequence[Union[str, int]]]]]] = None,
    count: Optional[int] = None,
    chained: Optional[bool] = None,
    root: Optional[str] = None,
    dimensions: Optional[Union[Union[str, Sequence[Union[str, int]]], Sequence[Union[str, Sequence[Union[str, int]]]]]] = None,
    before: Optional[str] = None,
    skew: Optional[str] = None,
    output: Optional[PathLike] = None,
    machine: Optional[MachineLike] = None,
    compute: Optional[str] = None,
    recorded_on: Optional[MachineLike] = None,
    efficiency: Optional[Union[str, int, float]] = None,
    host: Optional[str] = None,
    launch: Optional[Literal['eager', 'graph', 'none']] = None,
    collectives: Optional[Literal['curves', 'algorithms']] = None,
    comm: Optional[Literal['model', 'captured', 'recorded']] = None,
    network: Optional[Literal['contention-free', 'ports', 'links', 'fair-sharing', 'exclusive']] = None,
    bandwidth: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    latency: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    map: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    fill_domains: Optional[bool] = None,
    stepwise: Optional[bool] = None,
    aggregate: Optional[bool] = None,
    lower_bound: Optional[bool] = None,
    custom: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    set: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    kernel: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    collective: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    slow: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
    jitter: Optional[str] = None,
    fail: Optional[Union[str, Sequence[str]]] = None,
    timeline: Optional[PathLike] = None,
    timeline_ranks: Optional[Union[str, Sequence[Union[str, int]]]] = None,
    timeline_from: Optional[str] = None,
    timeline_to: Optional[str] = None,
    fit: Optional[Literal['report', 'require']] = None,
    links: Optional[bool] = None,
    sensitivities: Optional[bool] = None,
    price: Optional[Union[str, int, float]] = None,
    total_tokens: Optional[Union[str, int, float]] = None,
    all_operators: Optional[bool] = None,
    stride: Optional[int] = None,
    seed: Optional[int] = None,
    nodes: Optional[int] = None,
    chains: Optional[int] = None,
    duration: Optional[str] = None,
    flops: Optional[int] = None,
    bytes: Optional[Union[str, int]] = None,
    dtype: Optional[Literal['fp64', 'fp32', 'tf32', 'fp16', 'bf16', 'fp8', 'fp4', 'int8']] = None,
    loads: Optional[int] = None,
    store: Optional[bool] = None,
    prefetch: Optional[bool] = None,
    in_switch: Optional[bool] = None,
    local: Optional[bool] = None,
    memory: Optional[str] = None,
    layers: Optional[int] = None,
    hidden: Optional[int] = None,
    tokens: Optional[int] = None,
    sequence: Optional[int] = None,
    steps: Optional[int] = None,
    reference_flops: Optional[Union[str, int, float]] = None,
    reference_bandwidth: Optional[str] = None,
    tensor: Optional[int] = None,
    micro_batch: Optional[int] = None,
    max_memory: Optional[Union[str, int]] = None,
    max_ratio: Optional[int] = None,
) -> Any:
    """Replays a traffic pattern on a machine, or writes its traces.

    Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

    Arguments:
        pattern: The pattern.
        kind: Operation of ``collective``, such as ``all-reduce``; traffic of ``p2p``; model of ``palm``.
        keep_nodes: Keep a row for each node, for ``Report.node_table()``; otherwise the table is made on demand.
        size: (collective, p2p) Buffer size of a rank (for all-gather and gather, the size of its shard); 0 for barrier
        ranks: (collective, p2p, chain, memory, data-parallel) Number of ranks
        group: (collective) Members of the process group in order, such as 0,2,4; all ranks by default
        count: (collective, p2p) Number of calls
        chained: (collective) Make each call depend on the previous call
        root: (collective) Root of the collective
        dimensions: (collective) Dimensions of the machine to use, such as 0,2 (0 is the innermost); all by default
        before: (collective) Compute time of each member before the collective
        skew: (collective) Extra compute time per rank index: rank r computes r times this time longer
        output: Write the traces to PREFIX.0.et, …, and PREFIX.job.json
        machine: Replay on this machine: preset (`chakram machine list`) or file
        compute: Compute model: recorded (without a recording: curves, else roofline), scaled:F (recorded times F),
            curves (measured, by class and shape), roofline (by FLOPs and bytes) or loopnest:gemmini-16 (default:
            recorded)
        recorded_on: Machine on which the kernels were recorded, or capture for the devices named in the capture; scales
            recorded times by the ratio of the machines' rooflines
        efficiency: Fraction of the peak rates that roofline kernels reach, up to 1
        host: Host timing: recorded, or scaled:F (recorded times F; below 1 is a faster host) (default: recorded)
        launch: How the machine's host launches kernels, collectives and messages, for traces without host work; by
            default eager if kernel times come from curves, else none. ``eager``: Each kernel and collective separately,
            at the machine's [host] costs; ``graph``: All work of a step together, like CUDA graphs; ``none``: Launches
            cost nothing
        collectives: How to time uncontended collectives; by default curves if kernels use curves. ``curves``: Measured
            times for the same number of NPUs, if the machine has them; ``algorithms``: By the machine's algorithms and
            links
        comm: How to time collectives and messages (default: model). ``model``: Simulated on the machine's network;
            ``captured``: As captured, including waiting; no rank waits for another; ``recorded``: Transfers as
            recorded; waiting is simulated
        network: Network contention model; by default the machine's own. ``contention-free``: No contention between
            operations; ``ports``: Operations share each NPU's port into a dimension; ``links``: Operations share every
            link of their routes; ``fair-sharing``: Messages in flight share all links of their routes, max-min fairly;
            ``exclusive``: A transfer occupies all links of its route from start to end
        bandwidth: Bandwidth of an NPU into each dimension of ``machine`` 'Ring(4)_Switch(2)': 250GB/s,50GB/s, or one
            for all
        latency: Latency of a link in each dimension of ``machine`` 'Ring(4)_Switch(2)': 500ns,1us, or one for all
        map: NPUs of ranks 0, 1, …, such as 0-3,8-11; by default rank r runs on NPU r
        fill_domains: Place ranks on all NPUs of each rack, even if the machine's jobs leave some free
        stepwise: Simulate every collective message by message, even if the analytical result is exact
        aggregate: Simulate one rank in place of several, as long as they do the same at the same time; fewer events,
            same result
        lower_bound: Give communication without size and recorded duration no time, instead of rejecting it
        custom: Custom algorithm for a kind of collective, from files PREFIX.0.et, …, one per member: all-reduce=ring8;
            repeatable
        set: Change the value of a key in the machine file: machine.dimension.nvlink.bandwidth=900GB/s; repeatable
        kernel: Change the time of kernels: '*flash*=0.5' (names), class:gemm=0.9, 'shape:gemm*k=4096=12us',
            'module:*mlp*=0.8' or op:aten::mm=2; a number is a factor; repeatable
        collective: Change the uncontended time of collectives by kind or name: all-reduce=0.5 or '*grad*=2ms'; a number
            is a factor; repeatable
        slow: Multiply the time of a rank's kernels by a factor: 3=1.2; repeatable
        jitter: Change each kernel's time at random by up to this spread, uniformly in both directions: 5% or 5%,seed=7
        fail: Make an NPU fail (3@2ms), which deadlocks its job, or a link (0-1@500us), which messages avoid; repeatable
        timeline: Write a timeline: FILE.pftrace for ui.perfetto.dev, or FILE.json for any viewer; add .gz to compress
            it
        timeline_ranks: Ranks in the timeline, such as 0-3,8
        timeline_from: Start of the timeline, such as 1.5ms
        timeline_to: End of the timeline
        fit: What to do if peak memory exceeds the NPU's capacity (default: report). ``report``: Warn in the report;
            ``require``: Warn, and exit with code 3
        links: Report the bytes and load of dimensions and links; this simulates collectives message by message
        sensitivities: Also report what faster kernels, collectives, host, and machine rates and latencies would gain,
            and the limits of these gains
        price: Dollars per NPU hour, such as 2.50; by default from the machine's file
        total_tokens: Also report the days, NPU hours, dollars and energy that a run of this many tokens takes, such as
            15T
        all_operators: In JSON and the table of operators, list each micro-batch's operators, mb*/…, instead of their
            sums
        stride: (p2p) Distance for `stride`: rank r sends to rank r + N
        seed: (p2p) Seed of the permutation for `random`
        nodes: (chain) Kernels per rank
        chains: (chain) Independent chains per rank, each on a separate lane
        duration: (chain, memory) Recorded duration of a kernel
        flops: (chain) FLOPs of a kernel, for the roofline
        bytes: (chain, memory) Memory traffic of a kernel, for the roofline
        dtype: (chain, data-parallel) Data type of a kernel, for the roofline
        loads: (memory) Loads per rank
        store: (memory) Store the same size after each load and kernel
        prefetch: (memory) Issue loads without waiting for kernels and stores
        in_switch: (memory) Gather loads and reduce stores in the switches
        local: (memory) Use the NPU's own memory; by default remote memory
        memory: (memory) Use the remote memory [remote_memories.NAME] of the machine file
        layers: (data-parallel) Layers of the model
        hidden: (data-parallel) Hidden size
        tokens: (data-parallel) Tokens per rank in each step
        sequence: (data-parallel) Sequence length in tokens; by default all tokens of a rank
        steps: (data-parallel) Training steps
        reference_flops: (data-parallel) Peak FLOP/s of the reference NPU for recorded durations
        reference_bandwidth: (data-parallel) Memory bandwidth of the reference NPU for recorded durations
        tensor: (palm) Tensor group size; the stage's 16 cores are divided into replicas of this size
        micro_batch: (palm) Samples per micro-batch, summed over all replicas; 1/20 of the batch by default
        max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
            container
        max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
            (default: 200)

    Raises:
        ChakramError: One of ``chakram.errors``; it says where the error is.
    """
    limits = _call.options(
        [
            ("--max-memory", max_memory, "size"),
            ("--max-ratio", max_ratio, "value"),
        ]
    )
    given = _call.options(
        [
            ("--size", size, "size"),
            ("--ranks", ranks, "value"),
            ("--group", group, "list"),
            ("--count", count, "value"),
            ("--chained", chained, "switch"),
            ("--root", root, "value"),
            ("--dimensions", dimensions, "list"),
            ("--before", before, "value"),
            ("--skew", skew, "value"),
            ("--output", output, "value"),
            ("--machine", machine, "value"),
            ("--compute", compute, "value"),
            ("--recorded-on", recorded_on, "value"),
            ("--efficiency", efficiency, "value"),
            ("--host", host, "value"),
            ("--launch", launch, "value"),
            ("--collectives", collectives, "value"),
            ("--comm", comm, "value"),
            ("--network", network, "value"),
            ("--bandwidth", bandwidth, "joined"),
            ("--latency", latency, "joined"),
            ("--map", map, "joined"),
            ("--fill-domains", fill_domains, "switch"),
            ("--stepwise", stepwise, "switch"),
            ("--aggregate", aggregate, "switch"),
            ("--lower-bound", lower_bound, "switch"),
            ("--custom", custom, "list"),
            ("--set", set, "list"),
            ("--kernel", kernel, "list"),
            ("--collective", collective, "list"),
            ("--slow", slow, "list"),
            ("--jitter", jitter, "value"),
            ("--fail", fail, "list"),
            ("--timeline", timeline, "value"),
            ("--timeline-ranks", timeline_ranks, "joined"),
            ("--timeline-from", timeline_from, "value"),
            ("--timeline-to", timeline_to, "value"),
            ("--fit", fit, "value"),
            ("--links", links, "switch"),
            ("--sensitivities", sensitivities, "switch"),
            ("--price", price, "value"),
            ("--total-tokens", total_tokens, "value"),
            ("--all-operators", all_operators, "switch"),
            ("--stride", stride, "value"),
            ("--seed", seed, "value"),
            ("--nodes", nodes, "value"),
            ("--chains", chains, "value"),
            ("--duration", duration, "value"),
            ("--flops", flops, "value"),
            ("--bytes", bytes, "size"),
            ("--dtype", dtype, "value"),
            ("--loads", loads, "value"),
            ("--store", store, "switch"),
            ("--prefetch", prefetch, "switch"),
            ("--in-switch", in_switch, "switch"),
            ("--local", local, "switch"),
            ("--memory", memory, "value"),
            ("--layers", layers, "value"),
            ("--hidden", hidden, "value"),
            ("--tokens", tokens, "value"),
            ("--sequence", sequence, "value"),
            ("--steps", steps, "value"),
            ("--reference-flops", reference_flops, "value"),
            ("--reference-bandwidth", reference_bandwidth, "value"),
            ("--tensor", tensor, "value"),
            ("--micro-batch", micro_batch, "value"),
        ]
    )
    line = ["generate", pattern, *limits, *given]
    if kind is not None:
        line += _call.inputs(kind, "kind")
    return _call.generated(line, machine, output, keep_nodes)


class ArchiveCommands:
    """Commands of the archive in the file or folder ``path``."""

    path: str

    def create(
        self,
        *,
        folder: Optional[bool] = None,
        max_memory: Optional[Union[str, int]] = None,
        max_ratio: Optional[int] = None,
    ) -> Result:
        """Creates the archive, empty.

        Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

        Arguments:
            folder: Create a folder instead of a file
            max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
                container
            max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
                (default: 200)

        Raises:
            ChakramError: One of ``chakram.errors``; it says where the error is.
        """
        line = ['archive', 'create']
        line += _call.options(
            [
                ("--folder", folder, "switch"),
                ("--max-memory", max_memory, "size"),
                ("--max-ratio", max_ratio, "value"),
            ]
        )
        line += _call.inputs(self.path, "archive")
        return _call.execute(line, Result)

    def add(
        self,
        traces: Union[PathLike, Sequence[PathLike]],
        *,
        name: Optional[str] = None,
        set: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
        with_: Optional[Union[PathLike, Sequence[PathLike]]] = None,
        level: Optional[Literal['plain', 'default', 'best']] = None,
        measured: Optional[PathLike] = None,
        replace: Optional[bool] = None,
        max_memory: Optional[Union[str, int]] = None,
        max_ratio: Optional[int] = None,
    ) -> Result:
        """Adds a job's traces, and the files stored with them, as a workload.

        Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

        Arguments:
            traces: A folder of traces, the prefix of files named PREFIX.RANK.et, or files
            name: Name of the workload; by default the name of the folder, file or prefix
            set: Metadata of the workload, such as gpu=h100; repeatable
            with_: Also store this file or folder, such as the capture that the traces come from; repeatable
            level: Compression level (default: default). ``plain``: Whole traces, which `zstd -d` can unpack; ``default``:
                Columns of times and ids, with fast compression; ``best``: Smallest archive, slow
            measured: Also store measured step times, from a file with one time per line: `12.3 ms`
            replace: Replace the workload of this name, but keep its recorded predictions
            max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
                container
            max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
                (default: 200)

        Raises:
            ChakramError: One of ``chakram.errors``; it says where the error is.
        """
        line = ['archive', 'add']
        line += _call.options(
            [
                ("--name", name, "value"),
                ("--set", set, "list"),
                ("--with", with_, "list"),
                ("--level", level, "value"),
                ("--measured", measured, "value"),
                ("--replace", replace, "switch"),
                ("--max-memory", max_memory, "size"),
                ("--max-ratio", max_ratio, "value"),
            ]
        )
        line += _call.inputs(self.path, "archive")
        line += _call.inputs(traces, "traces")
        return _call.execute(line, Result)

    def list(
        self,
        *,
        where: Optional[str] = None,
        max_memory: Optional[Union[str, int]] = None,
        max_ratio: Optional[int] = None,
    ) -> Result:
        """Lists workloads: ``workloads``.

        Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

        Arguments:
            where: Select only workloads that satisfy this condition
            max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
                container
            max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
                (default: 200)

        Raises:
            ChakramError: One of ``chakram.errors``; it says where the error is.
        """
        line = ['archive', 'list', '--format', 'json']
        line += _call.options(
            [
                ("--where", where, "value"),
                ("--max-memory", max_memory, "size"),
                ("--max-ratio", max_ratio, "value"),
            ]
        )
        line += _call.inputs(self.path, "archive")
        return _call.execute(line, Result)

    def baseline(
        self,
        *,
        machine: Union[MachineLike, Sequence[MachineLike]],
        reason: str,
        where: Optional[str] = None,
        threads: Optional[int] = None,
        max_memory: Optional[Union[str, int]] = None,
        max_ratio: Optional[int] = None,
    ) -> Result:
        """Records predictions of workloads.

        Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

        Arguments:
            machine: Machine to predict for: a name from `chakram machine list`, a file of the workload, or a file;
                repeatable
            reason: Reason why these predictions are right; stored in the archive
            where: Select only workloads that satisfy this condition, as for `archive list`
            threads: Number of replays that run at the same time; one per core by default
            max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
                container
            max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
                (default: 200)

        Raises:
            ChakramError: One of ``chakram.errors``; it says where the error is.
        """
        line = ['archive', 'baseline']
        line += _call.options(
            [
                ("--machine", machine, "list"),
                ("--reason", reason, "value"),
                ("--where", where, "value"),
                ("--threads", threads, "value"),
                ("--max-memory", max_memory, "size"),
                ("--max-ratio", max_ratio, "value"),
            ]
        )
        line += _call.inputs(self.path, "archive")
        return _call.execute(line, Result)

    def check(
        self,
        *,
        threshold: Optional[str] = None,
        machine: Optional[Union[str, Sequence[str], Mapping[str, Any]]] = None,
        where: Optional[str] = None,
        budget: Optional[str] = None,
        threads: Optional[int] = None,
        junit: Optional[PathLike] = None,
        html: Optional[PathLike] = None,
        max_memory: Optional[Union[str, int]] = None,
        max_ratio: Optional[int] = None,
    ) -> ArchiveCheck:
        """Predicts again; raises :class:`ThresholdError` if a prediction changed; its ``result`` says why.

        Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

        Arguments:
            threshold: Fail if a prediction changes by more than this percentage, up or down (default: 1%)
            machine: Use another file for a machine of the baselines, such as dgx-h100=new.toml; repeatable
            where: Select only workloads that satisfy this condition, as for `archive list`
            budget: Check only a selection that takes about this long and covers operators, groups, sizes, schemas and
                machines; the output lists the rest
            threads: Number of replays that run at the same time; one per core by default
            junit: Also write the verdict as JUnit XML
            html: Also write an HTML page that shows, for each changed prediction, its times before and now, the cause, and
                earlier baselines
            max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
                container
            max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
                (default: 200)

        Raises:
            ChakramError: One of ``chakram.errors``; it says where the error is.
        """
        line = ['archive', 'check', '--format', 'json']
        line += _call.options(
            [
                ("--threshold", threshold, "value"),
                ("--machine", machine, "list"),
                ("--where", where, "value"),
                ("--budget", budget, "value"),
                ("--threads", threads, "value"),
                ("--junit", junit, "value"),
                ("--html", html, "value"),
                ("--max-memory", max_memory, "size"),
                ("--max-ratio", max_ratio, "value"),
            ]
        )
        line += _call.inputs(self.path, "archive")
        return _call.execute(line, ArchiveCheck)

    def verify(
        self,
        *,
        max_memory: Optional[Union[str, int]] = None,
        max_ratio: Optional[int] = None,
    ) -> Result:
        """Reads every byte and compares it with its checksums.

        Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

        Arguments:
            max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
                container
            max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
                (default: 200)

        Raises:
            ChakramError: One of ``chakram.errors``; it says where the error is.
        """
        line = ['archive', 'verify']
        line += _call.options(
            [
                ("--max-memory", max_memory, "size"),
                ("--max-ratio", max_ratio, "value"),
            ]
        )
        line += _call.inputs(self.path, "archive")
        return _call.execute(line, Result)

    def gc(
        self,
        *,
        as_of: Optional[str] = None,
        drop: Optional[Union[str, Sequence[str]]] = None,
        dry_run: Optional[bool] = None,
        max_memory: Optional[Union[str, int]] = None,
        max_ratio: Optional[int] = None,
    ) -> Result:
        """Drops workloads whose retention is over, and data that no workload uses.

        Quantities are texts with units, such as ``"10 ms"`` or ``"50 GB/s"``; whole numbers are bytes if the argument is a size.

        Arguments:
            as_of: Today, as YYYY-MM-DD; workloads whose retention ended before this date are dropped
            drop: Drop this workload regardless of its retention; repeatable
            dry_run: Only print what would be dropped, and change nothing
            max_memory: Fail instead of using more memory; by default three quarters of the memory of the machine or
                container
            max_ratio: Reject a compressed input that unpacks to more than 16 MiB and to more than this many times its size
                (default: 200)

        Raises:
            ChakramError: One of ``chakram.errors``; it says where the error is.
        """
        line = ['archive', 'gc']
        line += _call.options(
            [
                ("--as-of", as_of, "value"),
                ("--drop", drop, "list"),
                ("--dry-run", dry_run, "switch"),
                ("--max-memory", max_memory, "size"),
                ("--max-ratio", max_ratio, "value"),
            ]
        )
        line += _call.inputs(self.path, "archive")
        return _call.execute(line, Result)

//! Converts arguments to a pattern.

use super::super::TraceOutputOrReplayArgs;
use super::{PalmSimulatorPaperModelArg, PatternArgs, TrafficPatternArg};
use chakram_trace::format::CollectiveKind;
use chakram_workloads::generate::{
    CollectivePattern, DataParallelTrainingJobParameters, LoadKernelStorePattern, P2pPattern,
    PalmPattern, ParallelKernelChainsPattern, TrafficPattern, WorkloadPattern,
};
use clap::ValueEnum;

impl PatternArgs {
    /// Returns the pattern that the user asked for, its name, and the destination of its traces.
    pub(in crate::generate) fn requested_pattern_name_and_destination(
        &self,
    ) -> Result<(WorkloadPattern, String, &TraceOutputOrReplayArgs), String> {
        Ok(match self {
            PatternArgs::Collective {
                kind,
                size,
                ranks,
                group,
                count,
                chained,
                root,
                dimensions,
                before,
                skew,
                target,
            } => {
                if *kind != CollectiveKind::Barrier && size.0 == 0 {
                    return Err(format!(
                        "--size: {kind} needs bytes, for example --size 64MiB"
                    ));
                }
                let mask = |list: &Vec<u32>| list.iter().fold(0, |mask, d| mask | 1 << d);
                let pattern = WorkloadPattern::Collective(CollectivePattern {
                    kind: *kind,
                    bytes: size.0,
                    ranks: *ranks,
                    group: group.clone(),
                    count: *count,
                    chained: *chained,
                    root: *root,
                    dimensions: dimensions.as_ref().map(mask),
                    before: *before,
                    skew: *skew,
                });
                (pattern, format!("{kind} of {size}"), target)
            }
            PatternArgs::P2p {
                traffic,
                size,
                ranks,
                count,
                stride,
                seed,
                target,
            } => {
                let shape = match traffic {
                    TrafficPatternArg::PingPong => TrafficPattern::PingPong,
                    TrafficPatternArg::Ring => TrafficPattern::Ring,
                    TrafficPatternArg::Stride => TrafficPattern::Stride(*stride),
                    TrafficPatternArg::Incast => TrafficPattern::Incast,
                    TrafficPatternArg::Pairs => TrafficPattern::Pairs,
                    TrafficPatternArg::Random => TrafficPattern::Random(*seed),
                };
                let pattern = WorkloadPattern::P2p(P2pPattern {
                    traffic: shape,
                    ranks: *ranks,
                    bytes: size.0,
                    count: *count,
                });
                let name = traffic.to_possible_value();
                let name = name.as_ref().map_or("messages", |value| value.get_name());
                (pattern, format!("{name} of {size}"), target)
            }
            PatternArgs::Chain {
                ranks,
                nodes,
                chains,
                duration,
                flops,
                bytes,
                dtype,
                target,
            } => {
                let pattern = WorkloadPattern::Chain(ParallelKernelChainsPattern {
                    ranks: *ranks,
                    nodes: *nodes,
                    chains: *chains,
                    duration: *duration,
                    flops: *flops,
                    bytes: bytes.0,
                    dtype: *dtype,
                });
                (pattern, "chain".to_owned(), target)
            }
            PatternArgs::Memory {
                ranks,
                bytes,
                loads,
                duration,
                store,
                prefetch,
                in_switch,
                local,
                memory,
                target,
            } => {
                let pattern = WorkloadPattern::Memory(LoadKernelStorePattern {
                    ranks: *ranks,
                    loads: *loads,
                    bytes: bytes.0,
                    local: *local,
                    memory: memory.clone(),
                    kernel: *duration,
                    store: *store,
                    in_switch: *in_switch,
                    prefetch: *prefetch,
                });
                (pattern, format!("loads of {bytes}"), target)
            }
            PatternArgs::DataParallel {
                ranks,
                layers,
                hidden,
                tokens,
                sequence,
                dtype,
                steps,
                reference_flops,
                reference_bandwidth,
                target,
            } => {
                let pattern = WorkloadPattern::DataParallel(DataParallelTrainingJobParameters {
                    ranks: *ranks,
                    layers: *layers,
                    hidden: *hidden,
                    tokens: *tokens,
                    sequence: sequence.unwrap_or(*tokens),
                    dtype: *dtype,
                    steps: *steps,
                    reference_flops: *reference_flops,
                    reference_bandwidth: *reference_bandwidth,
                });
                (pattern, format!("data-parallel, {layers} layers"), target)
            }
            PatternArgs::Palm {
                model,
                tensor,
                micro_batch,
                target,
            } => {
                let (name, layers, hidden, heads, batch) = match model {
                    PalmSimulatorPaperModelArg::T18b => ("T-18B", 40, 6144, 48, 1024),
                    PalmSimulatorPaperModelArg::T76b => ("T-76B", 60, 10240, 80, 1792),
                    PalmSimulatorPaperModelArg::T145b => ("T-145B", 80, 12288, 96, 2304),
                };
                let pattern = WorkloadPattern::Palm(PalmPattern {
                    layers,
                    hidden,
                    heads,
                    sequence: 2048,
                    batch,
                    micro_batch: micro_batch.unwrap_or(batch / 20),
                    tensor: *tensor,
                });
                (pattern, format!("{name} by PALM's rules"), target)
            }
        })
    }
}

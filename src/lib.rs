//! Replays machine-learning execution traces on hardware you do not have.
//!
//! The input is one graph of compute, memory and communication nodes per NPU, and a description of a machine. The
//! output is the time and the cause of every event. A job is usually read from trace files:
//!
//! ```
//! use chakram::{Job, Machine, engine::ReplayOptions};
//!
//! let job = Job::open_job(["traces/data-parallel-8"])?;
//! let report = job.replay_on(&Machine::load_by_name("dgx-h100")?, &ReplayOptions::default())?;
//! println!("{} ranks take {}", report.ranks, report.outcome.makespan);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Job::generate_job`] generates a job instead, and [`AstraSimJob`] reads a job from ASTRA-sim's inputs.
//!
//! - [`job`]: jobs, which come from files, from patterns or from ASTRA-sim's inputs, and their replay;
//! - [`machine`], [`topology`]: the simulated system;
//! - [`engine`]: the event loop, its ordering contract, and the options of a replay;
//! - [`extend`]: your own networks, memories, algorithms and kernel models;
//! - [`report`]: results of a replay;
//! - [`generate`], [`model`]: workloads that are generated instead of captured, and the models that they train;
//! - [`workload`]: the graphs of all ranks, combined into a workload;
//! - [`score`]: comparison of predictions with measured runs;
//! - [`serve`]: inference serving: requests over time on shared processors;
//! - [`astra_sim`]: the inputs of ASTRA-sim;
//! - [`trace`]: execution traces in files;
//! - [`validate`], [`inspect`]: defects of traces, and their contents;
//! - [`convert`], [`archive`]: conversion of PyTorch captures to traces, and many workloads in one file;
//! - [`diff`], [`edit`]: comparison and transformation of traces;
//! - [`sweep`]: studies with many points, and their best points;
//! - [`command`]: the program's commands, executed in your process;
//! - [`interrupt`], [`limits`]: stopping work from another thread, and memory limits;
//! - [`units`], [`ids`]: quantities, and typed indices.
//!
//! The library never prints; it returns data. `ARCHITECTURE.md` describes the structure of the library.

pub mod command;
pub mod extend;
#[doc(hidden)]
pub mod internals;

pub use chakram_hardware::machine::Machine;
pub use chakram_jobs::{AstraSimJob, Job};
pub use chakram_report::Report;

pub mod archive {
    //! Archives: many workloads in one file, each with metadata.
    //!
    //! ```no_run
    //! use chakram::archive::Archive;
    //!
    //! for name in Archive::open_archive("corpus.etz".as_ref())?.workloads().keys() {
    //!     println!("{name}");
    //! }
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_archive::{
        Archive, CompressionLevel, MetadataQuery, MetadataValue, Provenance,
        TraceSharedByRankRange, WorkloadEntry, WorkloadListingRow,
    };
}

pub mod astra_sim {
    //! The input files and flags of ASTRA-sim 2's analytical networks, with their names and units. An
    //! [`MisleadingValidInputNote`] marks each value that users may misunderstand.
    //!
    //! ```
    //! use chakram::astra_sim::{AstraFlags, QuirkSet};
    //! use chakram::{AstraSimJob, engine::ReplayOptions};
    //!
    //! let case = |name: &str| format!("traces/astra-sim-8/{name}").into();
    //! let mut flags = AstraFlags::new(case("all_reduce"), case("system.json"), case("network.yml"), case("memory.json"));
    //! let original = AstraSimJob::open_inputs(&flags)?.replay_for_report(&ReplayOptions::default())?;
    //! flags.quirks = QuirkSet::NONE;
    //! let corrected = AstraSimJob::open_inputs(&flags)?.replay_for_report(&ReplayOptions::default())?;
    //! println!("{} and {}", original.outcome.makespan, corrected.outcome.makespan);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_astra_sim::custom_algorithm;
    pub use chakram_astra_sim::{
        AlgorithmAndAllNpusAtOnceFlag, AlgorithmsPerCollectiveKind, AllReduceDecomposition,
        AnalyticalCongestionModel, AstraAlgorithm, AstraCollectiveBackend, AstraDimension,
        AstraFlags, AstraInputs, AstraNetworkFile, AstraRankGraphAndBinding, AstraSystemFile,
        AstraTraceGraphReader, ChunkSchedulingPolicy, CollectiveChunkPhase, CommGroupFile,
        CompletedNode, CongestionAwareModel, CongestionUnawareModel, CutThroughNetwork,
        EndlessWait, InputError, LinkCutThroughNetwork, LinkOrPortHop, LinkOrPortRouting,
        LogGpBusParams, MessageNpuAndRoutingState, MisleadingValidInputNote, NodeTypesById,
        PerCollectiveKind, PerNodeCustomAlgorithmPaths, PortCutThroughNetwork, Quirk, QuirkSet,
        RankTensors, RankWorkKindsAndKernelTime, RemoteMemoryFile, RemoteMemorySharing,
        RooflineMeans, TensorLifetimesAndAccesses, astra_kind_of_compute_node, build_machine,
    };
}

pub mod convert {
    //! Conversion of captures from PyTorch's profiler and execution trace observer.

    pub use chakram_converters::pytorch::files::{
        JobCaptureFiles, RankCaptureFiles, find_capture_pairs,
    };
    pub use chakram_converters::pytorch::summary::ConversionSummary;
    pub use chakram_converters::pytorch::{
        CaptureFileKind, ConvertOptions, EventCategory, HostKinetoMatchMethod, HostTrace,
        KinetoTrace, RankHostAndKineto, convert_capture_pairs, convert_in_memory_captures,
        sniff_file,
    };
    pub use chakram_trace::files::OutputsAndProtectedInputs;
}

pub mod diff {
    //! Comparison of two jobs. Compares either the jobs' replay reports or their traces. Node ids and the order of
    //! records do not matter.
    //!
    //! ```
    //! use chakram::diff::{RawTrace, compare_traces};
    //! use chakram::trace::DecompressedTraceFile;
    //!
    //! let files = ["traces/data-parallel-8/job.0.et", "traces/data-parallel-8/job.1.et"];
    //! let [a, b] = files.map(|file| DecompressedTraceFile::open_as_current_schema(file.as_ref()).expect("it is there"));
    //! let (a, b) = (RawTrace::read_trace(a.as_slice()), RawTrace::read_trace(b.as_slice()));
    //! assert!(compare_traces(&a, &b).is_empty());
    //! ```

    pub use chakram_analysis::diff::{
        AddedOrRemovedDependency, AmountChange, ChangedNode, DiffTally, NodeField, NodeFieldChange,
        NodeFieldValue, RawTrace, StructureTimeOrBytesAspect, TimeTolerance, TraceDiff,
        compare_traces,
    };
}

pub mod edit {
    //! Transforms traces into other traces, and lists the private information in traces.
    //!
    //! ```
    //! use chakram::edit::TraceAnonymiser;
    //! use chakram::trace::DecompressedTraceFile;
    //!
    //! let contents = DecompressedTraceFile::open_as_current_schema("traces/data-parallel-8/job.0.et".as_ref())?;
    //! let (_, done) = TraceAnonymiser::new(b"nobody knows it", true, Vec::new()).anonymise_trace(contents.as_slice())?;
    //! assert!(done.hashed > 0);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_analysis::edit::{
        AnnotationStepOrIdSelector, AnonymiserCounts, JobCommunication, JobScaler, KeptNodesOfRank,
        RankGridDimensions, RankSliceSummary, ScaledDimension, ShardedBufferKeptSize,
        TraceAnonymiser, TracePrivateStringFindings, name_matches_pattern,
    };
}

pub mod engine {
    //! The replay: one event loop over one agenda.
    //!
    //! ```
    //! use chakram::engine::ReplayOptions;
    //! use chakram::{Job, Machine};
    //!
    //! let (job, machine) = (Job::open_job(["traces/data-parallel-8"])?, Machine::load_by_name("dgx-h100")?);
    //! let closed = job.replay_on(&machine, &ReplayOptions::default())?;
    //! let options = ReplayOptions::default_with_changes(|options| options.stepwise = true);
    //! let stepwise = job.replay_on(&machine, &options)?;
    //! assert_eq!(stepwise.outcome.makespan, closed.outcome.makespan);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```
    //!
    //! A [`LaunchFeed`] decides when to launch each program:
    //!
    //! ```
    //! use chakram::engine::{CompiledReplay, LaunchFeed, ReplayOptions, TimedLaunchFeed, run_launches};
    //! use chakram::units::{Span, Time};
    //! use chakram::{Job, Machine};
    //!
    //! let (job, machine) = (Job::open_job(["traces/data-parallel-8"])?, Machine::load_by_name("dgx-h100")?);
    //! let program = CompiledReplay::new(job.workload(), &machine, &ReplayOptions::default())?;
    //! let once = program.run(())?.0.makespan;
    //! // Again when it has ended.
    //! let again = Time::ZERO + once;
    //! let mut feed = TimedLaunchFeed::new(0, vec![Time::ZERO, again]);
    //! let outcome = run_launches(&[program], &mut [&mut feed], None, &mut ())?;
    //! assert_eq!(outcome.makespan, once + once);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_base::setting::{EnumeratedSetting, SettingKey};
    pub use chakram_engine::{
        CollectiveCurvesOrAlgorithms, CollectiveRecord, CommunicationDurationSource,
        CompiledReplay, CompletedReplayTotals, CopyRepresentsJobChecker, CriticalPathSegment,
        DurationSourceCounts, Engine, EventAndTileGroupCounts, EventOrderDiscipline,
        FeedLaunchAndRankStartRequests, FirstTileGroupDivergence, HostDurationSource,
        HostLaunchMode, InstanceId, KernelDurationModel, KernelDurationSource, LaunchFeed,
        LaunchKernelDurationSource, LaunchRankReleaseMode, LaunchRequest, LaunchSerial,
        NetworkModel, NeverCompletedNode, NodeRef, NpuTimeCategory, Observer, PlacedWorkloadGroup,
        ProcessorJobStartAndEnd, ProcessorKernelJob, ProgramLaunchRecord, RepeatedLaunchFeed,
        ReplacementKernelAndMemoryModels, ReplacementMemoryModel, ReplayError, ReplayGroupId,
        ReplayOptions, ReplayRefusal, RequiredCollectiveBackendTraits, RooflinePeakFraction,
        SelfSchedulingProcessorModel, SingleLaunchFeed, Stuck, TimedLaunchFeed,
        TrainingStepStartAndEnd, UnusableOptionReason, place_ranks, replay_one_copy_or_all_ranks,
        run_launches,
    };
    pub use chakram_engine::{
        CollectiveDurationChange, DurationAdjustment, DurationChangeEffect, EffectsOfOneFailure,
        KernelDurationChange, KernelJitter, RequestedDurationChanges,
    };
}

pub mod generate {
    //! Generates microbenchmarks and training steps. The generators write nodes to a file, or add them to a graph in
    //! memory.
    //!
    //! ```
    //! use chakram::generate::{CollectivePattern, WorkloadPattern};
    //! use chakram::trace::CollectiveKind;
    //! use chakram::{Job, Machine, engine::ReplayOptions};
    //!
    //! let collective = CollectivePattern::new(CollectiveKind::AllReduce, 1 << 30, 8);
    //! let job = Job::generate_job(WorkloadPattern::Collective(collective))?;
    //! let report = job.replay_on(&Machine::load_by_name("dgx-h100")?, &ReplayOptions::default())?;
    //! assert_eq!(report.outcome.nodes, 8);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_workloads::generate::plan::{
        AblationEffect, AdapterSums, AttentionKernel, BranchOrder, BucketPolicy, ContextExchange,
        ExpertCapacityFactor, ExpertExchangeForm, ExpertProducts, ExpertRoutingBalance,
        OffloadGather, OffloadedState, OperatorNamePattern, OperatorPatternDegrees, Optimizer,
        RecomputePolicy, ZeroStage,
    };
    pub use chakram_workloads::generate::schedule::{PipelineSchedule, StagePassOrders};
    pub use chakram_workloads::generate::sharding::OperatorAxisShardCounts;
    pub use chakram_workloads::generate::training::PlanSummary;
    pub use chakram_workloads::generate::{
        CheckedWorkloadPattern, CollectivePattern, DataParallelTrainingJobParameters,
        LoadKernelStorePattern, ModelAndParallelismPlan, P2pPattern, PalmPattern,
        ParallelKernelChainsPattern, ParallelismPlan, PatternOptionError, TrafficPattern,
        WorkloadPattern,
    };
}

pub mod ids {
    //! Typed indices: an index of one kind (such as a rank) cannot be used as an index of another kind.
    //!
    //! ```
    //! use chakram::ids::{Npu, Rank};
    //!
    //! assert_eq!(Rank(3).index(), Npu(3).index());
    //! ```

    pub use chakram_base::ids::{
        EndpointId, GraphId, GroupId, MAX_NPUS, NodeIndex, Npu, Rank, format_numbers_as_ranges,
    };
}

pub mod inspect {
    //! Inspects a trace or a job: counts and times by type, lane, group, peer and operator; single nodes with their
    //! neighbours; and the critical path of the recorded run.
    //!
    //! ```
    //! use chakram::inspect::{NodeFilter, inspect_job};
    //! use chakram::trace::discover_traces;
    //!
    //! let files = discover_traces("traces/data-parallel-8".as_ref())?;
    //! let job = inspect_job(&files, &NodeFilter::default(), 1)?;
    //! assert_eq!(job.ranks.len(), 8);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_analysis::inspect::{
        AttributeFilter, CountedFault, CriticalPath, InspectedNodeType, InspectedRankTrace,
        JobInspectionSummary, LaneKey, NameGlobOrSubstring, NearbyPredecessorsOrSuccessors,
        NodeAtDistance, NodeFilter, NodeLaneTable, NodeNeighbourhood, NodeRow,
        NodeStartTimesSource, NodeSums, NodeTypeFilter, NodeWithAllFields, PathDelayWaitWorkTotals,
        PathSegment, RECEIVED, RankInspectionSummary, RankNodeTimes, RankSet,
        RankSumsAndExtremesByKey, RankTimesForCriticalPath, RejectedAndRepairedFaults, SENT,
        SumOverRanksAndExtremeRanksRow, TraceMetadataRecord, UnfilteredRankTraceTotals,
        critical_path, for_each_in_order, group_label, inspect_job, inspect_job_with_progress,
        sum_path_time_by_key,
    };
}

pub mod interrupt {
    //! Stops running work from another thread; the work then returns an error.
    //!
    //! ```
    //! use chakram::engine::{ReplayError, ReplayOptions};
    //! use chakram::interrupt::{StopToken, run_with_token};
    //! use chakram::{Job, Machine};
    //!
    //! let (job, machine) = (Job::open_job(["traces/data-parallel-8"])?, Machine::load_by_name("dgx-h100")?);
    //! let token = StopToken::default();
    //! token.request_stop();
    //! let result = run_with_token(Some(token), || job.replay_on(&machine, &ReplayOptions::default()));
    //! assert!(matches!(result, Err(ReplayError::Interrupted(_))));
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_base::interrupt::{
        StopOrMemoryInterruption, StopToken, current_token, fail_if_stopped_or_out_of_memory,
        run_with_token, wrap_with_current_token,
    };
}

pub mod job {
    //! Jobs, ready to be replayed: from files, from a pattern, or from ASTRA-sim's inputs.
    //!
    //! ```
    //! use chakram::engine::ReplayOptions;
    //! use chakram::job::Job;
    //!
    //! let job = Job::open_job(["traces/data-parallel-8"])?;
    //! let machine = chakram::machine::Machine::load_by_name("dgx-h100")?;
    //! let report = job.replay_on(&machine, &ReplayOptions::default())?;
    //! assert_eq!(report.ranks, 8);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```
    //!
    //! ```
    //! use chakram::astra_sim::AstraFlags;
    //! use chakram::engine::ReplayOptions;
    //! use chakram::job::AstraSimJob;
    //!
    //! let case = |name: &str| format!("traces/astra-sim-8/{name}").into();
    //! let flags = AstraFlags::new(case("all_reduce"), case("system.json"), case("network.yml"), case("memory.json"));
    //! let report = AstraSimJob::open_inputs(&flags)?.replay_for_report(&ReplayOptions::default())?;
    //! assert_eq!(report.ranks, 8);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_jobs::{
        AstraSimJob, CustomCollectiveAlgorithmFiles, EditedMachineFileValue, GivenSetting, Job,
        JobLoadOptions, JobLoadOrWriteError, LoadProgressFn, RunInputsWithoutSetting,
        list_values_changed_from_machine_preset, load_custom_algorithms,
        note_settings_without_effect, replay_workload,
    };
}

pub mod limits {
    //! Memory limit of the process. [`CountingAllocator`] counts the allocated bytes.
    //!
    //! ```
    //! use chakram::limits;
    //! use chakram::units::Bytes;
    //!
    //! let before = limits::set_memory_limit(Bytes(1 << 30));
    //! assert_eq!(limits::memory_limit(), Bytes(1 << 30));
    //! limits::set_memory_limit(before);
    //! ```

    pub use chakram_base::bounds::allocator::{CountingAllocator, allocated_bytes};
    pub use chakram_base::bounds::{
        MemoryLimitError, default_memory_limit, memory_limit, set_memory_limit,
    };
    pub use chakram_base::interrupt::keep_process_alive_at_memory_limit;
}

pub mod machine {
    //! The simulated system. Every [`Machine`] is validated when it is created.
    //!
    //! ```
    //! use chakram::machine::Machine;
    //!
    //! let machine = Machine::load_by_name("dgx-h100x2")?;
    //! assert_eq!(machine.topology().npu_count(), 16);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_hardware::collective::{
        ChunkCountOrderAndOverlap, CollectiveAlgorithm, CollectiveCurve, DimensionAlgorithmChoice,
        DimensionVisitOrder, FittedCollectiveProtocol, NamedScriptedAlgorithm,
        WaitingChunkPriority,
    };
    pub use chakram_hardware::compute::{
        AttentionSizes, LongGemmPowerLimitSlowdown, PeakRatesByFormat,
    };
    pub use chakram_hardware::machine::{
        FailedNpuOrNamedLinks, FailedPartAndTime, Host, HostBlockingOperations, Machine,
        MachineError, MachinePreset, NpuClass, PRESETS, PassKernelTimeCorrection,
        PresetOrMachineFileText, find_machine_text, is_inline_machine_notation,
        is_inline_notation_without_rates, is_machine_file_path, is_preset, load_for_ranks,
        read_preset_text, scale_machine_name_to_ranks,
    };
    pub use chakram_hardware::memory::{LocalMemory, MemoryAttachment, RemoteMemory};
    pub use chakram_hardware::network::SendCompletionRule;
}

pub mod model {
    //! Models: networks of layers, independent of the number of NPUs that run them.
    //!
    //! ```
    //! use chakram::model::Model;
    //!
    //! let model = Model::load_named("gpt2-xl")?;
    //! assert_eq!(model.parameter_count() / 1_000_000, 1_557);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_workloads::model::{
        ActivationFunction, AttentionSpan, DividingDegreeOrReason, ExpertScoringAndGroupRule,
        ExtendedTransformerModel, FormatDependentElementBytes, ImageWindowStrideAndPadding,
        LatentAttentionSizes, LayerOperator, LayerRole, MemoryBoundKernelSpec,
        MemoryBoundKernelsByPass, Model, ModelDefinitionForm, ModelError, ModelLayer, ModelPreset,
        ModelWithDefinitionProperties, OperatorAxesAndTensorsSpec, OperatorInputSource,
        OperatorKernelSpec, OperatorKind, OperatorShardAxis, OperatorTensorParallelSplit,
        OperatorTokenExchangeSide, OutputHead, PRESETS, PositionEncoding, PresetOrModelFileText,
        TensorAxis, TensorContraction, TensorKeptForBackward, TotalAndChosenExpertCounts,
        TrainedOperatorWeights, TransformerBlock, TransformerModel, VisionTransformer,
        WeightsOfOneGradientTensor, WhichAttentionKernelsSaveTensor,
    };
}

pub mod report {
    //! Results of a replay: observers, and the report that they fill.
    //!
    //! ```
    //! use chakram::{Job, Machine, engine::ReplayOptions};
    //!
    //! let job = Job::open_job(["traces/data-parallel-8"])?;
    //! let report = job.replay_on(&Machine::load_by_name("dgx-h100")?, &ReplayOptions::default())?;
    //! for row in &report.rows {
    //!     println!("rank {}: {}", row.rank, report.outcome.makespan);
    //! }
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```
    //!
    //! The node table has one row per node, in the column layout of Apache Arrow:
    //!
    //! ```
    //! use chakram::engine::{CompiledReplay, ReplayOptions};
    //! use chakram::report::replay_to_report_with_nodes;
    //! use chakram::{Job, Machine};
    //!
    //! let (job, machine) = (Job::open_job(["traces/data-parallel-8"])?, Machine::load_by_name("dgx-h100")?);
    //! let prepared = CompiledReplay::new(job.workload(), &machine, &ReplayOptions::default())?;
    //! let (report, nodes, ()) = replay_to_report_with_nodes(&prepared, ())?;
    //! assert_eq!(nodes.len() as u64, report.outcome.nodes);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_report::node_table::{
        CodedTextColumn, NodeColumnValues, OptionalNumberColumn, StartCause,
    };
    pub use chakram_report::{
        BreakdownObserver, CollectiveObserver, CollectiveRecord, ComparedMachineResult,
        CriticalPathSegment, CriticalPathSummary, HashedInput, MachineComparison, MachineResult,
        MemoryPeakObserver, NodeSpan, NodeSpanRecorder, NodeTable, NpuMemoryUseRow,
        NpuTimeCategory, Observer, OperatorTimeObserver, PictureRecorder, RankBusyTime,
        RankBusyTimeObserver, ReplayPictures, Report, Throughput, TimelineFormat,
        TimelineSelection, TimelineWriter, WaitingAndTransferTime, attach_neighbour_reports,
        replay_folded, replay_launched_programs, replay_to_report, replay_to_report_with_nodes,
        replay_with_network_and_collective_models, report_csv, report_text,
    };
    pub use chakram_report::{compare, csv, edits, json, sensitivity, settings, text};
}

pub mod score {
    //! Compares predictions with measured runs: the errors of predictions, and whether predictions rank plans in the
    //! measured order.

    pub use chakram_studies::score::{
        ConstantsFittedOutsideFold, FittedConstant, MeanGemmTimeByShape, MeasuredRun,
        OneKernelRecordedTimesBySize, PredictedStepTimeWithInterval, PredictionErrorSummary,
        PredictionIntervalSummary, RecordedKernelTimes, RunColumnRules, RunTable, ScoreError,
        StepGroupKernelTimeCorrection, assign_folds, fit_step_corrections_by_product_shapes,
        gemm_errors_without_and_with_other_points, mean_leave_one_out_prediction_error,
        parse_mean_gemm_times, parse_nccl_log, predict_runs_by_fitting_other_folds,
        predict_runs_in_table_order, predict_times_by_one_flop_rate, scale_machine_constants,
    };
}

pub mod serve {
    //! Inference serving: requests arrive over time, wait and are served. The result is the latency of each request.
    //!
    //! ```
    //! use chakram::serve::{NoRequestObserver, Platform, Scenario, RequestServeTimeLimitOption, serve_requests};
    //! use std::path::Path;
    //!
    //! let text = r#"
    //!     name = "one core"
    //!     [[model]]
    //!     name = "m"
    //!     latency = "1 ms"
    //!     [stream]
    //!     arrivals = "periodic"
    //!     rate = 500.0
    //!     [stop]
    //!     requests = 100
    //! "#;
    //! let scenario = Scenario::parse(text, "example.toml", Path::new("."))?;
    //! let report = serve_requests(&scenario, None, RequestServeTimeLimitOption::default(), &mut NoRequestObserver)?;
    //! assert_eq!(report.row_of_all_models().unwrap().mean.unwrap().value.to_string(), "1.000 ms");
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_serving::{
        ArrivalPattern, ArrivalRateInRequestsOrBytes, ArrivalRateResult, ArrivalRateSweepResults,
        CompletedRequest, ConvolutionDivisionIntoVectorProducts, CoreCountAndClock,
        CountOverTimeSummary, EqualVectorProductTasks, GraphOfVectorProductJobs,
        InterpolatedDurationCurve, IntervalEstimate, MeasuredModelMeanLatencies,
        MeasurementGroupMeanTimes, MeasurementImportDefaults, ModelWorkAndDeadlineLocations,
        NoRequestObserver, OperatorToJobLoweringRules, PRESETS, Platform, PlatformFacts,
        PlatformPreset, RequestGroupKind, RequestGroupResultsRow, RequestJobFromTraces,
        RequestObserver, RequestServeTimeLimitOption, RequestTimelineWriter, RequestWork,
        RequestedModel, RunStopRule, Scenario, ServeCapacity, ServeError, ServeReport, ServedJob,
        ServiceOrderAndSlots, ServicePolicyWithParameters, SummedServeTimeParts, WideTimeSum,
        compare, find_capacity, format_platform_file, html, llm, read_measurement_group_means,
        read_platform_text, rows, serve_requests, sweep_rates, text,
    };
}

pub mod sweep {
    //! Studies: replay each point along some axes once, and rank the points.
    //!
    //! ```
    //! use chakram::sweep::{StudyExplorer, SweepThreadAndShardOptions, SweepTable, load_study_with_hash};
    //! use std::num::NonZeroUsize;
    //!
    //! let folder = std::env::temp_dir().join("chakram-example-study");
    //! std::fs::create_dir_all(&folder)?;
    //! let file = folder.join("study.toml");
    //! std::fs::write(&file, r#"
    //!     name = "which machine"
    //!     objective = "time"
    //!     strategy = "grid"
    //!     [base]
    //!     model = "gpt2-small"
    //!     tokens = 256
    //!     plan.data = 8
    //!     plan.batch = 8
    //!     compute = "roofline"
    //!     [[axis]]
    //!     key = "machine"
    //!     values = ["dgx-a100", "dgx-h100"]
    //! "#)?;
    //! let (study, _) = load_study_with_hash(&file)?;
    //! let options = SweepThreadAndShardOptions { threads: NonZeroUsize::MIN, shard: None, is_closed: false };
    //! let rows = StudyExplorer::new(&study, options, None, Vec::new(), &|_| {})?.visit_points_and_return_rows()?;
    //! let table = SweepTable::new(&study, rows, &[]);
    //! assert_eq!(table.ranked_rows().len(), 2);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_studies::sweep::{
        JournaledBoundOrAnswer, ModelOrTracesArgument, NewAnswerOrBoundEvent,
        NewBoundAndReplayCounts, PointCommand, PointEvaluator, RESULTS, SearchLayerTurnRecord,
        Settings, Study, StudyError, StudyExplorer, StudyShard, SweepError, SweepJournal,
        SweepTable, SweepThreadAndShardOptions, compare_row_with_neighbours, load_study_with_hash,
        render_sweep_page,
    };
}

pub mod topology {
    //! Positions of NPUs and the paths between them, which do not depend on load and time.
    //!
    //! ```
    //! use chakram::topology::{TopologyDimension, DimensionShape, Topology};
    //!
    //! let dimension = TopologyDimension {
    //!     name: "nvlink".to_owned(),
    //!     shape: DimensionShape::Switch,
    //!     size: 8,
    //!     bandwidth: "450 GB/s".parse()?,
    //!     latency: "500 ns".parse()?,
    //! };
    //! let topology = Topology::new(vec![dimension]).expect("it has NPUs, and not too many");
    //! assert_eq!(topology.npu_count(), 8);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_hardware::topology::{
        DieAndCoreLayout, DimensionShape, LineSendPattern, MemoryAtNpuOrFabric, MemorySiteAndLink,
        PathLatencyAndRates, SwitchingMode, Topology, TopologyDimension, chip_graph, link_graph,
        tile_grid,
    };
}

pub mod trace {
    //! Execution traces in files: nodes, their operations, and their encodings.
    //!
    //! ```
    //! use chakram::trace::{NodeView, Op, Sink, TraceWriter};
    //! use chakram::validate::TraceDefectsAndDigest;
    //!
    //! let kernel = |flops| Op::Compute { flops, bytes: 0, dtype: None };
    //! let mut writer = TraceWriter::new(Vec::new())?;
    //! writer.receive_node(&NodeView::new(1, "forward", kernel(1_000)), &[])?;
    //! writer.receive_node(&NodeView::new(2, "backward", kernel(2_000)), &[1])?;
    //! let file = writer.into_unflushed_sink();
    //! assert_eq!(TraceDefectsAndDigest::check_trace(&file, Default::default(), 1).node_count(), 2);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_trace::format::file::{MaybeCompressedWriter, TraceFinder, decompress_bytes};
    pub use chakram_trace::format::split_sizes::{AllToAllSplitText, format_size_list};
    pub use chakram_trace::format::write::{AttributeValue, NamedAttribute, NodeFieldsBeyondView};
    pub use chakram_trace::format::{
        CollectiveKind, DecompressedTraceFile, Dtype, FoundTraces, GroupName, KernelShape,
        KernelShapeError, MemoryBoundKernelClass, MemoryLocation, NodeMemoryChanges,
        NodePhaseStageLayerAndShapes, NodeView, Op, RankFile, SchemaGeneration, Sink, TensorClass,
        TraceError, TraceErrorLocation, TraceHashVerificationLevel, TraceWriter, TrainingPhase,
        append_name_family, discover_traces, escape_and_shorten_name, escape_control_characters,
        is_harmful_character, replace_micro_batch_number_by_star,
    };
}

pub mod units {
    //! Quantities with their units. Only this module rounds quantities.
    //!
    //! ```
    //! use chakram::units::{Bandwidth, Bytes, Span};
    //!
    //! let bandwidth: Bandwidth = "50 GB/s".parse()?;
    //! assert_eq!(bandwidth.bytes_per_second(), 50e9);
    //! assert_eq!("1 GiB".parse::<Bytes>()?, Bytes(1 << 30));
    //! assert_eq!("500 ns".parse::<Span>()?, Span::from_ns(500));
    //! # Ok::<(), chakram::units::QuantityError>(())
    //! ```

    pub use chakram_base::units::{
        Bandwidth, Bytes, FlopRate, Frequency, QuantityError, Span, SummedSecondsPerByte, Time,
        UnroundedBufferShare, UnroundedTimeEstimate, format_count_with_noun, format_thousands,
    };
}

pub mod validate {
    //! Validates traces before a replay.
    //!
    //! ```
    //! use chakram::trace::DecompressedTraceFile;
    //! use chakram::validate::TraceDefectsAndDigest;
    //!
    //! let contents = DecompressedTraceFile::open_as_current_schema("traces/data-parallel-8/job.0.et".as_ref())?;
    //! let trace = TraceDefectsAndDigest::check_trace(contents.as_slice(), Default::default(), 10);
    //! assert_eq!(trace.defect_log().count_by_severity().errors, 0);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_analysis::validate::{
        Defect, DefectCountsBySeverity, DefectKind, DefectLocationInFile, DefectLog, Severity,
        TraceDefectsAndDigest, ValidateOptions, ValidatedTraceFile, ValidationReport,
        ValidationTextStyles, to_json, to_text, validate_job,
    };
}

pub mod workload {
    //! Workloads: the graphs of all ranks, built or read from files.
    //!
    //! ```
    //! use chakram::engine::{CompiledReplay, ReplayOptions};
    //! use chakram::ids::Rank;
    //! use chakram::machine::Machine;
    //! use chakram::trace::{NodeView, Op, Sink};
    //! use chakram::units::{Span, Time};
    //! use chakram::workload::{EnforcedDependencyKinds, GraphBuilder, MissingRankPolicy, WorkloadBuilder};
    //!
    //! let op = Op::Compute { flops: 0, bytes: 0, dtype: None };
    //! let kernel = |id, name, ns| NodeView { recorded: Span::from_ns(ns), ..NodeView::new(id, name, op) };
    //! let mut ranks = WorkloadBuilder::default();
    //! for rank in 0..2 {
    //!     let mut graph = GraphBuilder::new(rank, EnforcedDependencyKinds::Both, 2);
    //!     graph.receive_node(&kernel(1, "forward", 1_000), &[])?;
    //!     graph.receive_node(&kernel(2, "backward", 2_000), &[1])?;
    //!     let (graph, slots) = graph.finish_graph()?;
    //!     let graph = ranks.add_or_reuse_equal_graph(graph);
    //!     ranks.add_rank(Rank(rank), graph, slots, Time::ZERO)?;
    //! }
    //! let workload = ranks.finish_workload(None, MissingRankPolicy::Refuse)?;
    //! let machine = Machine::load_by_name("dgx-h100")?;
    //! let (outcome, ()) = CompiledReplay::new(&workload, &machine, &ReplayOptions::default())?.run(())?;
    //! assert_eq!(outcome.nodes, 4);
    //! # Ok::<(), Box<dyn std::error::Error>>(())
    //! ```

    pub use chakram_trace::graph::{
        DeclaredGroups, EnforcedDependencyKinds, Graph, GraphBuilder, GraphRepairCounts,
        GroupRoles, Lane, NodeKind, RankBindingsOfGraphSlots,
    };
    pub use chakram_trace::workload::{
        MissingRankPolicy, Workload, WorkloadBuilder, WorkloadError,
    };
}

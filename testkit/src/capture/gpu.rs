//! Writes the parts of Kineto's file other than host operators: head and tail, runtime calls, and
//! streams.

use super::kineto::KinetoFileWriter;
use super::out::number_placeholder_value_in_step;
use super::program::{CopyDirection, ProgramKernel};
use super::records::{RuntimeCallOrGpuRecord, StepRecords};
use super::simulate::{COMPUTE, RuntimeCall, StreamWork};
use super::{Device as Kind, step};
use std::io::{Result, Write};

/// Writes everything before the first event, and the names of processes and threads.
pub(super) fn write_file_head_and_thread_names(
    file: &mut KinetoFileWriter<'_, impl Write>,
    rank: u32,
) {
    let options = &file.capture.options;
    let cuda = options.device == Kind::Cuda;
    let mut configs = Vec::new();
    for group in file.capture.layout.groups_of(rank) {
        configs.push(format!(
            "{{\"pg_name\": \"{}\", \"pg_desc\": \"{}\", \"backend_config\": \"{}\", \
             \"pg_size\": {}, \"ranks\": {:?}}}",
            group.name,
            group.description,
            options.device.list_backends(),
            group.ranks.len(),
            group.ranks
        ));
    }
    let count = file.capture.layout.groups.len();
    let (backend, version) = match cuda {
        true => ("nccl", ", \"nccl_version\": \"2.26.2\""),
        false => ("gloo", ""),
    };
    let devices = match cuda {
        true => {
            "\n      {\"id\": 0, \"name\": \"NVIDIA H100 80GB HBM3\", \"totalGlobalMem\": 85018279936,\n      \
                 \"computeMajor\": 9, \"computeMinor\": 0,\n      \
                 \"maxThreadsPerBlock\": 1024, \"maxThreadsPerMultiprocessor\": 2048,\n      \
                 \"regsPerBlock\": 65536, \"warpSize\": 32,\n      \
                 \"sharedMemPerBlock\": 49152, \"numSms\": 132,\n      \
                 \"regsPerMultiprocessor\": 65536, \"sharedMemPerBlockOptin\": 232448,\n      \
                 \"sharedMemPerMultiprocessor\": 233472}\n    "
        }
        false => "",
    };
    // With a clock skew, each rank has its own host, because the ranks of one host share a clock.
    let host = match options.clock_skew {
        0 => "vm".to_owned(),
        _ => format!("vm{rank}"),
    };
    let text = format!(
        " {{\n    \"schemaVersion\": 1,\n    \"deviceProperties\": [{devices}],\n    \n      \
         \"trace_id\": \"89AFF0FF21ED46CD95D3{:012X}\",\n      \"record_shapes\": 1,\n      \
         \"distributedInfo\": {{\"backend\": \"{backend}\", \"rank\": {rank}, \"world_size\": {}, \
         \"pg_count\": {count}, \"pg_config\": [{}]{version}}},\n      \"host_name\": \"{host}\",\n    \
         \"displayTimeUnit\": \"ms\",\n    \"baseTimeNanoseconds\": {},\n    \
         \"traceEvents\": [\n    \n",
        rank,
        options.ranks,
        configs.join(", "),
        super::BASE,
    );
    file.out.write_str(&text);
    let pid = file.pid;
    let name = |file: &mut KinetoFileWriter<'_, _>, what, tid: u64, key: &str, value: String| {
        write_metadata_event(file, what, pid, tid, key, &value);
    };
    name(file, "process_name", 0, "name", "\"python\"".to_owned());
    name(file, "process_labels", 0, "labels", "\"CPU\"".to_owned());
    name(file, "process_sort_index", 0, "sort_index", pid.to_string());
    let axes = if options.tensor_parallel > 1 { 2 } else { 1 };
    let workers = if cuda { 0 } else { 2 * axes };
    let autograd = u8::from(cuda);
    let threads = (0..1 + autograd).map(|thread| (thread, "python"));
    for (thread, title) in threads.chain((2..2 + workers).map(|t| (t, "pt_gloo_runloop"))) {
        let tid = file.thread_id(thread);
        let label = format!("\"thread {tid} ({title})\"");
        write_metadata_event(file, "thread_name", pid, tid, "name", &label);
        write_metadata_event(
            file,
            "thread_sort_index",
            pid,
            tid,
            "sort_index",
            &tid.to_string(),
        );
    }
    if !cuda {
        return;
    }
    let device = u64::from(rank % 8);
    write_metadata_event(file, "process_name", device, 0, "name", "\"python\"");
    write_metadata_event(
        file,
        "process_labels",
        device,
        0,
        "labels",
        &format!("\"GPU {device}\""),
    );
    write_metadata_event(
        file,
        "process_sort_index",
        device,
        0,
        "sort_index",
        &(5_000_000 + device).to_string(),
    );
    for stream in [COMPUTE, 20, 24] {
        let label = format!("\"stream {stream} \"");
        write_metadata_event(file, "thread_name", device, stream.into(), "name", &label);
        write_metadata_event(
            file,
            "thread_sort_index",
            device,
            stream.into(),
            "sort_index",
            &stream.to_string(),
        );
    }
}

fn write_metadata_event(
    file: &mut KinetoFileWriter<'_, impl Write>,
    what: &str,
    pid: u64,
    tid: u64,
    key: &str,
    value: &str,
) {
    file.out
        .write_str("  {\n    \"ph\": \"M\",\n    \"name\": \"");
    file.out.write_str(what);
    file.out.write_str("\",\n    \"ts\": ");
    file.write_time(0);
    let rest = format!(
        ",\n    \"pid\": {pid},\n    \"tid\": {tid},\n    \"args\": {{\n      \"{key}\": {value}\n    }}\n  }},\n"
    );
    file.out.write_str(&rest);
}

/// Writes the last events, and the end of the file.
pub(super) fn write_last_events_and_file_end(
    file: &mut KinetoFileWriter<'_, impl Write>,
    rank: u32,
    last: u64,
) {
    file.out.write_str(
        "  {\n    \"ph\": \"X\",\n    \"cat\": \"Trace\",\n    \"name\": \"PyTorch Profiler (0)\",\n    \
         \"pid\": \"Spans\",\n    \"tid\": \"PyTorch Profiler\",\n    \"ts\": ",
    );
    file.write_time(0);
    file.out.write_str(",\n    \"dur\": ");
    file.out.write_microseconds(last);
    file.out.write_str(
        "\n    ,\n    \"args\": {\n      \"Op count\": 0\n    }\n  },\n  {\n    \"ph\": \"M\",\n    \
         \"name\": \"process_sort_index\",\n    \"ts\": ",
    );
    file.write_time(0);
    file.out.write_str(
        ",\n    \"pid\": \"Spans\",\n    \"tid\": 0,\n    \"args\": {\n      \
         \"sort_index\": 536870912\n    }\n  },\n",
    );
    file.out.write_str(
        "  {\n    \"ph\": \"i\",\n    \n    \"s\": \"g\",\n    \
         \"name\": \"Iteration Start: PyTorch Profiler\",\n    \"pid\": \"Traces\",\n    \
         \"tid\": \"Trace PyTorch Profiler\",\n    \"ts\": ",
    );
    file.write_time(0);
    file.out.write_str(
        "\n    \n  },\n  {\n    \"ph\": \"i\",\n    \n    \"s\": \"g\",\n    \
         \"name\": \"Record Window End\",\n    \"pid\": \"\",\n    \"tid\": \"\",\n    \"ts\": ",
    );
    file.write_time(last + 1_000_000);
    let name = format!("\n    \n  }}\n  ],\"traceName\": \"/tmp/traces/kineto.{rank}.json\" }}");
    file.out.write_str(&name);
}

/// Writes a step's runtime calls, and their kernels and copies.
pub(super) fn write_gpu_step(
    file: &mut KinetoFileWriter<'_, impl Write>,
    records: &StepRecords<'_>,
    rank: u32,
    nth: u32,
) -> Result<()> {
    let device = u64::from(rank % 8);
    let mut computing: Option<(u64, u64)> = None;
    for event in &records.gpu {
        match *event {
            RuntimeCallOrGpuRecord::Call {
                call,
                thread,
                at,
                ns,
                correlation,
                external,
            } => {
                let (name, number) = match call {
                    RuntimeCall::Launch => ("cudaLaunchKernel", 211),
                    RuntimeCall::LaunchCollective => ("cudaLaunchKernelExC", 430),
                    RuntimeCall::Copy => ("cudaMemcpyAsync", 41),
                    RuntimeCall::RecordEvent => ("cudaEventRecord", 135),
                    RuntimeCall::WaitEvent => ("cudaStreamWaitEvent", 147),
                    RuntimeCall::Synchronize => ("cudaStreamSynchronize", 131),
                };
                let (pid, tid) = (file.pid, file.thread_id(thread));
                file.open_event("cuda_runtime", name);
                file.write_thread_and_times(pid, tid, at, ns);
                file.out.write_str("\"External id\": ");
                file.out.write_number(external);
                file.out.write_str(", \"cbid\": ");
                file.out.write_number(number);
                file.out.write_str(", \"correlation\": ");
                file.out.write_number(correlation);
                file.close_event();
                if !matches!(call, RuntimeCall::RecordEvent | RuntimeCall::WaitEvent) {
                    file.write_flow_arrow_end("ac2g", false, correlation, pid, tid, at);
                }
            }
            RuntimeCallOrGpuRecord::Device {
                what,
                stream,
                at,
                ns,
                correlation,
                external,
                frame,
            } => {
                let ids = IdsOfOneStreamEvent {
                    device,
                    stream: stream.into(),
                    correlation,
                    external,
                };
                match what {
                    StreamWork::Kernel(kernel) => {
                        let known = &file.program.kernels[kernel as usize];
                        ids.write_kernel_or_copy_event(file, known, at, ns, 0);
                        let first = computing.map_or(at, |(first, _)| first);
                        computing = Some((first, at + ns));
                    }
                    StreamWork::Collective(m) => {
                        let meet = &file.program.meets[m as usize];
                        let op = &file.program.ops[meet.op as usize];
                        let kernel = meet.kernel.expect("it is one of NCCL");
                        let known = &file.program.kernels[kernel as usize];
                        ids.write_kernel_or_copy_event(
                            file,
                            known,
                            at,
                            ns,
                            number_placeholder_value_in_step(op, nth),
                        );
                        let frame_name = &file.program.templates[op.template as usize].name[0].0;
                        file.open_event("gpu_user_annotation", frame_name);
                        file.write_thread_and_times(device, stream.into(), at, ns);
                        file.out.write_str("\"External id\": ");
                        file.out.write_number(frame);
                        file.close_event();
                    }
                    StreamWork::WaitEvent { recorded, on, .. } => {
                        ids.write_stream_wait_event(file, recorded, on, at, ns);
                    }
                    StreamWork::Synchronize => ids.write_stream_sync(file, at, ns),
                }
            }
        }
        file.out.flush_full_chunk()?;
    }
    if let (Some((first, last)), Some(frame)) = (computing, records.list.first()) {
        file.open_event(
            "gpu_user_annotation",
            &format!("ProfilerStep#{}", step::FIRST_STEP + nth),
        );
        file.write_thread_and_times(device, COMPUTE.into(), first, last - first);
        file.out.write_str("\"External id\": ");
        file.out.write_number(frame.external);
        file.close_event();
    }
    Ok(())
}

/// Ids of an event that runs on a stream.
#[derive(Clone, Copy)]
struct IdsOfOneStreamEvent {
    device: u64,
    stream: u64,
    correlation: u64,
    external: u64,
}

impl IdsOfOneStreamEvent {
    fn write_kernel_or_copy_event(
        self,
        file: &mut KinetoFileWriter<'_, impl Write>,
        kernel: &ProgramKernel,
        at: u64,
        ns: u64,
        number: u64,
    ) {
        let category = match kernel.copy {
            Some(CopyDirection::ToDevice | CopyDirection::ToHost) => "gpu_memcpy",
            None => "kernel",
        };
        file.open_event(category, &kernel.name);
        file.write_thread_and_times(self.device, self.stream, at, ns);
        file.out.write_str("\"External id\": ");
        file.out.write_number(self.external);
        if kernel.copy.is_none() {
            file.out.write_str(", \"queued\": 0");
        }
        file.out.write_str(", \"device\": ");
        file.out.write_number(self.device);
        file.out.write_str(", \"context\": 1,\n      \"stream\": ");
        file.out.write_number(self.stream);
        file.out.write_str(", \"correlation\": ");
        file.out.write_number(self.correlation);
        file.out.write_str(",");
        file.out.write_text_with_number(&kernel.args, number);
        file.close_event();
        file.write_flow_arrow_end("ac2g", true, self.correlation, self.device, self.stream, at);
    }

    fn begin_sync_event(
        self,
        file: &mut KinetoFileWriter<'_, impl Write>,
        kind: &str,
        at: u64,
        ns: u64,
    ) {
        file.open_event("cuda_sync", kind);
        file.write_thread_and_times(self.device, self.stream, at, ns);
        file.out.write_str("\"External id\": ");
        file.out.write_number(self.external);
        file.out.write_str(", \"cuda_sync_kind\": \"");
        file.out.write_str(kind);
        file.out.write_str("\",\n      ");
    }

    fn finish_stream_event(self, file: &mut KinetoFileWriter<'_, impl Write>) {
        file.out.write_str("\"stream\": ");
        file.out.write_number(self.stream);
        file.out.write_str(", \"correlation\": ");
        file.out.write_number(self.correlation);
        file.out.write_str(",\n      \"device\": ");
        file.out.write_number(self.device);
        file.out.write_str(", \"context\": 1");
        file.close_event();
    }

    fn write_stream_wait_event(
        self,
        file: &mut KinetoFileWriter<'_, impl Write>,
        recorded: u64,
        on: u32,
        at: u64,
        ns: u64,
    ) {
        self.begin_sync_event(file, "Stream Wait Event", at, ns);
        file.out.write_str("\"wait_on_stream\": ");
        file.out.write_number(on.into());
        file.out
            .write_str(", \"wait_on_cuda_event_record_corr_id\": ");
        file.out.write_number(recorded);
        file.out.write_str(", \"wait_on_cuda_event_id\": ");
        // Each CUDA event is recorded once, so the id of the recording call also identifies the
        // event.
        file.out.write_number(recorded);
        file.out.write_str(", ");
        self.finish_stream_event(file);
    }

    fn write_stream_sync(self, file: &mut KinetoFileWriter<'_, impl Write>, at: u64, ns: u64) {
        self.begin_sync_event(file, "Stream Sync", at, ns);
        self.finish_stream_event(file);
        file.write_flow_arrow_end("ac2g", true, self.correlation, self.device, self.stream, at);
    }
}

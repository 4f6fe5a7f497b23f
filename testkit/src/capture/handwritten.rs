//! Captures that tests write by hand, with events of threads, workers and streams; times are in ns.

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// An event with a duration.
#[derive(Clone, Debug)]
pub struct HandwrittenEvent {
    pub category: &'static str,
    pub name: String,
    pub tid: u64,
    pub start: i64,
    pub ns: u64,
    /// Record function id of the event; 0 if it has none.
    pub id: u64,
    /// `true` if the event is also in the host's file.
    pub on_host: bool,
    /// `values` and `types` of the event's inputs.
    pub inputs: (String, String),
}

pub fn create_handwritten_event(
    category: &'static str,
    name: &str,
    tid: u64,
    start: i64,
    ns: u64,
    id: u64,
) -> HandwrittenEvent {
    HandwrittenEvent {
        category,
        name: name.to_owned(),
        tid,
        start,
        ns,
        id,
        on_host: id != 0,
        inputs: ("[]".to_owned(), "[]".to_owned()),
    }
}

pub fn create_operator_event(name: &str, start: i64, ns: u64, id: u64) -> HandwrittenEvent {
    create_handwritten_event("cpu_op", name, 1, start, ns, id)
}

impl HandwrittenEvent {
    pub fn with_thread_id(self, tid: u64) -> Self {
        Self { tid, ..self }
    }

    /// Removes the event from the host's file, so that it appears only in Kineto's file.
    pub fn hide_from_host(self) -> Self {
        Self {
            on_host: false,
            ..self
        }
    }
}

/// Returns the operator and the annotation of an all-reduce of 256 floats that begins at `start`.
pub fn create_all_reduce_operator_and_annotation(
    asynchronous: bool,
    worker: u64,
    start: i64,
    ns: u64,
    id: u64,
) -> [HandwrittenEvent; 2] {
    let values = format!(
        "[[[{id},{id},0,256,4,\"cpu\"]],\"<Object>\",\"<Object>\",\"<None>\",{asynchronous},-1]"
    );
    let types = r#"["GenericList[Tensor(float)]","Object","Object","None","Bool","Int"]"#;
    let mut asks = create_operator_event("c10d::allreduce_", start, 100, id);
    asks.inputs = (values, types.to_owned());
    let flight = create_handwritten_event(
        "user_annotation",
        "gloo:all_reduce",
        worker,
        start + 50,
        ns,
        id + 1,
    );
    [asks, flight]
}

/// One rank of a handwritten job.
pub struct HandwrittenRank<'a> {
    pub rank: u32,
    pub world: u32,
    /// Names and members of groups.
    pub groups: &'a [(&'a str, &'a [u32])],
    pub events: &'a [HandwrittenEvent],
}

/// Returns a rank with these events; it is the job's only rank.
pub fn create_single_rank(events: &[HandwrittenEvent]) -> HandwrittenRank<'_> {
    HandwrittenRank {
        rank: 0,
        world: 1,
        groups: &[("0", &[0])],
        events,
    }
}

impl HandwrittenRank<'_> {
    pub fn render_host_json(&self) -> String {
        let mut out =
            String::from("{\"schema\": \"1.1.1-chakra.0.0.4\", \"pid\": 1, \"nodes\": [\n");
        let groups = self.groups.iter();
        let groups: Vec<_> = groups
            .map(|(name, ranks)| {
                serde_json::json!({"pg_name": name, "pg_desc": "", "backend_config": "cpu:gloo",
                    "ranks": ranks, "group_size": ranks.len(), "group_count": self.groups.len()})
            })
            .collect();
        let groups = serde_json::Value::from(groups).to_string();
        let groups = serde_json::Value::from(vec![groups]).to_string();
        write_node(
            &mut out,
            2,
            "[pytorch|profiler|execution_trace|thread]",
            0,
            ("[]", "[]"),
        );
        write_node(
            &mut out,
            3,
            "## process_group:init ##",
            0,
            (&groups, "[\"String\"]"),
        );
        for event in self.events.iter().filter(|event| event.on_host) {
            let inputs = (&*event.inputs.0, &*event.inputs.1);
            write_node(&mut out, event.id + 10, &event.name, event.id, inputs);
        }
        let last = out.trim_end_matches(",\n").len();
        out.truncate(last);
        out.push_str("\n], \"finish_ts\": 2}\n");
        out
    }

    pub fn render_kineto_json(&self) -> String {
        let groups = self.groups.iter();
        let groups: Vec<_> = groups
            .map(|(name, ranks)| serde_json::json!({"pg_name": name, "pg_size": ranks.len(), "ranks": ranks}))
            .collect();
        let info = serde_json::json!({"backend": "gloo", "rank": self.rank,
            "world_size": self.world, "pg_config": groups});
        let mut out = format!(
            "{{\"schemaVersion\": 1, \"distributedInfo\": {info}, \"baseTimeNanoseconds\": 1000000000, \
             \"traceEvents\": [\n"
        );
        for event in self.events {
            let (start, ns) = (event.start, event.ns);
            let sign = if start < 0 { "-" } else { "" };
            let start = start.unsigned_abs();
            let id = match event.id {
                0 => String::new(),
                id => format!("\"Record function id\": {id}"),
            };
            writeln!(
                out,
                "{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": {}, \"pid\": 1, \"tid\": {}, \
                 \"ts\": {sign}{}.{:03}, \"dur\": {}.{:03}, \"args\": {{{id}}}}},",
                event.category,
                serde_json::Value::from(&*event.name),
                event.tid,
                start / 1000,
                start % 1000,
                ns / 1000,
                ns % 1000
            )
            .unwrap();
        }
        let last = out.trim_end_matches(",\n").len();
        out.truncate(last);
        out.push_str("\n]}\n");
        out
    }

    /// Writes the host's and Kineto's file into `folder`, and returns their paths.
    pub fn write_files(&self, folder: &Path) -> [PathBuf; 2] {
        let paths =
            ["host", "kineto"].map(|what| folder.join(format!("{what}.{}.json", self.rank)));
        std::fs::write(&paths[0], self.render_host_json()).unwrap();
        std::fs::write(&paths[1], self.render_kineto_json()).unwrap();
        paths
    }
}

fn write_node(out: &mut String, id: u64, name: &str, rf_id: u64, (values, types): (&str, &str)) {
    let count = serde_json::from_str::<Vec<serde_json::Value>>(values)
        .unwrap()
        .len();
    let shapes = serde_json::Value::from(vec![serde_json::json!([]); count]);
    let name = serde_json::Value::from(name);
    writeln!(
        out,
        "{{\"id\": {id}, \"name\": {name}, \"ctrl_deps\": 1, \"inputs\": {{\"values\": {values}, \
         \"shapes\": {shapes}, \"types\": {types}}}, \"outputs\": {{\"values\": [], \"shapes\": [], \
         \"types\": []}}, \"attrs\": [{{\"name\": \"rf_id\", \"type\": \"uint64\", \"value\": {rf_id}}},\
         {{\"name\": \"seq_id\", \"type\": \"int64\", \"value\": -1}},\
         {{\"name\": \"scope\", \"type\": \"uint64\", \"value\": 0}},\
         {{\"name\": \"tid\", \"type\": \"uint64\", \"value\": 1}}]}},"
    )
    .unwrap();
}

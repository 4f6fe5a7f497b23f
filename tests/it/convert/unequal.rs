//! Tests all-to-alls with unequal parts in captures of a mixture of experts: the sizes in the traces follow from the
//! split sizes.

use super::rig::{convert_folder, find_text_attribute, read_json_file};
use crate::corpus::corpus_path_or_count_skip;
use serde_json::Value;
use std::path::Path;

/// Returns, call by call, the bytes sent to each member and received from each member, found with a plain parser of a
/// host trace. Each split is a number of rows of the tensor.
fn read_exchanged_bytes_in_host_trace(file: &Path) -> Vec<[Vec<u64>; 2]> {
    let file = read_json_file(file).expect("it is JSON");
    let nodes = file["nodes"].as_array().expect("nodes are a list").iter();
    let calls = nodes.filter(|node| node["name"] == "c10d::alltoall_base_");
    let mut found: Vec<(u64, [Vec<u64>; 2])> = calls
        .map(|node| {
            let values = &node["inputs"]["values"];
            // The arguments are the output and the input tensor, three others, and the splits of
            // both tensors.
            let parts = |tensor: usize, splits: usize| {
                let bytes: u64 = [3, 4]
                    .iter()
                    .map(|&i| values[tensor][i].as_u64().expect("a number"))
                    .product();
                let splits = values[splits].as_array().expect("a list").iter();
                let splits: Vec<u64> = splits.filter_map(Value::as_u64).collect();
                let rows: u64 = splits.iter().sum();
                splits
                    .iter()
                    .map(|split| split * bytes / rows.max(1))
                    .collect()
            };
            (
                node["id"].as_u64().expect("a number"),
                [parts(1, 4), parts(0, 3)],
            )
        })
        .collect();
    found.sort_by_key(|call| call.0);
    found.into_iter().map(|call| call.1).collect()
}

#[test]
fn all_to_all_bytes_per_member_match_the_recorded_split_sizes() {
    let Some(folder) = corpus_path_or_count_skip("captures/pytorch/t231_moe_a2a") else {
        return;
    };
    let job = convert_folder(&folder);
    let mut sent = Vec::new();
    for (rank, trace) in job.traces.iter().enumerate() {
        let calls =
            read_exchanged_bytes_in_host_trace(&folder.join(format!("host.{rank}.json.zst")));
        // Exchanges of counts have equal parts and no split sizes.
        let unequal: Vec<_> = calls.iter().filter(|call| !call[0].is_empty()).collect();
        let written = trace
            .nodes
            .iter()
            .filter(|node| find_text_attribute(node, "send_bytes").is_some());
        let written: Vec<[String; 2]> = written
            .map(|node| {
                ["send_bytes", "receive_bytes"]
                    .map(|name| find_text_attribute(node, name).unwrap_or("").to_owned())
            })
            .collect();
        let expected: Vec<[String; 2]> = unequal
            .iter()
            .map(|call| [&call[0], &call[1]].map(|list| format!("{list:?}")))
            .collect();
        assert!(!written.is_empty(), "rank {rank}");
        assert_eq!(written, expected, "rank {rank}");
        sent.push(unequal.into_iter().cloned().collect::<Vec<_>>());
    }
    // One rank sends the bytes that the other receives.
    for (i, own) in sent.iter().enumerate() {
        for (j, other) in sent.iter().enumerate() {
            for (a, b) in own.iter().zip(other) {
                assert_eq!(a[0][j], b[1][i], "{i} to {j}");
            }
        }
    }
}

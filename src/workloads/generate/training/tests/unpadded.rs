//! Tests the kernels around fused attention for sequences of unequal lengths.

use super::super::super::testing::{EmittedNode, check_and_record_every_rank};
use super::super::*;
use super::build_gpt2_pattern;

fn record_gpt2_nodes(attention: AttentionKernel) -> Vec<EmittedNode> {
    let plan = ParallelismPlan {
        attention,
        ..ParallelismPlan::new()
    };
    check_and_record_every_rank(build_gpt2_pattern(plan)).swap_remove(0)
}

/// Returns the suffixes and the bytes of the kernels of block 3's attention, in execution order.
fn list_attention_kernels(nodes: &[EmittedNode], pass: &str) -> Vec<(String, u64)> {
    let prefix = format!("mb0/layer3/{pass}/attention.core");
    let kernels = nodes.iter().filter_map(|node| {
        let suffix = node.name.strip_prefix(&prefix)?;
        Some((suffix.to_owned(), node.kernel?.1))
    });
    kernels.collect()
}

/// GPT-2 has 1,024 tokens with 768 columns of queries, keys, values and results, in numbers of 2 B. A gather or scatter
/// reads and writes each number once; clearing writes it once.
#[test]
fn unpadded_attention_adds_kernels_that_gather_and_scatter_tokens() {
    let x = 1024 * 768 * 2;
    let [flash, unpadded] =
        [AttentionKernel::Flash, AttentionKernel::Unpadded].map(record_gpt2_nodes);
    let one = |pass| list_attention_kernels(&flash, pass)[0].1;
    let expected = |own: u64, around: [(&str, u64); 3]| -> Vec<(String, u64)> {
        let [before, clear, after] = around.map(|(suffix, bytes)| (suffix.to_owned(), bytes));
        vec![before, (String::new(), own), clear, after]
    };
    let forward = [(".unpad", 2 * 3 * x), (".pad.clear", x), (".pad", 2 * x)];
    assert_eq!(
        list_attention_kernels(&unpadded, "fwd"),
        expected(one("fwd"), forward)
    );
    let backward = [
        (".unpad", 2 * x),
        (".pad.clear", 3 * x),
        (".pad", 2 * 3 * x),
    ];
    assert_eq!(
        list_attention_kernels(&unpadded, "bwd"),
        expected(one("bwd"), backward)
    );
}

/// The copies of queries, keys and values replace the originals among the saved activations.
#[test]
fn unpadded_attention_saves_as_many_bytes_as_flash_attention() {
    let memory = |attention| {
        let nodes = record_gpt2_nodes(attention);
        let class = chakram_trace::format::TensorClass::Activations as usize;
        let bytes = nodes.iter().map(|node| node.memory.allocates[class]);
        bytes.sum::<u64>()
    };
    assert_eq!(
        memory(AttentionKernel::Unpadded),
        memory(AttentionKernel::Flash)
    );
}

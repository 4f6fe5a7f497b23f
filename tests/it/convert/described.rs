//! Kernels of public captures that say what they compute, so that another machine can price them.

use super::rig::{attribute, lasts, on_host, try_convert};
use crate::corpus::corpus;
use chakram::internals::converters::pytorch::ConvertOptions as Conversion;

/// Part of the kernels' time, in per mille, that has FLOPs or bytes: of captures with operators and their shapes, and of
/// one whose kernels a graph launched.
#[test]
fn kernels_whose_operators_have_shapes_are_described() {
    let Some(tracelens) = corpus("captures/gpu/tracelens") else {
        return;
    };
    for (file, least) in [
        ("h100/Falconsai_nsfw_image_detection__1016002.json.gz", 990),
        ("h100/gaunernst_bert-small-uncased__1016001.json.gz", 999),
        ("mi300/Falconsai_nsfw_image_detection__1016002.json.gz", 990),
        ("mi300/gaunernst_bert-small-uncased__1016001.json.gz", 999),
        ("torch_compile_triton.json.gz", 999),
        ("inference/sglang_qwen3_8b_decode.json.gz", 0),
    ] {
        let job = try_convert(&[tracelens.join(file)], &Conversion::default())
            .unwrap_or_else(|e| panic!("{file}: {e}"));
        let (mut all, mut described) = (0, 0);
        for node in &job.traces[0].nodes {
            let work = ["num_ops", "tensor_size"].map(|name| attribute(node, name));
            let [Some(flops), Some(bytes)] = work else {
                continue;
            };
            if on_host(node) {
                continue;
            }
            all += lasts(node);
            described += if flops + bytes > 0 { lasts(node) } else { 0 };
        }
        println!("{file}: {described} of {all} ns");
        assert!(all > 0, "{file}");
        assert!(
            described * 1000 >= all * least,
            "{file}: {described} of {all} ns"
        );
        // Nothing stands around a graph's kernels: if it did, the least above would be too low.
        assert!(
            least > 0 || described * 10 < all,
            "{file}: {described} of {all} ns"
        );
    }
}

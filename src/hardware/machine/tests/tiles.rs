//! Tests the machine that a `tiles` table describes, and rejected values in it.

use super::*;
use crate::memory::MemoryAttachment;
use crate::network::NetworkModelKind;
use crate::topology::DimensionShape;

const GOOD: &str = r#"name = "m"
[npu.core]
memory_bandwidth = "1 TB/s"
memory_latency = "0 ns"
memory_capacity = "1 MB"
lanes = 2
host_lanes = 1
peak = { fp16 = "1 TFLOP/s" }
[tiles]
dies = [2, 3]
cores = [4, 2]
shape = "torus"
duplex = "half"
link_bandwidth = "100 GB/s"
link_latency = "1 ns"
die_bandwidth = "25 GB/s"
die_latency = "5 ns"
faulty_cores = [[7, 5]]
faulty_links = [[1, 0, 0, 0], [7, 2, 0, 2]]
[tiles.dram]
left = "1"
top = "0,2-3"
bandwidth = "10 GB/s"
latency = "50 ns"
capacity = "1 GB"
"#;

fn parse_machine(text: &str) -> Result<Machine, MachineError> {
    Machine::parse(text, "m.toml")
}

#[test]
fn a_table_of_tiles_is_a_machine() {
    let machine = parse_machine(GOOD).unwrap();
    assert_eq!(machine.network_model(), NetworkModelKind::Exclusive);
    let topology = machine.topology();
    let sizes: Vec<_> = topology
        .dimensions()
        .iter()
        .map(|d| (d.size, d.shape))
        .collect();
    assert_eq!(
        sizes,
        [(8, DimensionShape::Ring), (6, DimensionShape::Ring)]
    );
    let tiles = topology.tile_grid().unwrap();
    assert!(tiles.half_duplex);
    assert_eq!(tiles.faulty_cores.iter().collect::<Vec<_>>(), [&47]);
    // The faulty links are the link from (0, 0) upwards and the link that closes row 2. The closing link starts at core
    // (7, 2), which has number 23.
    assert_eq!(
        tiles.faulty_links.iter().collect::<Vec<_>>(),
        [&(0, 0), &(23, 0)]
    );
    let MemoryAttachment::Ports(ports) = &machine.unnamed_remote_memory().unwrap().attachment
    else {
        panic!("its memory is at the edges")
    };
    // There are four ports for each of six dies: left of row 1, and above columns 0, 2 and 3.
    assert_eq!(ports.port_count(), 24);
    let first = ports.npu_of_each_port()[..4]
        .iter()
        .map(|core| tiles.coordinates_of_core(core.0));
    let first: Vec<_> = first.collect();
    assert_eq!(first, [[0, 1], [0, 0], [2, 0], [3, 0]]);
    // Core (1, 1) is one link from (0, 1); core (2, 1) is below (2, 0).
    let nearest = |x, y| ports.nearest_port(Npu(tiles.core_at([x, y])), topology);
    assert_eq!((nearest(1, 1), nearest(2, 1)), (Some(0), Some(2)));
    // Around the whole grid there are ports at one row and at three columns: 1 + 3.
    let whole = GOOD.replace("left = \"1\"", "around = \"grid\"\nleft = \"1\"");
    let machine = parse_machine(&whole).unwrap();
    assert_eq!(
        machine
            .unnamed_remote_memory()
            .unwrap()
            .list_memory_endpoints_in_network()
            .len(),
        4
    );
    // A core has its SRAM and a share of the memory at ports: 1 MB + 4 GB / 48.
    assert_eq!(
        machine.npu_memory_capacity_with_port_share(0).unwrap().0,
        1_000_000 + 4_000_000_000 / 48
    );
}

#[test]
fn mistakes_are_refused_by_key_and_line() {
    for (good, bad, says) in [
        (
            "dies = [2, 3]",
            "dies = [2]",
            "`tiles.dies`: found 1 numbers",
        ),
        ("dies = [2, 3]", "dies = [0, 3]", "`tiles.dies[0]`"),
        (
            "cores = [4, 2]",
            "cores = [4000, 4000]",
            "cores, expected at most 4194304",
        ),
        (
            "shape = \"torus\"",
            "shape = \"ring\"",
            "one of mesh, torus",
        ),
        (
            "duplex = \"half\"",
            "duplex = \"quarter\"",
            "one of full, half",
        ),
        (
            "die_latency = \"5 ns\"",
            "",
            "`tiles.die_latency`: found nothing",
        ),
        ("[[7, 5]]", "[[8, 5]]", "`tiles.faulty_cores[0][0]`"),
        ("[1, 0, 0, 0]", "[1, 0, 0, 1]", "(1, 0) and (0, 1)"),
        ("[1, 0, 0, 0]", "[3, 0, 0, 0]", "(3, 0) and (0, 0)"),
        (
            "left = \"1\"",
            "left = \"2\"",
            "cores along the edge from 0 to 1",
        ),
        ("left = \"1\"\ntop = \"0,2-3\"", "", "no port"),
        ("[tiles.dram]", "[tiles.sram]", "unknown key"),
        (
            "[tiles]",
            "[[dimension]]\n[tiles]",
            "both dimensions and [tiles]",
        ),
        (
            "[tiles.dram]",
            "[remote_memory]\nattachment = \"per_npu\"\nbandwidth = \"1 GB/s\"\nlatency = \"0 ns\"\ncapacity = \"1 GB\"\n[tiles.dram]",
            "both a pool and [tiles]",
        ),
    ] {
        let text = GOOD.replace(good, bad);
        assert_ne!(text, GOOD, "{good}");
        let error = parse_machine(&text).unwrap_err().to_string();
        assert!(
            error.starts_with("m.toml:") && error.contains(says),
            "{bad}: {error}"
        );
    }
    // Links between dies are an error on a machine of one die.
    let one = GOOD.replace("dies = [2, 3]", "dies = [1, 1]");
    let error = parse_machine(&one).unwrap_err().to_string();
    assert!(
        error.contains("no key for links between dies on a machine of one die"),
        "{error}"
    );
}

/// 2 x 4 + 4 + 100 - 2 = 110 cycles at 1 GHz; the peak alone would take 2 x 4 x 4 x 100 / 10^12 s = 3.2 ns.
#[test]
fn class_with_systolic_arrays_times_kernels_by_cycles() {
    use crate::compute::{KernelDurationSource, KernelTraceFacts, RooflinePeakFraction};
    use chakram_base::dtype::Dtype;
    use chakram_base::kernel_shape::KernelShape;
    use chakram_base::units::Span;
    let arrays = "[npu.core.systolic]\narray = [4, 4]\nclock = \"1 GHz\"\n[tiles]";
    let machine = parse_machine(&GOOD.replace("[tiles]", arrays)).unwrap();
    let class = &machine.npu_classes()[0];
    let kernel = KernelTraceFacts {
        name: "",
        recorded: Span::ZERO,
        captured: false,
        flops: 3200,
        flops_unknown: false,
        bytes: 0,
        dtype: Some(Dtype::Fp16),
        shape: Some(KernelShape::Gemm {
            batch: 1,
            m: 4,
            n: 4,
            k: 100,
        }),
    };
    let model = KernelDurationSource::Roofline(RooflinePeakFraction::default());
    let price = |kernel: &KernelTraceFacts<'_>| {
        model
            .price_kernel(
                kernel,
                &class.peaks,
                class.memory_bandwidth(),
                &class.curves,
            )
            .duration()
    };
    assert_eq!(price(&kernel), Span::from_ns(110));
    let plain = KernelTraceFacts {
        shape: None,
        ..kernel
    };
    assert_eq!(price(&plain), Span(3200));
    let bad = arrays.replace("[4, 4]", "[4]");
    let error = parse_machine(&GOOD.replace("[tiles]", &bad))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`npu.core.systolic.array`: found 1 numbers"),
        "{error}"
    );
}

//! Tests accepted and rejected values for remote memory that NPUs reach through a dimension of the network.

use super::check_edit_errors_of_text;
use super::remote::{HIERARCHICAL, MESH, RING, SWITCH, build_remote_machine_text};
use crate::machine::Machine;
use crate::memory::{MemoryAttachment, MemoryNetworkAttachment, RemoteMemory, RingPool};
use crate::topology::{MemoryAtNpuOrFabric, MemorySiteAndLink};
use chakram_base::ids::EndpointId;
use chakram_base::units::{Bandwidth, Bytes, Span};

/// Parses the remote memory of `text`, which NPUs reach through `outer`, the second dimension of [`GOOD`]: a switch
/// with 2 ports at 50 GB/s and 1.5 us.
fn parse_memory_reached_through_outer(text: &str) -> RemoteMemory {
    let machine = Machine::parse(&build_remote_machine_text(text), "m.toml").unwrap();
    let remote = machine.unnamed_remote_memory().unwrap().clone();
    let through = remote.through.as_ref().unwrap();
    assert_eq!(through.dimension_name(), "outer");
    let expected = MemorySiteAndLink {
        site: MemoryAtNpuOrFabric::Fabric(1),
        bandwidth: Bandwidth::new(50e9).unwrap(),
        latency: Span::from_ns(1500),
    };
    assert_eq!(remote.list_memory_endpoints_in_network(), [expected]);
    let first = EndpointId(machine.topology().npu_count());
    assert_eq!(machine.topology().memory_at(first), Some(&expected));
    remote
}

#[test]
fn remote_memory_can_be_reached_through_a_dimension() {
    let through = "through = \"outer\"";
    let text = HIERARCHICAL.replace("in_node_bandwidth = \"50 GB/s\"", through);
    let remote = parse_memory_reached_through_outer(&text);
    let MemoryAttachment::Hierarchical(design) = &remote.attachment else {
        panic!("it is one of groups behind switches")
    };
    assert_eq!(design.in_node_bandwidth, Bandwidth::new(50e9).unwrap());
    let words = "3 groups of 100 GB/s behind 5 switches, 50 GB/s for each NPU through outer";
    assert_eq!(remote.to_string(), words);
    // With 3 groups, 5 switches and chunks of 1 MB, 8 NPUs receive 15 MB in one round, or 1.875 MB each, so 10 MB take
    // 5 1/3 rounds: 6 chunks.
    assert_eq!(remote.chunk_count(10_000_000, 8), Some(6));
    let text = SWITCH.replace("npu_bandwidth = \"50 GB/s\"", through);
    // In one round, the 8 NPUs together receive 3 MB, or 375 kB each: one chunk.
    assert_eq!(
        parse_memory_reached_through_outer(&text).chunk_count(375_000, 8),
        Some(1)
    );
    for name in ["per_npu", "pool"] {
        let channel =
            format!("attachment = \"{name}\"\nbandwidth = \"7 GB/s\"\nchunk = \"1 kB\"\n");
        let remote = parse_memory_reached_through_outer(&format!("{channel}{through}\n"));
        assert_eq!(remote.chunk_count(0, 8), Some(1));
        assert_eq!(remote.chunk_count(1001, 8), Some(2));
    }
}

#[test]
fn network_attachment_of_memory_needs_a_switch_dimension() {
    let text = SWITCH.replace("npu_bandwidth = \"50 GB/s\"", "through = \"outer\"");
    let machine = Machine::parse(&build_remote_machine_text(&text), "m.toml").unwrap();
    let topology = machine.topology();
    // `inner` is a ring, not a switch, and there is no third dimension.
    assert!(MemoryNetworkAttachment::new(topology, 0, Bytes(1)).is_none());
    assert!(MemoryNetworkAttachment::new(topology, 2, Bytes(1)).is_none());
    assert!(MemoryNetworkAttachment::new(topology, 1, Bytes(0)).is_none());
    let good = machine.unnamed_remote_memory().unwrap();
    let fits = |change: fn(&mut RemoteMemory)| {
        let mut remote = good.clone();
        change(&mut remote);
        remote.fits_topology(topology)
    };
    assert!(fits(|_| {}));
    // The port's rate must equal the dimension's rate, and a ring has no port.
    assert!(!fits(|remote| {
        if let MemoryAttachment::Switch(design) = &mut remote.attachment {
            design.npu_bandwidth = Bandwidth::new(1e9).unwrap();
        }
    }));
    assert!(!fits(|remote| {
        let chunk = Bytes(1);
        let rate = Bandwidth::new(50e9).unwrap();
        remote.attachment = MemoryAttachment::Ring(RingPool {
            groups: 2,
            link_bandwidth: rate,
            npu_bandwidth: rate,
            chunk,
        });
    }));
}

#[test]
fn invalid_through_keys_of_remote_memory_are_refused() {
    let swap = |text: &str, table: &str| {
        check_edit_errors_of_text(&build_remote_machine_text(text), table)
    };
    swap(
        HIERARCHICAL,
        r#"
        chunk = "1 MB" => chunk = "1 MB"\nthrough = "outer" => 48: `remote_memory.in_node_bandwidth` … and `through` … one of the two
        in_node_bandwidth = "50 GB/s" => through = "inner" => 48: `remote_memory.through` … "inner", whose shape is ring … switch or fully_connected
        in_node_bandwidth = "50 GB/s" => through = "outr" => 48: `remote_memory.through` … outr … one of inner, outer
        in_node_bandwidth = "50 GB/s" => through = 1 => 48: `remote_memory.through` … one of inner, outer
        "#,
    );
    swap(
        SWITCH,
        r#"npu_bandwidth = "50 GB/s" => npu_bandwidth = "50 GB/s"\nthrough = "outer" => 46: `remote_memory.npu_bandwidth` … and `through`"#,
    );
    for (text, name) in [(RING, "ring"), (MESH, "mesh")] {
        let table = format!(
            "chunk = \"1 MB\" => chunk = \"1 MB\"\\nthrough = \"outer\" => {}: `remote_memory.through` … the attachment is {name} … no `through`",
            if name == "ring" { 48 } else { 49 }
        );
        swap(text, &table);
    }
    let channel =
        "attachment = \"pool\"\nbandwidth = \"7 GB/s\"\nchunk = \"1 kB\"\nthrough = \"outer\"\n";
    swap(
        channel,
        r#"
        chunk = "1 kB"\n =>  => 41: `remote_memory.chunk` … such as
        chunk = "1 kB" => chunk = "0 B" => 44: `remote_memory.chunk` … more than zero
        through = "outer"\n =>  => 44: `remote_memory.chunk` … unknown … attachment, bandwidth
        "#,
    );
}

//! Tests accepted and rejected values for each design of remote memory.

use super::{GOOD, check_edit_errors_of_text};
use crate::machine::Machine;
use crate::memory::{
    HierarchicalPool, MemoryAttachment, MemoryPoolSwitchLevel, MeshPool, MultiLevelSwitchPool,
    RingPool,
};
use crate::topology::{MemoryAtNpuOrFabric, MemorySiteAndLink};
use chakram_base::ids::{EndpointId, Npu};
use chakram_base::units::{Bandwidth, Bytes, Span};

/// Returns [`GOOD`], a machine of 8 NPUs, with this `remote_memory` table starting at line 41.
pub(super) fn build_remote_machine_text(remote: &str) -> String {
    let (rest, _) = GOOD.split_once("[remote_memory]").unwrap();
    format!("{rest}[remote_memory]\n{remote}latency = \"2 us\"\ncapacity = \"1 TB\"\n")
}

pub(super) const HIERARCHICAL: &str = r#"attachment = "hierarchical"
groups = 3
out_switches = 5
npus_per_node = 4
group_bandwidth = "100 GB/s"
node_bandwidth = "400 GB/s"
in_node_bandwidth = "50 GB/s"
chunk = "1 MB"
"#;

pub(super) const SWITCH: &str = r#"attachment = "switch"
level = [{ fan_in = 2, bandwidth = "20 GB/s" }, { fan_in = 4, bandwidth = "60 GB/s" }]
groups = 3
group_bandwidth = "100 GB/s"
npu_bandwidth = "50 GB/s"
chunk = "1 MB"
"#;

pub(super) const RING: &str = r#"attachment = "ring"
groups = 4
group_bandwidth = "100 GB/s"
link_bandwidth = "20 GB/s"
npu_bandwidth = "50 GB/s"
chunk = "1 MB"
"#;

pub(super) const MESH: &str = r#"attachment = "mesh"
columns = 4
rows = 2
group_bandwidth = "100 GB/s"
link_bandwidth = "20 GB/s"
npu_bandwidth = "50 GB/s"
chunk = "1 MB"
"#;

#[test]
fn designs_are_read_as_written() {
    let gb = |gb: f64| Bandwidth::new(gb * 1e9).unwrap();
    let chunk = Bytes(1_000_000);
    let hierarchical = HierarchicalPool {
        groups: 3,
        out_switches: 5,
        npus_per_node: 4,
        node_bandwidth: gb(400.0),
        in_node_bandwidth: gb(50.0),
        chunk,
    };
    let level = |fan_in, rate| MemoryPoolSwitchLevel {
        fan_in,
        bandwidth: gb(rate),
    };
    let switch = MultiLevelSwitchPool {
        groups: 3,
        npu_bandwidth: gb(50.0),
        levels: vec![level(2, 20.0), level(4, 60.0)],
        chunk,
    };
    let ring = RingPool {
        groups: 4,
        link_bandwidth: gb(20.0),
        npu_bandwidth: gb(50.0),
        chunk,
    };
    let mesh = MeshPool {
        columns: 4,
        rows: 2,
        link_bandwidth: gb(20.0),
        npu_bandwidth: gb(50.0),
        chunk,
    };
    let designs = [
        (
            HIERARCHICAL,
            MemoryAttachment::Hierarchical(hierarchical),
            "3 groups of 100 GB/s behind 5 switches, 50 GB/s for each NPU",
        ),
        (
            SWITCH,
            MemoryAttachment::Switch(switch),
            "3 of 100 GB/s behind 2 levels of switches, 50 GB/s for each NPU",
        ),
        (
            RING,
            MemoryAttachment::Ring(ring),
            "4 of 100 GB/s on a ring of 20 GB/s",
        ),
        (
            MESH,
            MemoryAttachment::Mesh(mesh),
            "4 x 2 of 100 GB/s on a mesh of 20 GB/s",
        ),
    ];
    for (text, expected, words) in designs {
        let machine = Machine::parse(&build_remote_machine_text(text), "m.toml").unwrap();
        let remote = machine.unnamed_remote_memory().unwrap();
        assert_eq!(remote.attachment, expected);
        assert_eq!(remote.to_string(), words);
        assert!(remote.attachment.fits_npus(8) && !remote.attachment.fits_npus(9));
        let common = (remote.bandwidth, remote.latency, remote.capacity);
        let expected = (
            gb(100.0),
            Span::from_ns(2000),
            Some(Bytes(1_000_000_000_000)),
        );
        assert_eq!(common, expected);
    }
}

#[test]
fn importers_cannot_build_what_files_cannot_say() {
    let machine = Machine::parse(&build_remote_machine_text(RING), "m.toml").unwrap();
    let uniform = |groups| {
        let mut remote = machine.unnamed_remote_memory().unwrap().clone();
        let MemoryAttachment::Ring(ring) = &mut remote.attachment else {
            panic!("it is a ring")
        };
        ring.groups = groups;
        Machine::create_with_one_npu_class(
            "m".to_owned(),
            machine.topology().clone(),
            machine.collective_algorithms().to_vec(),
            machine.npu_classes()[0].clone(),
            Some(remote),
        )
    };
    assert!(uniform(2).is_some());
    assert!(uniform(3).is_none() && uniform(0).is_none());
}

#[test]
fn keys_of_other_designs_are_refused() {
    let swap = |text: &str, table: &str| {
        check_edit_errors_of_text(&build_remote_machine_text(text), table)
    };
    swap(
        HIERARCHICAL,
        r#"
        group_bandwidth => bandwidth => 46: `remote_memory.bandwidth` … unknown … out_switches
        groups = 3 =>  => 41: `remote_memory.groups` … found nothing … from 1 to 1048576
        chunk = "1 MB" =>  => 41: `remote_memory.chunk` … such as
        "hierarchical" => "pool" => 43: `remote_memory.groups` … one of attachment, bandwidth
        "#,
    );
    swap(
        RING,
        "link_bandwidth = \"20 GB/s\" =>  => 41: `remote_memory.link_bandwidth` … such as",
    );
}

#[test]
fn designs_that_do_not_come_out_even_are_refused() {
    let swap = |text: &str, table: &str| {
        check_edit_errors_of_text(&build_remote_machine_text(text), table)
    };
    swap(
        HIERARCHICAL,
        r#"
        npus_per_node = 4 => npus_per_node = 3 => 45: `remote_memory.npus_per_node` … 3 … divide 8
        npus_per_node = 4 => npus_per_node = 9 => 45: `remote_memory.npus_per_node` … from 1 to 8
        groups = 3 => groups = 0 => 43: `remote_memory.groups` … the number 0
        chunk = "1 MB" => chunk = "0 B" => 49: `remote_memory.chunk` … more than zero
        "#,
    );
    swap(
        SWITCH,
        r#"
        fan_in = 4 => fan_in = 3 => 43: `remote_memory.level[1].fan_in` … 3 … divide 4
        fan_in = 2 => fan_in = 16 => 43: `remote_memory.level[0].fan_in` … from 1 to 8
        "60 GB/s" => "60 s" => 43: `remote_memory.level[1].bandwidth` … not a bandwidth
        "#,
    );
    swap(
        RING,
        r#"
        groups = 4 => groups = 5 => 43: `remote_memory.groups` … 5 … divide 8
        groups = 4 => groups = 16 => 43: `remote_memory.groups` … from 1 to 8
        "#,
    );
    swap(
        MESH,
        r#"
        columns = 4 => columns = 3 => 44: `remote_memory.rows` … 6 … divide 8
        rows = 2 => rows = 4 => 44: `remote_memory.rows` … from 1 to 2
        "#,
    );
}

const PORTS: &str = r#"attachment = "ports"
at = "6,0-1"
bandwidth = "7 GB/s"
"#;

/// Ports are endpoints after the NPUs, in the order of their NPUs.
#[test]
fn memory_ports_are_endpoints_after_the_npus() {
    let machine = Machine::parse(&build_remote_machine_text(PORTS), "m.toml").unwrap();
    let topology = machine.topology();
    let port = |npu| MemorySiteAndLink {
        site: MemoryAtNpuOrFabric::Npu(Npu(npu)),
        bandwidth: Bandwidth::new(7e9).unwrap(),
        latency: Span::from_us(2),
    };
    for (endpoint, npu) in [(8, 0), (9, 1), (10, 6)] {
        assert_eq!(topology.memory_at(EndpointId(endpoint)), Some(&port(npu)));
    }
    assert_eq!(topology.memory_at(EndpointId(11)), None);
    let words = "3 ports of 7 GB/s at NPUs";
    assert_eq!(machine.unnamed_remote_memory().unwrap().to_string(), words);
    check_edit_errors_of_text(
        &build_remote_machine_text(PORTS),
        r#"
        at = "6,0-1"\n =>  => 41: `remote_memory.at` … NPUs from 0 to 7
        at = "6,0-1" => at = "6,8" => 43: `remote_memory.at` … "8" … NPUs from 0 to 7
        at = "6,0-1" => at = "6"\nchunk = "1 MB" => 44: `remote_memory.chunk` … unknown … attachment, at, bandwidth
        at = "6,0-1" => at = "6"\nthrough = "outer" => 44: `remote_memory.through` … unknown
        "#,
    );
}

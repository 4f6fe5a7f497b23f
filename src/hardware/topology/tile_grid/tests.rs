//! Checks routes over dies: links counted by class, rates, and detours around faults.

use super::*;
use crate::topology::Topology;
use chakram_base::ids::Npu;
use chakram_base::units::UnroundedBufferShare;

/// Returns 3 x 2 dies of 4 x 2 cores, with 1000 GB/s and 1 ns inside dies, and 250 GB/s and 5 ns
/// between dies.
fn build_tile_layout() -> DieAndCoreLayout {
    DieAndCoreLayout {
        dies: [3, 2],
        cores: [4, 2],
        borders: DieBorderLinks {
            bandwidth: Bandwidth::new(250e9).unwrap(),
            latency: Span::from_ns(5),
        },
        half_duplex: false,
        barrier: None,
        faulty_cores: BTreeSet::new(),
        faulty_links: BTreeSet::new(),
    }
}

fn build_tile_topology(grid: DieAndCoreLayout, shape: DimensionShape) -> Topology {
    let inside = Bandwidth::new(1000e9).unwrap();
    Topology::from_tile_grid(grid, shape, inside, Span::from_ns(1)).unwrap()
}

#[test]
fn paths_count_links_inside_and_between_dies() {
    let t = build_tile_topology(build_tile_layout(), DimensionShape::Mesh);
    assert_eq!(t.npu_count(), 48);
    let path = |a: [u32; 2], b: [u32; 2]| {
        let path = t
            .path_between_npus(
                Npu(build_tile_layout().core_at(a)),
                Npu(build_tile_layout().core_at(b)),
            )
            .unwrap();
        (
            path.latency.0 / 1000,
            path.bandwidth.bytes_per_second() / 1e9,
        )
    };
    // Inside a die, the route has 3 links along x and 1 along y, of 1 ns each.
    assert_eq!(path([0, 0], [3, 1]), (4, 1000.0));
    // A link between dies takes 5 ns, along x or along y.
    assert_eq!(path([3, 0], [4, 0]), (5, 250.0));
    assert_eq!(path([0, 1], [0, 2]), (5, 250.0));
    // From (11, 3) to (0, 0), there are 11 links along x and 3 along y. Two of the links along x and one of the links
    // along y connect dies. The latency is 11 + 15 ns.
    assert_eq!(path([11, 3], [0, 0]), (11 + 15, 250.0));
}

/// On a torus of 12, the route from 10 to 1 has 3 links upwards. The link that closes the row connects two dies.
#[test]
fn rows_of_a_torus_close_over_a_border() {
    let t = build_tile_topology(build_tile_layout(), DimensionShape::Ring);
    let path = t.path_between_npus(Npu(10), Npu(1)).unwrap();
    assert_eq!(path.latency, Span::from_ns(2 + 5));
    assert_eq!(t.path_between_npus(Npu(1), Npu(10)).unwrap(), path);
    // A single die has no links between dies.
    let one = DieAndCoreLayout {
        dies: [1, 1],
        ..build_tile_layout()
    };
    let t = build_tile_topology(one, DimensionShape::Ring);
    assert_eq!(
        t.path_between_npus(Npu(3), Npu(0)).unwrap().latency,
        Span::from_ns(1)
    );
}

/// Store-and-forward is Eq. 3 of PALM: every link adds its latency and the time of the whole message. A message of 1 MB
/// from (2, 0) to (5, 0) crosses two links inside dies, at 1 us + 1 ns each, and one link between dies, at 4 us + 5 ns.
#[test]
fn store_and_forward_adds_up_the_links() {
    let t = build_tile_topology(build_tile_layout(), DimensionShape::Mesh)
        .with_switching(SwitchingMode::StoreAndForward);
    let path = t.path_between_npus(Npu(2), Npu(5)).unwrap();
    let time = path.time_message(UnroundedBufferShare::from_bytes(1_000_000));
    assert_eq!(time, Span::from_ns(2 * 1001 + 4005));
    // The route has only links inside a die. One link counts as the slowest, and the others add their segments.
    let path = t.path_between_npus(Npu(0), Npu(3)).unwrap();
    let time = path.time_message(UnroundedBufferShare::from_bytes(1_000_000));
    assert_eq!(time, Span::from_ns(3 * 1001));
}

#[test]
fn ways_go_round_a_faulty_link_or_say_that_there_is_none() {
    let mut broken = build_tile_layout();
    broken.faulty_links.insert((1, 0));
    let t = build_tile_topology(broken.clone(), DimensionShape::Mesh);
    // From (0, 0) to (3, 0), there is no other route. To reach (3, 1), the message goes along y first.
    assert_eq!(
        t.first_dimension_crossed_between(Npu(0), Npu(3)),
        Err((1, 0))
    );
    assert_eq!(t.first_dimension_crossed_between(Npu(0), Npu(15)), Ok(1));
    assert_eq!(t.first_dimension_crossed_between(Npu(15), Npu(0)), Ok(0));
    assert_eq!(broken.link_name((1, 0)), "between cores (1, 0) and (2, 0)");
    broken.faulty_links.insert((12, 0));
    let t = build_tile_topology(broken, DimensionShape::Mesh);
    assert_eq!(
        t.first_dimension_crossed_between(Npu(15), Npu(0)),
        Err((12, 0))
    );
}

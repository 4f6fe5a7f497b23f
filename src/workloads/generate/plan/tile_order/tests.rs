//! Tests orders of cores, and plans that use them.

use super::*;

fn build_core_grid(dies: [u32; 2], cores: [u32; 2]) -> TiledMachineCoreGrid {
    TiledMachineCoreGrid {
        dies,
        cores,
        faulty: BTreeSet::new(),
    }
}

fn measure_core_distance(a: [u32; 2], b: [u32; 2]) -> u32 {
    a[0].abs_diff(b[0]) + a[1].abs_diff(b[1])
}

#[test]
fn orders_take_every_core_once() {
    for dies in [[1, 1], [5, 4], [3, 3], [1, 4], [4, 1], [2, 5]] {
        let grid = build_core_grid(dies, [4, 2]);
        for (order, _) in TileOrder::ALL {
            let all = grid.list_cores_in_order(*order);
            let distinct: BTreeSet<_> = all.iter().collect();
            let count = dies[0] * dies[1] * 8;
            assert_eq!(
                (all.len() as u32, distinct.len() as u32),
                (count, count),
                "{dies:?}"
            );
        }
    }
}

/// Tests orders on 2 x 2 dies of 2 x 2 cores.
#[test]
fn orders_are_those_of_their_names() {
    let grid = build_core_grid([2, 2], [2, 2]);
    assert_eq!(
        grid.list_cores_in_order(TileOrder::Line)[..5],
        [[0, 0], [1, 0], [2, 0], [3, 0], [0, 1]]
    );
    let s = grid.list_cores_in_order(TileOrder::Serpentine);
    assert_eq!(s[..5], [[0, 0], [1, 0], [1, 1], [0, 1], [2, 0]]);
    // In serpentine order, the second row of dies starts at the right end.
    assert_eq!(s[8..10], [[2, 2], [3, 2]]);
    assert_eq!(
        walk_spiral([3, 3])[..],
        [
            [0, 0],
            [1, 0],
            [2, 0],
            [2, 1],
            [2, 2],
            [1, 2],
            [0, 2],
            [0, 1],
            [1, 1],
        ]
    );
}

/// In serpentine order on 4 x 4 cores, each half of the order (eight consecutive cores) is a ring of neighbours.
#[test]
fn each_half_die_in_serpentine_order_is_a_ring_of_neighbours() {
    let all = build_core_grid([5, 4], [4, 4]).list_cores_in_order(TileOrder::Serpentine);
    for group in all.chunks(8) {
        assert!(
            (0..8).all(|i| measure_core_distance(group[i], group[(i + 1) % 8]) == 1),
            "{group:?}"
        );
    }
}

#[test]
fn faulty_cores_are_left_out_and_too_many_ranks_refused() {
    let mut grid = build_core_grid([1, 1], [2, 2]);
    grid.faulty.insert([1, 0]);
    assert_eq!(
        grid.list_cores_in_order(TileOrder::Line),
        [[0, 0], [0, 1], [1, 1]]
    );
    let mut plan = ParallelismPlan {
        data: 4,
        tiles: CorePlacement::Order(TileOrder::Line),
        ..ParallelismPlan::new()
    };
    let error = plan.place_on_tiles(Some(&grid)).unwrap_err().to_string();
    assert!(
        error.contains("`data x tensor x pipeline` is 4; expected at most the 3 cores"),
        "{error}"
    );
    assert!(
        plan.place_on_tiles(None)
            .unwrap_err()
            .to_string()
            .contains("a machine of tiles")
    );
    assert!(
        plan.check_core_for_each_rank()
            .unwrap_err()
            .to_string()
            .contains("a machine")
    );
    plan.data = 3;
    plan.place_on_tiles(Some(&grid)).unwrap();
    plan.check_core_for_each_rank().unwrap();
    assert_eq!(plan.tiles.to_string(), "0:0,0:1,1:1");
    assert_eq!("0:0, 0:1,1:1".parse(), Ok(plan.tiles.clone()));
    // For two replicas of two members each, `near` puts the replicas on cores 0 1 | 2 3, and
    // `opposite` puts them on cores 0 2 | 1 3.
    let mut pair = ParallelismPlan {
        data: 2,
        tensor: 2,
        tensor_neighbours: TensorNeighbours::Opposite,
        tiles: CorePlacement::Order(TileOrder::Line),
        ..ParallelismPlan::new()
    };
    grid.faulty.clear();
    pair.place_on_tiles(Some(&grid)).unwrap();
    assert_eq!(pair.tiles.to_string(), "0:0,0:1,1:0,1:1");
    plan.tiles = "0:0,0:0,5:0".parse().unwrap();
    assert!(
        plan.check_core_for_each_rank()
            .unwrap_err()
            .to_string()
            .contains("core 0:0 twice")
    );
    assert!(
        plan.place_on_tiles(Some(&grid))
            .unwrap_err()
            .to_string()
            .contains("core 5:0")
    );
}

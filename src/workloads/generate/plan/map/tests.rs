//! Compares ranks and groups with handwritten lists, and tests rejected mappings.

use super::*;
use crate::generate::plan::{AllRankCoordinatesAndGroups, ParallelGroupKind};

fn build_placed_plan(tensor: u32, data: u32, pipeline: u32, place: &[&str]) -> ParallelismPlan {
    let mut plan = ParallelismPlan::new();
    (plan.tensor, plan.data, plan.pipeline) = (tensor, data, pipeline);
    plan.place = place.iter().map(|text| text.parse().unwrap()).collect();
    plan
}

/// Returns the rank of each (tensor, data, stage); the tensor index changes fastest.
fn list_ranks_by_coordinates(plan: &ParallelismPlan) -> Vec<u32> {
    let mut placed = plan.clone();
    placed.ranks = plan.ranks_by_order_position().unwrap();
    let placement = AllRankCoordinatesAndGroups::new(&placed);
    let mut all = Vec::new();
    for stage in 0..plan.pipeline {
        for data in 0..plan.data {
            for tensor in 0..plan.tensor {
                all.push(placement.rank_at(TensorDataStageCoordinates {
                    tensor,
                    data,
                    stage,
                }));
            }
        }
    }
    all
}

/// The first dimension has 4 NPUs, on which pairs of tensor members and two stages are placed; the second dimension has
/// the replicas. Tensor member t of replica d in stage p has index t + 2 p in the first dimension and d in the second,
/// so its rank is t + 2 p + 4 d.
#[test]
fn ranks_follow_from_axis_to_dimension_mappings_and_not_from_order() {
    let plan = build_placed_plan(2, 2, 2, &["tp@0", "pp@0", "dp@1"]);
    // For (p, d) = (0, 0), (0, 1), (1, 0) and (1, 1), the ranks are 0 1, 4 5, 2 3 and 6 7.
    assert_eq!(list_ranks_by_coordinates(&plan), [0, 1, 4, 5, 2, 3, 6, 7]);
    // The mappings decide the ranks, so `order` has no effect.
    let mut turned = plan.clone();
    turned.order = [
        ParallelAxis::Pipeline,
        ParallelAxis::Data,
        ParallelAxis::Tensor,
    ];
    assert_eq!(
        list_ranks_by_coordinates(&turned),
        list_ranks_by_coordinates(&plan)
    );
    // These mappings give the default order, so the result contains no explicit ranks.
    let plan = build_placed_plan(2, 2, 2, &["tp@0", "dp@0", "pp@1"]);
    assert_eq!(plan.ranks_by_order_position().unwrap(), [0_u32; 0]);
}

/// Pairs of replicas are placed first along the outer dimension: replica d = a + 2 b has index a in
/// dimension 1. In dimension 0, replica d has index b, outside the tensor groups. Member t of
/// replica d has rank t + 2 b + 4 a, so replicas 0, 1, 2, 3 with t = 0 have ranks 0, 4, 2, 6.
#[test]
fn an_axis_may_lie_along_several_dimensions() {
    let plan = build_placed_plan(2, 4, 1, &["tp@0", "dp:2@1", "dp:2@0"]);
    assert_eq!(list_ranks_by_coordinates(&plan), [0, 1, 4, 5, 2, 3, 6, 7]);
    let mut placed = plan.clone();
    placed.ranks = plan.ranks_by_order_position().unwrap();
    let first = TensorDataStageCoordinates {
        tensor: 0,
        data: 0,
        stage: 0,
    };
    let group =
        AllRankCoordinatesAndGroups::new(&placed).members_of_group(ParallelGroupKind::Data, first);
    assert_eq!(group, [0, 4, 2, 6]);
    // A mapping without a number of members gets the axis's remaining members.
    let open = build_placed_plan(2, 4, 1, &["tp@0", "dp@1", "dp:2@0"]);
    assert_eq!(
        list_ranks_by_coordinates(&open),
        list_ranks_by_coordinates(&plan)
    );
}

#[test]
fn place_dimensions_are_checked_against_the_machine() {
    let machine = [("nvlink", 4), ("infiniband", 4)];
    let on = |plan: &ParallelismPlan| {
        let mut plan = plan.clone();
        plan.resolve_place_dimensions(&machine).map(|()| plan)
    };
    let why = |plan: &ParallelismPlan| on(plan).unwrap_err().to_string();
    let named = build_placed_plan(2, 2, 2, &["tp@nvlink", "pp@nvlink", "dp@infiniband"]);
    let refused = named.ranks_by_order_position().unwrap_err().to_string();
    assert!(
        refused.contains("names of dimensions need a machine"),
        "{refused}"
    );
    // The job may leave half of the outermost dimension empty.
    assert_eq!(
        on(&named).unwrap().ranks_by_order_position().unwrap().len(),
        8
    );
    assert_eq!(
        list_ranks_by_coordinates(&on(&named).unwrap()),
        [0, 1, 4, 5, 2, 3, 6, 7]
    );
    let short = build_placed_plan(2, 2, 2, &["tp@0", "pp@1", "dp@1"]);
    let expected = "`place` is tp@0,pp@1,dp@1; expected members along dimension 0 (nvlink) whose product is \
                    all 4 NPUs of it, not 2";
    assert!(why(&short).contains(expected), "{}", why(&short));
    let outside = build_placed_plan(2, 2, 2, &["tp@1", "pp@1", "dp@1"]);
    assert!(why(&outside).contains("dimension 0 (nvlink) whose product is all 4"));
    let much = build_placed_plan(4, 8, 1, &["tp@0", "dp@1"]);
    assert!(why(&much).contains("at most the 4 NPUs of it, not 8"));
    let unknown = build_placed_plan(2, 2, 2, &["tp@nvlink", "pp@nvlink", "dp@ethernet"]);
    assert!(why(&unknown).contains("0 (nvlink, 4 NPUs), 1 (infiniband, 4 NPUs)"));
    assert!(why(&build_placed_plan(4, 1, 1, &["tp@2"])).contains("dimensions of the machine"));
}

#[test]
fn axis_mappings_that_miss_the_degrees_are_refused() {
    let why = |plan: &ParallelismPlan| plan.ranks_by_order_position().unwrap_err().to_string();
    for place in [
        &["tp@0"][..],
        &["tp@0", "dp:3@1"],
        &["tp@0", "dp:2@1"],
        &["tp@0", "dp@1", "dp@0"],
        &["tp@0", "dp:8@1", "dp@1"],
    ] {
        let text = why(&build_placed_plan(2, 4, 1, place));
        assert!(
            text.contains("members of dp whose product is its degree, 4"),
            "{text}"
        );
    }
    let mut both = build_placed_plan(2, 1, 1, &["tp@0"]);
    both.ranks = vec![1, 0];
    assert!(why(&both).contains("no `place` together with `ranks`"));
}

#[test]
fn axis_mappings_are_read_back_as_written() {
    for text in ["tp@0", "dp:2@1", "pp:4@infiniband"] {
        assert_eq!(text.parse::<AxisPartMapping>().unwrap().to_string(), text);
    }
    for text in ["", "tp", "tp@", "ep@0", "tp:0@0", "tp:x@0", "@0", "tp:@0"] {
        let error = text.parse::<AxisPartMapping>().unwrap_err();
        assert!(error.contains("tp@0, dp:2@0 or pp@infiniband"), "{text}");
    }
}

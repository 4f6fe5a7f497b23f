//! Finds differences that prevent one rank from simulating another, and builds the error for jobs without tile groups.

use crate::error::ReplayRefusal;
use crate::plan::{PlanPartsOfOneInstance, ReplayPlan};
use chakram_base::setting::SettingKey;
use chakram_base::units::format_count_with_noun;
use chakram_trace::workload::{GraphBoundToRank, Workload};

/// Reason, known before the run, why a rank cannot simulate a later rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RankGroupingObstacle {
    Graph,
    Class,
    Exchange,
}

/// A rank of a launch, with its plan.
type RankGraphAndPlan<'p> = (&'p GraphBoundToRank, &'p PlanPartsOfOneInstance);

/// Returns why rank `a` cannot simulate rank `b` and the ranks between them, or `None` if it can.
pub(super) fn find_grouping_obstacle(
    a: RankGraphAndPlan<'_>,
    b: RankGraphAndPlan<'_>,
) -> Option<RankGroupingObstacle> {
    let between = a.0.rank..b.0.rank;
    if a.0.graph != b.0.graph {
        Some(RankGroupingObstacle::Graph)
    } else if a.1.shared != b.1.shared {
        Some(RankGroupingObstacle::Class)
    } else if a.0.release != b.0.release || b.0.peers.iter().any(|peer| between.contains(peer)) {
        Some(RankGroupingObstacle::Exchange)
    } else {
        None
    }
}

/// Fails if no rank could simulate another rank. Applies the rule of
/// [`InstanceGroupsSimulatedAsOne::form_groups`](super::InstanceGroupsSimulatedAsOne::form_groups) before the run.
pub(crate) fn check_any_tile_group_forms(
    workload: &Workload,
    plan: &ReplayPlan,
) -> Result<(), ReplayRefusal> {
    let instances = workload.instances();
    let (mut pairs, mut runs, mut start) = ([0; 3], 1, 0);
    for next in 1..instances.len() {
        let planned = |at: usize| (&instances[at], &plan.instances[at]);
        if let Some(difference) = find_grouping_obstacle(planned(start), planned(next)) {
            pairs[difference as usize] += 1;
            (runs, start) = (runs + 1, next);
        }
    }
    let ranks = instances.len();
    if runs < ranks {
        return Ok(());
    }
    let reasons = [
        (RankGroupingObstacle::Graph, "have different graphs"),
        (
            RankGroupingObstacle::Class,
            "are on NPUs of different classes",
        ),
        (
            RankGroupingObstacle::Exchange,
            "exchange messages or begin at different times",
        ),
    ];
    let reasons = reasons.map(|(difference, why)| (pairs[difference as usize], why));
    let reasons: Vec<String> = reasons
        .iter()
        .filter(|(pairs, _)| *pairs > 0)
        .map(|(pairs, why)| format!("{} {why}", format_count_with_noun(*pairs, "pair")))
        .collect();
    let why = match &reasons[..] {
        [] => "the job has only one rank".to_owned(),
        reasons => format!("of neighbours {}", reasons.join(", ")),
    };
    Err(ReplayRefusal::new(
        format!(
            "{} saves no time here: {runs} of {} would run separately, because {why}",
            SettingKey::Aggregate,
            format_count_with_noun(ranks as u64, "rank"),
        ),
        format!("without {}", SettingKey::Aggregate),
    ))
}

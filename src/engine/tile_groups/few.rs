//! Refusal of a search for groups where no neighbours can be in one.

use crate::error::ReplayRefusal;
use crate::plan::ReplayPlan;
use chakram_base::setting::SettingKey;
use chakram_base::units::counted;
use chakram_trace::workload::Workload;

/// Reasons for which neighbours are in no group, with the number of pairs.
#[derive(Clone, Copy, Debug, Default)]
struct Differences {
    graphs: u64,
    classes: u64,
    others: u64,
}

/// Refuses groups where no rank would run for another. Found before the run, by the rule of
/// [`TileGroups::form`](super::TileGroups::form).
pub(crate) fn check(workload: &Workload, plan: &ReplayPlan) -> Result<(), ReplayRefusal> {
    let instances = workload.instances();
    let (mut apart, mut runs, mut start) = (Differences::default(), 1, 0);
    for next in 1..instances.len() {
        let (a, b) = (&instances[start], &instances[next]);
        let between = a.rank..b.rank;
        let count = if a.graph != b.graph {
            &mut apart.graphs
        } else if plan.instances[start].shared != plan.instances[next].shared {
            &mut apart.classes
        } else if a.release != b.release || b.peers.iter().any(|peer| between.contains(peer)) {
            &mut apart.others
        } else {
            continue;
        };
        *count += 1;
        (runs, start) = (runs + 1, next);
    }
    let ranks = instances.len();
    if runs < ranks {
        return Ok(());
    }
    let reasons = [
        (apart.graphs, "carry out unlike graphs"),
        (apart.classes, "are on NPUs of unlike classes"),
        (
            apart.others,
            "exchange messages or begin at different times",
        ),
    ];
    let reasons: Vec<String> = reasons
        .iter()
        .filter(|(pairs, _)| *pairs > 0)
        .map(|(pairs, why)| format!("{} {why}", counted(*pairs, "pair")))
        .collect();
    let why = match &reasons[..] {
        [] => "there is one".to_owned(),
        reasons => format!("of neighbours {}", reasons.join(", ")),
    };
    Err(ReplayRefusal::new(
        format!(
            "{} saves no time here: {runs} of {} would run by themselves, because {why}",
            SettingKey::Aggregate,
            counted(ranks as u64, "rank"),
        ),
        format!("without {}", SettingKey::Aggregate),
    ))
}

//! Compares the traces of all ranks of a job.

use super::defects::{Defect, DefectLocationInFile, DefectLog};
use super::kind::DefectKind;
use super::trace::TraceDefectsAndDigest;
use super::{ValidateOptions, collectives, deadlock, groups, memory, messages, ranks};
use chakram_base::ids::MAX_NPUS;
use chakram_trace::format::escape_and_shorten_name;

/// Returns the defects of single traces and of the whole job. `members` must be in ascending order of ranks.
pub fn validate_job(
    members: &[(u32, &TraceDefectsAndDigest)],
    options: &ValidateOptions,
) -> DefectLog {
    let mut findings = DefectLog::new(options.show);
    let mut first: Vec<(u32, &TraceDefectsAndDigest)> = Vec::with_capacity(members.len());
    for &(rank, trace) in members {
        findings.add_trace_defects(&trace.findings, rank);
        match first.last() {
            Some(&(last, _)) if last == rank => {
                let found = "two traces are of this rank";
                let defect = Defect::new(
                    DefectKind::RankTwice,
                    DefectLocationInFile::default(),
                    found,
                );
                findings.push_and_count_for_rank(defect.set_defect_rank(rank));
            }
            _ => first.push((rank, trace)),
        }
    }
    let members = &first[..];
    let limit = options.ranks.unwrap_or(MAX_NPUS).min(MAX_NPUS);
    let ranks = infer_job_size_and_report_high_ranks(members, options, limit, &mut findings);
    let missing = find_missing_ranks(members, options, ranks, &mut findings);
    let parties = groups::resolve_groups_and_callers(members, ranks, options, &mut findings);
    let before = findings.count_by_severity().errors;
    let sequences = collectives::check_collectives(members, &parties, &mut findings);
    let pairs = messages::match_messages_and_report_defects(members, &mut findings);
    memory::compare_switch_accesses_with_first_rank(members, &missing, &mut findings);
    if findings.count_by_severity().errors == before {
        deadlock::check_deadlock(members, &parties, &sequences, &pairs, &mut findings);
    }
    findings
}

/// Returns the number of ranks in the job. Reports every rank at or above `limit` that has a trace, receives or sends a
/// message, or is a member of a declared group.
fn infer_job_size_and_report_high_ranks(
    members: &[(u32, &TraceDefectsAndDigest)],
    options: &ValidateOptions,
    limit: u32,
    findings: &mut DefectLog,
) -> u32 {
    let mut most = 0;
    let mut seen = |rank: u32| {
        let within = rank < limit;
        if within {
            most = most.max(rank + 1);
        }
        !within
    };
    let beyond = |site: DefectLocationInFile, what: String| {
        let found = format!("{what}, but the job has at most {limit} ranks, which count from 0");
        Defect::new(DefectKind::BeyondJob, site, found)
    };
    for &(rank, trace) in members {
        if seen(rank) {
            findings.push_and_count_for_rank(
                beyond(
                    DefectLocationInFile::default(),
                    format!("this is rank {rank}"),
                )
                .set_defect_rank(rank),
            );
        }
        // Ignore ranks that only an incomplete trace names, because a broken record may contain any number.
        if !trace.facts.whole {
            continue;
        }
        for message in &trace.facts.messages {
            if seen(message.peer) {
                let site = trace.facts.location_of_node(&message.node);
                let what = format!("the node's peer is rank {}", message.peer);
                findings.push_and_count_for_rank(beyond(site, what).set_defect_rank(rank));
            }
        }
        for (name, ranks) in &trace.facts.declared {
            for &member in ranks {
                if seen(member) {
                    let what = format!(
                        "group `{}` has rank {member}",
                        escape_and_shorten_name(name)
                    );
                    findings.push_and_count_for_rank(
                        beyond(DefectLocationInFile::default(), what).set_defect_rank(rank),
                    );
                }
            }
        }
    }
    for (name, ranks) in &options.declared {
        for &member in ranks {
            if seen(member) {
                let what = format!(
                    "group `{}` has rank {member}",
                    escape_and_shorten_name(name)
                );
                findings.push_and_count_for_rank(beyond(DefectLocationInFile::default(), what));
            }
        }
    }
    let sizes = options.dimensions.iter().flatten();
    let npus = sizes.fold(1_u32, |npus, &size| npus.saturating_mul(size));
    match options.ranks {
        Some(ranks) => ranks.min(MAX_NPUS),
        None if options.mirror && options.dimensions.is_some() => most.max(npus).min(MAX_NPUS),
        None => most,
    }
}

/// Returns the job's ranks that have no trace. Reports missing ranks as a defect, unless they are accepted as copies
/// of other ranks.
fn find_missing_ranks(
    members: &[(u32, &TraceDefectsAndDigest)],
    options: &ValidateOptions,
    ranks: u32,
    findings: &mut DefectLog,
) -> Vec<u32> {
    let present = |rank: u32| members.binary_search_by_key(&rank, |(r, _)| *r).is_ok();
    let missing: Vec<u32> = (0..ranks).filter(|&rank| !present(rank)).collect();
    let Some(&first) = missing.first() else {
        return missing;
    };
    if !options.mirror {
        let named = describe_first_use_of_missing_rank(members, &missing);
        let found = format!(
            "{} {} of {ranks} {} no trace{}",
            if missing.len() == 1 { "rank" } else { "ranks" },
            ranks::format_ranks(&missing),
            if missing.len() == 1 { "has" } else { "have" },
            named.unwrap_or_default()
        );
        let defect = Defect::new(
            DefectKind::MissingRank,
            DefectLocationInFile::default(),
            found,
        );
        findings.push_and_count_for_rank(defect.set_defect_rank(first));
        findings.count_more(DefectKind::MissingRank, missing.len() as u64 - 1);
    }
    missing
}

/// Describes where the traces first use a `missing` rank.
fn describe_first_use_of_missing_rank(
    members: &[(u32, &TraceDefectsAndDigest)],
    missing: &[u32],
) -> Option<String> {
    let lacks = |rank: &u32| missing.binary_search(rank).is_ok();
    members.iter().find_map(|(rank, trace)| {
        let facts = &trace.facts;
        if let Some(message) = facts.messages.iter().find(|m| lacks(&m.peer)) {
            let (site, peer) = (facts.location_of_node(&message.node), message.peer);
            return Some(format!("; {site} of rank {rank} names rank {peer}"));
        }
        facts.declared.iter().find_map(|(name, ranks)| {
            let member = ranks.iter().find(|member| lacks(member))?;
            Some(format!(
                "; group `{}` of rank {rank} names rank {member}",
                escape_and_shorten_name(name)
            ))
        })
    })
}

//! Uses random bytes as a trace, which is sliced, anonymised, audited and scaled, or rejected with an error. If the
//! trace can be replayed, so can every result, and an anonymised trace reveals no names.

use chakram::edit::{
    AnnotationStepOrIdSelector, JobCommunication, JobScaler, KeptNodesOfRank, RankGridDimensions,
    ScaledDimension, ShardedBufferKeptSize, TraceAnonymiser, TracePrivateStringFindings,
};
use chakram::units::Span;
use chakram::workload::{DeclaredGroups, EnforcedDependencyKinds, Graph};

/// Runs the target on `data`.
pub fn check_slicing_and_anonymising_bytes(data: &[u8]) {
    let whole = parse_graph_or_none(data);
    for cut in [
        AnnotationStepOrIdSelector::Ids(2..=90),
        AnnotationStepOrIdSelector::Annotation("*e*".to_owned()),
    ] {
        check_slice(data, &cut, whole.is_some());
    }
    let anonymiser = TraceAnonymiser::new(b"key", false, Vec::new());
    match anonymiser.anonymise_trace(data) {
        Ok((after, done)) => {
            let findings = TracePrivateStringFindings::search_trace(&after)
                .expect("it was written whole")
                .into_findings();
            assert!(findings.is_empty(), "{findings:?}");
            if let Some(whole) = &whole {
                let after = parse_graph_or_none(&after).expect("it can be replayed as before");
                assert_eq!((after.len(), after.len() as u64), (whole.len(), done.nodes));
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Err(error) = TracePrivateStringFindings::search_trace(data) {
        assert!(!error.to_string().is_empty());
    }
    for (to, sharded) in [
        (5, ShardedBufferKeptSize::KeepTotal),
        (1, ShardedBufferKeptSize::KeepShard),
    ] {
        check_scaled_ranks_keep_record_count(data, to, sharded);
    }
}

fn parse_graph_or_none(data: &[u8]) -> Option<Graph> {
    Graph::read_graph(data, 0, EnforcedDependencyKinds::Auto)
        .ok()
        .map(|read| read.0)
}

fn check_slice(data: &[u8], cut: &AnnotationStepOrIdSelector, whole: bool) {
    let mut meetings = JobCommunication::default();
    let part = KeptNodesOfRank::select_nodes_and_collect_communication(
        data,
        0,
        cut,
        &DeclaredGroups::new(),
        &mut meetings,
    );
    let Ok(part) = part else {
        return;
    };
    // Damage may create a message from a rank to itself.
    let unmatched = meetings.find_kept_with_cut_partners();
    let to_itself = |one: &String| one.contains("from rank 0 to rank 0 with");
    assert!(
        unmatched.first.iter().all(to_itself),
        "a rank alone parts from nobody: {:?}",
        unmatched.first
    );
    let first = part.earliest_start();
    for start in [first, Span::ZERO] {
        let (after, sliced) = part
            .encode_slice_of_trace(data, start)
            .expect("it was read before");
        assert!(sliced.kept <= sliced.of);
        if whole {
            let graph = parse_graph_or_none(&after).expect("a part of what can be replayed");
            assert_eq!(graph.len() as u64, sliced.kept + sliced.joints);
        }
    }
}

fn check_scaled_ranks_keep_record_count(data: &[u8], to: u32, sharded: ShardedBufferKeptSize) {
    let grid = RankGridDimensions::parse("dp=2,tp=2").expect("it is right");
    let along = ScaledDimension::new(grid, "dp", to).expect("it is right");
    let mut scaling = JobScaler::new(along, sharded, DeclaredGroups::new()).expect("no group");
    let learnt = (0..4).try_for_each(|rank| scaling.scan_rank(rank, data));
    if learnt
        .and_then(|()| scaling.check_ranks_send_equal_messages())
        .is_err()
    {
        return;
    }
    for rank in 0..scaling.scaled_dimension().scaled_rank_count() {
        if let Ok(after) = scaling.build_trace_of_new_rank(rank, data) {
            let (before, after) = (count_records(data), count_records(&after));
            assert_eq!(before, after, "copies have the nodes of what they copy");
        }
    }
}

/// Returns the number of records.
fn count_records(data: &[u8]) -> usize {
    let mut frames = chakram::internals::FrameCursor::new(data);
    std::iter::from_fn(|| frames.next_record().ok().flatten()).count()
}

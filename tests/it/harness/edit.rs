//! Any bytes as a trace: it is cut, anonymised, audited and scaled, or refused with a reason. What comes
//! out of a trace that can be replayed can be, and an anonymised one tells nothing.

use chakram::internals::edit::anonymise::Anonymiser;
use chakram::internals::edit::audit::Audit;
use chakram::internals::edit::scale::{Along, Grid, Scaling, Sharded};
use chakram::internals::edit::slice::{Cut, Meetings, Part};
use chakram::internals::graph::{Dependencies, Graph};
use chakram::internals::trace::groups::Declared;
use chakram::internals::units::Span;

/// What is done with `data`.
pub fn run(data: &[u8]) {
    let whole = graph(data);
    for cut in [Cut::Ids(2..=90), Cut::Annotation("*e*".to_owned())] {
        slice(data, &cut, whole.is_some());
    }
    let anonymiser = Anonymiser::new(b"key", false, Vec::new());
    match anonymiser.trace(data) {
        Ok((after, done)) => {
            let findings = Audit::of(&after).expect("it was written whole").findings();
            assert!(findings.is_empty(), "{findings:?}");
            if let Some(whole) = &whole {
                let after = graph(&after).expect("it can be replayed as before");
                assert_eq!((after.len(), after.len() as u64), (whole.len(), done.nodes));
            }
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Err(error) = Audit::of(data) {
        assert!(!error.to_string().is_empty());
    }
    for (to, sharded) in [(5, Sharded::KeepTotal), (1, Sharded::KeepShard)] {
        scale(data, to, sharded);
    }
}

fn graph(data: &[u8]) -> Option<Graph> {
    Graph::read(data, 0, Dependencies::Auto)
        .ok()
        .map(|read| read.0)
}

fn slice(data: &[u8], cut: &Cut, whole: bool) {
    let mut meetings = Meetings::default();
    let part = Part::select(data, 0, cut, &Declared::new(), &mut meetings);
    let Ok(part) = part else {
        return;
    };
    assert_eq!(
        meetings.unmatched().count,
        0,
        "a rank alone parts from nobody"
    );
    let first = part.first();
    for start in [first, Span::ZERO] {
        let (after, sliced) = part.write(data, start).expect("it was read before");
        assert!(sliced.kept <= sliced.of);
        if whole {
            let graph = graph(&after).expect("a part of what can be replayed");
            assert_eq!(graph.len() as u64, sliced.kept + sliced.joints);
        }
    }
}

fn scale(data: &[u8], to: u32, sharded: Sharded) {
    let grid = Grid::parse("dp=2,tp=2").expect("it is right");
    let along = Along::new(grid, "dp", to).expect("it is right");
    let mut scaling = Scaling::new(along, sharded, Declared::new()).expect("no group");
    let learnt = (0..4).try_for_each(|rank| scaling.learn(rank, data));
    if learnt.and_then(|()| scaling.check()).is_err() {
        return;
    }
    for rank in 0..scaling.along().new_ranks() {
        if let Ok(after) = scaling.write(rank, data) {
            let (before, after) = (nodes(data), nodes(&after));
            assert_eq!(before, after, "copies have the nodes of what they copy");
        }
    }
}

/// How many records there are.
fn nodes(data: &[u8]) -> usize {
    let mut frames = chakram::internals::trace::wire::Frames::new(data);
    std::iter::from_fn(|| frames.next_record().ok().flatten()).count()
}

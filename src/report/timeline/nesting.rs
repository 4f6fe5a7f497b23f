//! Draws a path in a node's name as enclosing slices, one per part.

use super::events::{RankTrackId, TimelineEncoder};
use chakram_base::units::Time;
use chakram_trace::format::origin::parse_step_from_profiler_range_name;

/// Maximum number of path levels drawn above a node. Deeper levels of a path stay in the node's name.
const LEVELS: usize = 8;

/// A range: a slice enclosing nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeEnclosingSlice<'n> {
    pub name: &'n str,
    /// Node or call that the range belongs to. It distinguishes ranges that have the same name. `None` for a part of a
    /// node's name.
    pub of: Option<RangeCausingNodeOrPythonCall>,
}

/// The node or call that a range stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeCausingNodeOrPythonCall {
    /// A node that called other nodes.
    Node(u32),
    /// A Python call.
    Call(u32),
}

/// The open ranges of a lane.
#[derive(Clone, Debug, Default)]
pub(super) struct OpenRangesOfLane {
    open: Vec<(String, Option<RangeCausingNodeOrPythonCall>)>,
    /// End of the last node in the open ranges.
    end: Time,
}

impl OpenRangesOfLane {
    /// Closes open ranges that do not contain the node. Then opens the missing ranges of `path` and, below them, of the
    /// path in `name`. Returns the part of `name` after its path.
    pub fn switch_to_ranges_of_node<'n>(
        &mut self,
        to: &mut dyn TimelineEncoder,
        track: RankTrackId,
        path: &[NodeEnclosingSlice<'_>],
        name: &'n str,
        (start, end): (Time, Time),
    ) -> &'n str {
        let (parts, leaf) = split_range_path(name);
        let mut path = path.to_vec();
        path.extend(
            parts
                .iter()
                .map(|name| NodeEnclosingSlice { name, of: None }),
        );
        let same = |((open, of), part): &(
            &(String, Option<RangeCausingNodeOrPythonCall>),
            &NodeEnclosingSlice<'_>,
        )| { *of == part.of && open == part.name };
        let common = self.open.iter().zip(&path).take_while(same).count();
        self.end_ranges_below_level(to, track, common);
        for part in &path[common..] {
            to.begin_slice(track, part.name, start);
            self.open.push((part.name.to_owned(), part.of));
        }
        self.end = end;
        leaf
    }

    /// Closes all but the outermost `levels` ranges.
    pub fn end_ranges_below_level(
        &mut self,
        to: &mut dyn TimelineEncoder,
        track: RankTrackId,
        levels: usize,
    ) {
        for (part, _) in self.open.drain(levels..).rev() {
            to.end_slice(track, &part, self.end);
        }
    }
}

/// Splits a name at its slashes. The last part is the name itself; the others are the path. The path is empty if the
/// name is not a path of words; many kernel names are not.
fn split_range_path(name: &str) -> (Vec<&str>, &str) {
    let word = |part: &str| {
        let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '#');
        !part.is_empty() && part.chars().all(known)
    };
    if !name.split('/').all(word) {
        return (Vec::new(), name);
    }
    let mut path = Vec::new();
    let mut rest = name;
    while let Some((part, leaf)) = rest.split_once('/')
        && path.len() < LEVELS
    {
        path.push(part);
        rest = leaf;
    }
    (path, rest)
}

/// Returns the step in a node's name, such as `step3/…` (generated traces) or `ProfilerStep#3` (PyTorch).
pub(super) fn step_number_in_name(name: &str) -> Option<u64> {
    let first = name.split('/').next()?;
    let number = first.strip_prefix("step");
    let number = number.and_then(|number| number.parse().ok());
    number.or_else(|| parse_step_from_profiler_range_name(first))
}

#[cfg(test)]
mod tests {
    use super::{split_range_path, step_number_in_name};

    #[test]
    fn steps_are_those_that_names_say() {
        assert_eq!(step_number_in_name("step12/mb0/layer2/norm"), Some(12));
        assert_eq!(step_number_in_name("ProfilerStep#3"), Some(3));
        for other in ["mb0/step1/x", "step", "stepwise/1", "optimizer_step"] {
            assert_eq!(step_number_in_name(other), None);
        }
    }

    #[test]
    fn only_paths_of_words_are_split() {
        assert_eq!(
            split_range_path("mb0/layer2/norm"),
            (vec!["mb0", "layer2"], "norm")
        );
        assert_eq!(split_range_path("norm"), (vec![], "norm"));
        for whole in ["f(a/b)", "a//b", "/a", "a/", "void gemm<a/b>"] {
            assert_eq!(split_range_path(whole), (vec![], whole));
        }
        let (path, leaf) = split_range_path("a/b/c/d/e/f/g/h/i/j");
        assert_eq!((path.len(), leaf), (8, "i/j"));
    }
}

//! The NPU class of each NPU. Machine files assign classes to ranges of NPUs. Classes are stored as runs of NPUs, so
//! memory does not grow with the number of NPUs.

use chakram_base::ids::Npu;

/// The class of every NPU: runs of NPUs in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NpuClassAssignment {
    /// Runs as (number of the first NPU after the run, class).
    runs: Vec<(u32, u32)>,
}

/// NPUs `first` to `last`, inclusive, of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NpuClassRange {
    pub first: u32,
    pub last: u32,
    pub class: u32,
}

/// Violation of the rule that each NPU has exactly one class.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NpuClassAssignmentFault {
    /// `npu` is in two ranges.
    Twice { npu: u32, earlier: u32, later: u32 },
    /// NPUs `first` to `last` are in no range.
    Never { first: u32, last: u32 },
}

impl NpuClassAssignment {
    /// Assigns the first class to all of `npus` NPUs.
    pub(super) fn with_uniform_class(npus: u32) -> Self {
        Self {
            runs: vec![(npus, 0)],
        }
    }

    /// Creates an assignment from `ranges`, which must contain each of the `npus` NPUs exactly once and no other NPUs.
    pub(super) fn new(
        mut ranges: Vec<NpuClassRange>,
        npus: u32,
    ) -> Result<Self, NpuClassAssignmentFault> {
        ranges.sort_unstable_by_key(|range| (range.first, range.class));
        let mut runs: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        let mut next = 0;
        for range in ranges {
            // Ranges are sorted by start, so a gap or overlap shows at the next range's first NPU.
            if range.first > next {
                return Err(NpuClassAssignmentFault::Never {
                    first: next,
                    last: range.first - 1,
                });
            }
            if range.first < next {
                return Err(NpuClassAssignmentFault::Twice {
                    npu: range.first,
                    earlier: runs.last().map_or(0, |&(_, class)| class),
                    later: range.class,
                });
            }
            next = range.last.saturating_add(1);
            runs.push((next, range.class));
        }
        if next < npus {
            return Err(NpuClassAssignmentFault::Never {
                first: next,
                last: npus - 1,
            });
        }
        Ok(Self { runs })
    }

    /// Returns the class of `npu`, which must be an NPU of the machine.
    pub(super) fn class_of_npu(&self, npu: Npu) -> usize {
        let run = self.runs.partition_point(|&(end, _)| end <= npu.0);
        self.runs[run].1 as usize
    }

    /// Returns the runs as (first NPU, last NPU, class), in ascending order.
    pub(super) fn iter_runs(&self) -> impl Iterator<Item = (u32, u32, usize)> + '_ {
        let mut first = 0;
        self.runs.iter().map(move |&(end, class)| {
            let run = (first, end - 1, class as usize);
            first = end;
            run
        })
    }
}

/// Parses `"0-3,6"`. If part of the text is not a range of NPUs below `npus`, fails with the first such part.
pub(super) fn parse_npu_ranges(
    text: &str,
    class: u32,
    npus: u32,
) -> Result<Vec<NpuClassRange>, &str> {
    let number = |digits: &str| {
        let digits = digits.trim();
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| digits.parse().ok()).flatten()
    };
    text.split(',')
        .map(|piece| {
            let (first, last) = piece.split_once('-').unwrap_or((piece, piece));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last && last < npus => {
                    Ok(NpuClassRange { first, last, class })
                }
                _ => Err(piece.trim()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assign_classes(
        texts: &[&str],
        npus: u32,
    ) -> Result<NpuClassAssignment, NpuClassAssignmentFault> {
        let all = texts
            .iter()
            .zip(0..)
            .flat_map(|(text, class)| parse_npu_ranges(text, class, npus).unwrap());
        NpuClassAssignment::new(all.collect(), npus)
    }

    #[test]
    fn each_npu_has_the_class_of_its_range() {
        let assignment = assign_classes(&["0-2, 6", "3-5,7"], 8).unwrap();
        let classes: Vec<_> = (0..8).map(|n| assignment.class_of_npu(Npu(n))).collect();
        assert_eq!(classes, [0, 0, 0, 1, 1, 1, 0, 1]);
        let runs: Vec<_> = assignment.iter_runs().collect();
        assert_eq!(runs, [(0, 2, 0), (3, 5, 1), (6, 6, 0), (7, 7, 1)]);
        assert_eq!(
            NpuClassAssignment::with_uniform_class(4).class_of_npu(Npu(3)),
            0
        );
    }

    #[test]
    fn gaps_and_overlaps_are_named() {
        let never = |first, last| Err(NpuClassAssignmentFault::Never { first, last });
        assert_eq!(assign_classes(&["1-3"], 4), never(0, 0));
        assert_eq!(assign_classes(&["0", "3"], 8), never(1, 2));
        assert_eq!(assign_classes(&["0-3"], 8), never(4, 7));
        let (npu, earlier, later) = (2, 0, 1);
        let twice = NpuClassAssignmentFault::Twice {
            npu,
            earlier,
            later,
        };
        assert_eq!(assign_classes(&["0-5", "2-7"], 8), Err(twice));
    }

    #[test]
    fn text_that_is_no_npu_range_is_returned_as_the_error() {
        for bad in [
            "",
            "x",
            "3-1",
            "8",
            "0-8",
            "-1",
            "1-",
            "+1",
            "0-4000000000",
            "99999999999",
        ] {
            assert_eq!(parse_npu_ranges(bad, 0, 8), Err(bad));
        }
        assert_eq!(parse_npu_ranges("0-1, ,3", 0, 8), Err(""));
    }
}

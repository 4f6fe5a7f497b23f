//! Identifies communication kernels by name when no record or argument describes them.

use chakram_trace::format::CollectiveKind;

/// Rules that the user added to those for known libraries. Each maps a part of a kernel's name to a kind of collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserCommKernelRules {
    added: Vec<(String, CollectiveKind)>,
}

/// Table of communication kernels in known libraries. The format is documented in `comm_kernels.txt`.
const KNOWN: &str = include_str!("comm_kernels.txt");

impl UserCommKernelRules {
    /// Adds a rule: every kernel whose name contains `PART` executes a collective of kind `KIND`. `text` has the
    /// form `PART=KIND`, with a kind such as `all-reduce`.
    ///
    /// # Errors
    ///
    /// Returns an error message that lists the valid kinds if `text` is malformed or names an unknown kind.
    pub fn add_rule_from_text(&mut self, text: &str) -> Result<(), String> {
        let kinds = || {
            let names = CollectiveKind::ALL.iter().map(|(_, name, _)| *name);
            names.collect::<Vec<_>>().join(", ")
        };
        let (part, kind) = text
            .rsplit_once('=')
            .filter(|(part, _)| !part.is_empty())
            .ok_or_else(|| format!("`{text}` is not PART=KIND; KIND is one of {}", kinds()))?;
        let known = collective_kind_with_exact_name(kind);
        let kind = known.ok_or_else(|| {
            format!(
                "`{kind}` is not a kind of collective; expected one of {}",
                kinds()
            )
        })?;
        self.added.push((part.to_owned(), kind));
        Ok(())
    }

    /// Returns a lookup table of the user's rules and the known libraries.
    pub(crate) fn lookup_table(&self) -> CommKernelNameTable<'_> {
        CommKernelNameTable {
            added: &self.added,
            known: iter_known_kernel_patterns().collect(),
        }
    }
}

/// Lookup table that identifies communication kernels by name.
pub(crate) struct CommKernelNameTable<'a> {
    added: &'a [(String, CollectiveKind)],
    known: Vec<CommKernelNamePattern>,
}

/// Kind of communication that a kernel's name shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelNameCommunicationHint {
    /// The kernel is not a known communication kernel.
    Nothing,
    /// The kernel communicates; the value is the kind of collective, or `None` if the name does not show the kind.
    Communicates(Option<CollectiveKind>),
}

/// A row of the table `KNOWN`.
struct CommKernelNamePattern {
    pattern: &'static str,
    /// Kind of collective, or `None` if the name does not reveal it.
    kind: Option<CollectiveKind>,
    /// A kernel name as a real profiler writes it.
    #[cfg(test)]
    example: &'static str,
}

impl CommKernelNameTable<'_> {
    /// Classifies a kernel by name.
    pub fn classify_name(&self, name: &str) -> KernelNameCommunicationHint {
        let mut added = self.added.iter();
        if let Some((_, kind)) = added.find(|(part, _)| name.contains(part)) {
            return KernelNameCommunicationHint::Communicates(Some(*kind));
        }
        let name = lowercase_name_without_arguments(name);
        let row = self
            .known
            .iter()
            .find(|row| matches_kernel_name_pattern(row.pattern, &name));
        row.map_or(KernelNameCommunicationHint::Nothing, |row| {
            KernelNameCommunicationHint::Communicates(row.kind)
        })
    }
}

fn iter_known_kernel_patterns() -> impl Iterator<Item = CommKernelNamePattern> {
    let rows = KNOWN.lines();
    let rows = rows.filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.filter_map(|row| {
        let mut cells = row.splitn(4, '|').map(str::trim);
        let (_, pattern, kind) = (cells.next()?, cells.next()?, cells.next()?);
        Some(CommKernelNamePattern {
            pattern,
            kind: collective_kind_with_exact_name(kind),
            #[cfg(test)]
            example: cells.next()?,
        })
    })
}

fn collective_kind_with_exact_name(name: &str) -> Option<CollectiveKind> {
    let mut all = CollectiveKind::ALL.iter();
    let (kind, ..) = all.find(|(_, known, _)| *known == name)?;
    Some(*kind)
}

/// Converts a name to lower case and removes its argument types, which may belong to another library.
fn lowercase_name_without_arguments(name: &str) -> String {
    let name = name
        .to_ascii_lowercase()
        .replace("(anonymous namespace)", "");
    match name.split_once('(') {
        Some((plain, _)) => plain.to_owned(),
        None => name,
    }
}

/// Returns true if `name` contains the parts of `pattern` in order, with no letter directly before
/// the first part.
fn matches_kernel_name_pattern(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let starts = name.match_indices(first);
    let at_word = |start: usize| !name[..start].ends_with(|c: char| c.is_ascii_alphabetic());
    let mut starts = starts.filter(|&(start, _)| at_word(start));
    starts.next().is_some_and(|(start, _)| {
        let mut rest = &name[start + first.len()..];
        parts.all(|part| match rest.find(part) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_kernel_row_is_first_to_match_its_example() {
        let rows: Vec<CommKernelNamePattern> = iter_known_kernel_patterns().collect();
        let lines = KNOWN.lines().filter(|line| line.contains('|'));
        assert_eq!(
            rows.len() + 1,
            lines.count(),
            "all rows but the head are read"
        );
        for (place, row) in rows.iter().enumerate() {
            let name = lowercase_name_without_arguments(row.example);
            let first = rows
                .iter()
                .position(|row| matches_kernel_name_pattern(row.pattern, &name));
            assert_eq!(
                first,
                Some(place),
                "`{}` of row `{}`",
                row.example,
                row.pattern
            );
            assert_eq!(row.pattern, row.pattern.to_ascii_lowercase());
        }
        let kinds = KNOWN.lines().filter(|line| !line.starts_with('#'));
        let kinds = kinds.filter_map(|line| line.split('|').nth(2));
        for kind in kinds.map(str::trim) {
            assert!(
                kind == "?" || collective_kind_with_exact_name(kind).is_some(),
                "{kind}"
            );
        }
    }

    #[test]
    fn kernel_names_are_classified_by_user_rules_and_known_patterns() {
        let mut kernels = UserCommKernelRules::default();
        let kind = |kernels: &UserCommKernelRules, name| kernels.lookup_table().classify_name(name);
        for (name, expected) in [
            (
                "nccldevkernel_allreduce_sum_f32_ring_ll",
                KernelNameCommunicationHint::Communicates(Some(CollectiveKind::AllReduce)),
            ),
            (
                "ncclDevKernel_SendRecv(ncclDevKernelArgs)",
                KernelNameCommunicationHint::Communicates(None),
            ),
            (
                "_Z36ncclDevKernel_AllGather_RING_LL20ncclDevKernelArgs",
                KernelNameCommunicationHint::Communicates(Some(CollectiveKind::AllGather)),
            ),
            (
                "ampere_sgemm_128x64_nn",
                KernelNameCommunicationHint::Nothing,
            ),
            (
                "void softmax<BlockAllReduce<float>>(float*)",
                KernelNameCommunicationHint::Nothing,
            ),
            (
                "Memcpy DtoD (Device -> Device)",
                KernelNameCommunicationHint::Nothing,
            ),
            (
                "void check_sums(ncclDevKernelArgs)",
                KernelNameCommunicationHint::Nothing,
            ),
        ] {
            assert_eq!(kind(&kernels, name), expected, "{name}");
        }
        assert_eq!(
            kind(&kernels, "my_gather<4>"),
            KernelNameCommunicationHint::Nothing
        );
        kernels
            .add_rule_from_text("my_gather=all-gather")
            .expect("it is one");
        assert_eq!(
            kind(&kernels, "my_gather<4>"),
            KernelNameCommunicationHint::Communicates(Some(CollectiveKind::AllGather))
        );
        let wrong = kernels
            .add_rule_from_text("my_gather=gathering")
            .expect_err("it is none");
        assert!(
            wrong.contains("gathering") && wrong.contains("all-gather"),
            "{wrong}"
        );
        assert!(kernels.add_rule_from_text("all-gather").is_err());
    }
}

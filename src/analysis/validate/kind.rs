//! The kinds of defects, with severity, meaning and remedy.

use chakram_base::setting::SettingKey;
use std::fmt;

/// Severity of a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A replay would reject the job, or would never end.
    Error,
    /// A replay would repair the trace: it would ignore or assume something.
    Warning,
    /// Information that does not affect a replay.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        })
    }
}

/// A row of [`KINDS`]: kind, severity, name and meaning.
struct DefectKindRow(DefectKind, Severity, &'static str, &'static str);

macro_rules! kinds {
    ($($severity:ident $kind:ident $name:literal: $meaning:literal, $hint:expr;)*) => {
        /// The kind of a defect. The order is errors, then warnings, then notes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DefectKind {
            $(#[doc = $meaning] $kind,)*
        }

        /// All kinds of defects, with severity, name and meaning.
        const KINDS: &[DefectKindRow] = &[
            $(DefectKindRow(DefectKind::$kind, Severity::$severity, $name, $meaning),)*
        ];

        impl DefectKind {
            /// Returns the general remedy for defects of this kind.
            pub fn hint(self) -> String {
                match self {
                    $(Self::$kind => $hint.to_string(),)*
                }
            }
        }
    };
}

kinds! {
    Error Unreadable "unreadable": "bytes that break the format, or a file that breaks off or cannot be opened",
        "copy or capture the file again; the records before the break were checked";
    Error InvalidNode "invalid-node": "a node whose type and attributes are inconsistent",
        "check the tool that wrote the trace";
    Error DuplicateId "duplicate-id": "a second node with an id that is taken",
        "give each node of a file its own id; the tool that wrote the file is at fault";
    Error SelfData "self-data": "a node that depends on its own data",
        "capture or convert the trace again; it is broken";
    Error DanglingData "dangling-data": "a node that depends on the data of a missing node",
        "capture or convert the trace again; it is incomplete";
    Error Cycle "cycle": "a dependency cycle: nodes that depend on one another",
        format_args!(
            "{} data, which leaves control dependencies out; a cycle of data dependencies cannot be replayed",
            SettingKey::Dependencies
        );
    Error Unreachable "unreachable": "a node that can never start, because a node before it never ends",
        "repair the nodes that it depends on, which are listed above";
    Error WrongRank "wrong-rank": "a message whose own end is another rank, or whose two ends are one rank",
        "check that the files' numbers are the job's ranks";
    Error DeclaredTwice "group-declared-twice": "a group that one trace declares twice, with different ranks",
        format_args!("delete one of the metadata nodes, or pass the groups with {}", SettingKey::Groups);
    Error Undeclared "undeclared-group": "a collective of an undeclared group",
        format_args!("pass the groups with {} FILE, a JSON object {{\"1\": [0, 1, …]}}", SettingKey::Groups);
    Error NotMember "not-a-member": "a rank that uses a group without being a member",
        "check that the files' numbers are the job's ranks, and that the groups are of this job";
    Error MemberTwice "member-twice": "a group that names a rank twice",
        "name each rank once";
    Error GroupZero "group-zero": "a group named 0 that is not all ranks, although traces use 0 for all ranks",
        "give the group another number, also in the traces";
    Error RankTwice "rank-twice": "a rank that has two traces",
        "give one trace for each rank";
    Error BeyondJob "beyond-job": "a rank outside the job takes part",
        format_args!("look for a peer or group member that is not a rank, or give the job more {}", SettingKey::Ranks);
    Error MissingRank "missing-rank": "a rank without a trace takes part",
        format_args!(
            "add the missing traces, or use {} mirror, which makes missing members arrive with the present ones",
            SettingKey::MissingRanks
        );
    Error Collectives "divergent-collectives": "ranks that disagree on the collectives of a group they share",
        "look for a trace of another job or step, or a truncated trace; members of a group must make \
         the same collectives in the same order";
    Error Root "root-outside-group": "a collective whose root is not in its group",
        "a rank of the job in `comm_root`, not a position in the group";
    Error Oversized "oversized-buffer": "a collective of more than 2^63 bytes",
        "check that `comm_size` is the size of a shard, as all-gather and gather need";
    Error Unmatched "unmatched-message": "a send without its receive, or a receive without its send",
        "check that the two traces are of one job and step, and that neither is truncated";
    Error MessageSize "message-size": "a send and its receive that differ in size",
        "check that the two traces are of one job and step, and that neither is truncated";
    Error InSwitch "divergent-memory": "ranks that disagree on the loads and stores that switches gather and reduce",
        "the same in-switch loads and stores on all ranks, in the order of ids";
    Error Deadlock "deadlock": "a deadlock cycle: ranks that wait for one another",
        "check the order of sends, receives and collectives in these traces";
    Warning SelfControl "self-control": "a control dependency of a node on itself; replays drop it",
        "nothing, if the node was meant to have no other dependency";
    Warning DanglingControl "dangling-control":
        "a control dependency on a missing node; replays drop it",
        "nothing, if the trace was cut from a longer one on purpose";
    Warning ControlCycle "control-cycle":
        "control dependencies that close a cycle; replays drop all control dependencies of the trace",
        format_args!("convert the trace again, or use {} data to confirm that data dependencies are enough", SettingKey::Dependencies);
    Warning HostCommunication "host-communication":
        "communication that is marked as host work; replays carry it out as communication",
        "check whether the trace has the same communication twice, once for the host and once for the NPU";
    Warning Redeclared "group-redeclared": "a group whose ranks declare different members",
        format_args!("pass the groups with {}, which overrides the traces", SettingKey::Groups);
    Warning DivergentDimensions "divergent-parts":
        "ranks that disagree on collectives over some of the machine's dimensions; they may be in different groups",
        format_args!("name the machine with {}, which determines the groups", SettingKey::Machine);
    Warning NoWork "no-work": "a kernel without duration, FLOPs and bytes; it takes no time",
        "capture or convert the trace with durations";
    Warning Overfreed "overfreed": "memory that is freed but that no node allocates; replays free only allocated memory",
        "if the trace was cut from a longer one, peaks lack earlier allocations; otherwise the tool that wrote the trace is at fault";
    Note DuplicateDependency "duplicate-dependency": "a dependency that a node names more than once",
        "nothing; replays merge them";
    Note Isolated "isolated": "a node without dependencies on which no node depends",
        "check whether the trace lost its dependencies; the node starts at time 0";
    Note NoDuration "no-duration": "host work without a duration; it takes no time",
        "nothing, if the work was shorter than the clock's resolution";
}

impl DefectKind {
    /// Number of kinds.
    pub const COUNT: usize = KINDS.len();

    /// Iterates over all kinds, errors first.
    pub fn iter_all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|row| row.0)
    }

    /// Returns the severity of this kind.
    pub fn severity(self) -> Severity {
        KINDS[self as usize].1
    }

    /// Returns the name of this kind. Names do not change between versions.
    pub fn stable_name(self) -> &'static str {
        KINDS[self as usize].2
    }

    /// Returns a phrase that describes defects of this kind.
    pub fn explain_meaning(self) -> &'static str {
        KINDS[self as usize].3
    }
}

impl fmt::Display for DefectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.stable_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn kinds_are_in_the_order_of_their_severity_and_have_names_of_their_own() {
        let severities: Vec<_> = DefectKind::iter_all().map(DefectKind::severity).collect();
        assert!(severities.is_sorted());
        assert!(
            DefectKind::iter_all()
                .enumerate()
                .all(|(i, kind)| kind as usize == i)
        );
        let names: BTreeSet<_> = DefectKind::iter_all()
            .map(DefectKind::stable_name)
            .collect();
        assert_eq!(names.len(), DefectKind::COUNT);
        let kebab = |name: &str| name.bytes().all(|b| b == b'-' || b.is_ascii_lowercase());
        assert!(names.iter().all(|name| kebab(name)));
    }
}

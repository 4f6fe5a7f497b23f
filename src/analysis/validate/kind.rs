//! Kinds of defects, with severity, meaning and remedy.

use chakram_base::setting::SettingKey;
use std::fmt;

/// Severity of a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A replay would reject the job, or the replay would never end.
    Error,
    /// A replay would continue after dropping or assuming something.
    Warning,
    /// Information only.
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

/// Row of [`KINDS`]: kind, severity, name and meaning.
struct DefectRow(DefectKind, Severity, &'static str, &'static str);

macro_rules! kinds {
    ($($severity:ident $kind:ident $name:literal: $meaning:literal, $hint:expr;)*) => {
        /// Kind of a defect. Errors come first, then warnings, then notes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum DefectKind {
            $(#[doc = $meaning] $kind,)*
        }

        /// All kinds with severity, name and meaning.
        const KINDS: &[DefectRow] = &[
            $(DefectRow(DefectKind::$kind, Severity::$severity, $name, $meaning),)*
        ];

        impl DefectKind {
            /// Returns the remedy for defects of this kind.
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
        "copy or capture the file anew; what stands before the break was checked";
    Error InvalidNode "invalid-node": "a node whose type and attributes are inconsistent",
        "look at the tool that wrote the trace";
    Error DuplicateId "duplicate-id": "a second node with an id that is taken",
        "ids are unique within one file; the producer is at fault";
    Error SelfData "self-data": "a node that waits for its own data",
        "the trace is broken; capture or convert it anew";
    Error DanglingData "dangling-data": "a node that waits for the data of a node that does not exist",
        "the trace is incomplete; capture or convert it anew";
    Error Cycle "cycle": "a dependency cycle: nodes that wait for one another",
        format_args!(
            "with {} data control dependencies are left out; a cycle of data dependencies cannot be replayed",
            SettingKey::Dependencies
        );
    Error Unreachable "unreachable": "a node that can never start, because of what it waits for",
        "repair what it depends on, which is listed above";
    Error WrongRank "wrong-rank": "a message whose own end is another rank, or whose two ends are one rank",
        "look whether the files are numbered as the job was";
    Error DeclaredTwice "group-declared-twice": "a group that one trace declares twice, with other ranks",
        format_args!("delete one of the metadata nodes, or pass the groups with {}", SettingKey::Groups);
    Error Undeclared "undeclared-group": "a collective of a group that nothing declares",
        format_args!("pass the groups with {} FILE, a JSON object {{\"1\": [0, 1, …]}}", SettingKey::Groups);
    Error NotMember "not-a-member": "a rank that is no member of a group it uses",
        "look whether the files are numbered as the job was, and whether the groups are those of this job";
    Error MemberTwice "member-twice": "a group that names a rank twice",
        "name each rank once";
    Error GroupZero "group-zero": "a group called 0 that is not all ranks, which traces use 0 for",
        "give the group another number, in the traces too";
    Error RankTwice "rank-twice": "a rank that has two traces",
        "give one trace for each rank";
    Error BeyondJob "beyond-job": "a rank that takes part and is none of the job's",
        format_args!("look for a peer or group member that is no rank, or give the job more {}", SettingKey::Ranks);
    Error MissingRank "missing-rank": "a rank that takes part and has no trace",
        format_args!(
            "add the missing traces, or take {} mirror, which lets a missing member arrive with the present ones",
            SettingKey::MissingRanks
        );
    Error Collectives "divergent-collectives": "ranks that disagree on the collectives of a group they share",
        "members of a group must make the same collectives in the same order; look for a trace of another job or \
         step, or one that was cut";
    Error Root "root-outside-group": "a collective whose root is not in its group",
        "`comm_root` is a rank of the job, not a place in the group";
    Error Oversized "oversized-buffer": "a collective of more than 2^63 bytes",
        "look whether `comm_size` is the shard, as it must be for all-gather and gather";
    Error Unmatched "unmatched-message": "a send without its receive, or a receive without its send",
        "the two traces are of different jobs or steps, or one was cut";
    Error MessageSize "message-size": "a send and its receive that differ in size",
        "the two traces are of different jobs or steps, or one was cut";
    Error InSwitch "divergent-memory": "ranks that disagree on what switches gather and reduce",
        "in-switch loads and stores are the same on all ranks, in the order of ids";
    Error Deadlock "deadlock": "a deadlock cycle: ranks that wait for one another",
        "look at the order of sends, receives and collectives in these traces";
    Warning SelfControl "self-control": "a control dependency of a node on itself; replays drop it",
        "nothing, if the node was meant to wait for nothing else";
    Warning DanglingControl "dangling-control":
        "a control dependency on a node that does not exist; replays drop it",
        "nothing, if the trace was cut from a longer one on purpose";
    Warning ControlCycle "control-cycle":
        "control dependencies that close a cycle; replays drop all control dependencies of the trace",
        format_args!("convert the trace anew, or take {} data to say that it is meant", SettingKey::Dependencies);
    Warning HostCommunication "host-communication":
        "communication that is marked as host work; replays carry it out as communication",
        "look whether the same communication is in the trace twice, once for the host and once for the NPU";
    Warning Redeclared "group-redeclared": "a group of which ranks that share it know other members",
        format_args!("pass the groups with {}, which goes before what traces declare", SettingKey::Groups);
    Warning DivergentDimensions "divergent-parts":
        "ranks that disagree on collectives over some of the machine's dimensions; they may not share them",
        format_args!("say on which machine with {}, which decides who takes part", SettingKey::Machine);
    Warning NoWork "no-work": "a kernel without duration, FLOPs and bytes; it takes no time",
        "capture or convert the trace with durations";
    Warning Overfreed "overfreed": "memory that is freed and that no node allocates; replays free what is there",
        "if the trace was cut from a longer one, peaks lack what was allocated before; if not, its producer is at fault";
    Note DuplicateDependency "duplicate-dependency": "a dependency that a node names more than once",
        "nothing; replays merge them";
    Note Isolated "isolated": "a node that waits for nothing and that nothing waits for",
        "look whether the trace lost its dependencies; the node starts at once";
    Note NoDuration "no-duration": "host work without a duration; it takes no time",
        "nothing, if the work was shorter than the clock could tell";
}

impl DefectKind {
    /// Number of kinds.
    pub const COUNT: usize = KINDS.len();

    /// Iterates over all kinds, errors first.
    pub fn all() -> impl Iterator<Item = Self> {
        KINDS.iter().map(|row| row.0)
    }

    /// Returns the severity of this kind.
    pub fn severity(self) -> Severity {
        KINDS[self as usize].1
    }

    /// Returns the name of this kind, which is stable across versions.
    pub fn name(self) -> &'static str {
        KINDS[self as usize].2
    }

    /// Returns the meaning of this kind.
    pub fn meaning(self) -> &'static str {
        KINDS[self as usize].3
    }
}

impl fmt::Display for DefectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn kinds_are_in_the_order_of_their_severity_and_have_names_of_their_own() {
        let severities: Vec<_> = DefectKind::all().map(DefectKind::severity).collect();
        assert!(severities.is_sorted());
        assert!(
            DefectKind::all()
                .enumerate()
                .all(|(i, kind)| kind as usize == i)
        );
        let names: BTreeSet<_> = DefectKind::all().map(DefectKind::name).collect();
        assert_eq!(names.len(), DefectKind::COUNT);
        let kebab = |name: &str| name.bytes().all(|b| b == b'-' || b.is_ascii_lowercase());
        assert!(names.iter().all(|name| kebab(name)));
    }
}

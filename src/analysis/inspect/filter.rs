//! Filters that select nodes for an inspection.

use super::class::InspectedNodeType;
use super::lanes::{LaneKey, group_label};
use super::trace::InspectedRankTrace;
use chakram_base::units::Time;
use chakram_trace::format::attr::AttrView;
use chakram_trace::format::wire::{RawRecord, WireCursor, WireValue};
use chakram_trace::format::{GroupName, Op};
use std::fmt;
use std::str::FromStr;

/// Case-sensitive pattern for names. A pattern that contains `*`, `?` or `[` must match the whole name. Any other
/// pattern must occur somewhere in the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameGlobOrSubstring {
    /// Glob pattern that matches the whole name.
    Whole(Box<glob::Pattern>),
    /// String that the name must contain.
    Part(String),
}

impl NameGlobOrSubstring {
    /// Returns true if `name` matches the pattern.
    pub fn matches_name(&self, name: &str) -> bool {
        match self {
            Self::Whole(pattern) => pattern.matches(name),
            Self::Part(part) => name.contains(&part[..]),
        }
    }

    fn as_text(&self) -> &str {
        match self {
            Self::Whole(pattern) => pattern.as_str(),
            Self::Part(part) => part,
        }
    }
}

impl fmt::Display for NameGlobOrSubstring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_text())
    }
}

impl FromStr for NameGlobOrSubstring {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !text.contains(['*', '?', '[']) {
            return Ok(Self::Part(text.to_owned()));
        }
        let pattern = glob::Pattern::new(text).map_err(|e| {
            format!("{e}; * matches any text, ? a character, [ab] one of several, [[] a bracket")
        })?;
        Ok(Self::Whole(Box::new(pattern)))
    }
}

/// A set of node types, with names that [`InspectedNodeType::find_classes_by_name`] accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeTypeFilter(Vec<InspectedNodeType>);

impl fmt::Display for NodeTypeFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, class) in self.0.iter().enumerate() {
            write!(f, "{}{class}", if i > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

impl FromStr for NodeTypeFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut classes = Vec::new();
        for name in text.split(',') {
            let named = InspectedNodeType::find_classes_by_name(name.trim());
            if named.is_empty() {
                return Err(format!(
                    "there is no type `{name}`; expected one of {}",
                    InspectedNodeType::list_names()
                ));
            }
            classes.extend(named);
        }
        Ok(Self(classes))
    }
}

/// A set of ranks, such as `0,4-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSet(Vec<(u32, u32)>);

impl RankSet {
    /// Returns true if the set contains `rank`.
    pub fn has_rank(&self, rank: u32) -> bool {
        self.0.iter().any(|&(from, to)| (from..=to).contains(&rank))
    }
}

impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (from, to)) in self.0.iter().enumerate() {
            f.write_str(if i > 0 { "," } else { "" })?;
            if from == to {
                write!(f, "{from}")?
            } else {
                write!(f, "{from}-{to}")?
            }
        }
        Ok(())
    }
}

impl FromStr for RankSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |word: &str| {
            let parsed = word.trim().parse::<u32>();
            parsed.map_err(|_| format!("`{word}` is not a rank; write for example 0,4-7"))
        };
        let parts = text.split(',').map(|part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let (from, to) = (number(from)?, number(to)?);
            if from <= to {
                Ok((from, to))
            } else {
                Err(format!("`{part}` ends before it begins"))
            }
        });
        parts.collect::<Result<_, _>>().map(Self)
    }
}

/// An attribute and its required value, such as `phase=backward` or `layer=3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeFilter {
    name: String,
    value: String,
}

impl AttributeFilter {
    fn matches_attribute(&self, attr: &AttrView<'_>) -> bool {
        if attr.name != self.name.as_bytes() {
            return false;
        }
        match attr.as_str() {
            Ok(Some(text)) => text == self.value,
            _ => attr
                .as_count()
                .is_ok_and(|count| self.value.parse() == Ok(count)),
        }
    }
}

impl fmt::Display for AttributeFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

impl FromStr for AttributeFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once('=')
            .ok_or("expected an attribute and its value, for example phase=backward")?;
        let [name, value] = [name, value].map(str::to_owned);
        Ok(Self { name, value })
    }
}

/// A node filter. A node must satisfy every condition that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFilter {
    /// Patterns for the node's name, at least one of which must match.
    pub names: Vec<NameGlobOrSubstring>,
    /// Types that a selected node may have.
    pub types: Vec<NodeTypeFilter>,
    /// Groups; the node must be a collective of one of these groups.
    pub groups: Vec<String>,
    /// Patterns for the name of the node's lane; one of them must match the lane's name in tables or its name in the
    /// file.
    pub lanes: Vec<NameGlobOrSubstring>,
    /// Attributes that the node must have. If an attribute has several values, one match is enough.
    pub labels: Vec<AttributeFilter>,
    /// Start of the time window: the node must end after this time. A node without a duration may also start and end
    /// exactly at this time.
    pub from: Option<Time>,
    /// End of the time window: the node must start before this time.
    pub to: Option<Time>,
}

impl NodeFilter {
    /// Returns true if no condition is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns one entry per node of `trace`: true if the node is selected; `None` if all nodes are
    /// selected.
    pub fn flag_selected_nodes(&self, trace: &InspectedRankTrace<'_>) -> Option<Vec<bool>> {
        if self.is_empty() {
            return None;
        }
        let lane_fits: Vec<bool> = (0..trace.lanes.lane_count() as u32)
            .map(|lane| {
                let (key, name) = (
                    trace.lanes.lane_key_of_index(lane),
                    trace.lanes.lane_name(lane),
                );
                self.lanes.is_empty() || self.lanes.iter().any(|l| matches_lane(l, &key, name))
            })
            .collect();
        let fits = |node: u32| {
            lane_fits[trace.lanes.lane_of_node(node) as usize]
                && self.matches_kind(trace.classes[node as usize])
                && self.matches_group(&trace.raw.nodes[node as usize].view.op)
                && self.overlaps_time_window(trace, node)
                && self.matches_attribute_filters(&trace.raw.nodes[node as usize].record)
                && self.matches_name(trace.raw.nodes[node as usize].view.name)
        };
        Some(trace.raw.range_of_all_node_indices().map(fits).collect())
    }

    fn matches_name(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|pattern| pattern.matches_name(name))
    }

    fn matches_kind(&self, class: InspectedNodeType) -> bool {
        self.types.is_empty() || self.types.iter().any(|types| types.0.contains(&class))
    }

    fn matches_group(&self, op: &Op<'_>) -> bool {
        let Op::Collective { group, .. } = *op else {
            return self.groups.is_empty();
        };
        let label = group_label(group);
        let all = |text: &String| group == GroupName::World && matches!(&text[..], "all" | "0");
        self.groups.is_empty() || self.groups.iter().any(|text| *text == label || all(text))
    }

    fn matches_attribute_filters(&self, record: &RawRecord<'_>) -> bool {
        if self.labels.is_empty() {
            return true;
        }
        let mut attributes = Vec::new();
        let mut cursor = WireCursor::new(record.bytes, record.offset);
        while let Ok((number, wire)) = cursor.read_field() {
            if let (10, WireValue::Bytes(message, at)) = (number, wire) {
                attributes.extend(AttrView::scan_attribute(message, at).ok());
            }
        }
        self.labels.iter().all(|label| {
            // If an attribute has several values, one match is enough.
            let alike = |other: &&AttributeFilter| other.name == label.name;
            let mut wanted = self.labels.iter().filter(alike);
            wanted.any(|label| attributes.iter().any(|attr| label.matches_attribute(attr)))
        })
    }

    /// Returns true if the node overlaps the time window. A node without times is never in the window.
    fn overlaps_time_window(&self, trace: &InspectedRankTrace<'_>, node: u32) -> bool {
        if self.from.is_none() && self.to.is_none() {
            return true;
        }
        let run = &trace.times.run;
        let (start, end) = (run.start[node as usize], run.end[node as usize]);
        let after = self
            .from
            .is_none_or(|from| end > from || (start == end && start >= from));
        run.has_node_run(node) && after && self.to.is_none_or(|to| start < to)
    }
}

fn matches_lane(wanted: &NameGlobOrSubstring, key: &LaneKey, name: Option<&str>) -> bool {
    wanted.as_text() == key.to_string() || name.is_some_and(|name| wanted.matches_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_whole_names_and_other_texts_parts() {
        let fits = |pattern: &str, name| {
            pattern
                .parse::<NameGlobOrSubstring>()
                .unwrap()
                .matches_name(name)
        };
        assert!(fits("aten::*mm", "aten::addmm") && !fits("aten::*mm", "aten::mm_out"));
        assert!(fits("mm", "aten::mm_out") && !fits("MM", "aten::mm"));
        assert!(fits("layer?/m*", "layer3/mlp/1") && !fits("layer?/m*", "layer31/mlp"));
        assert!(fits("", "anything"));
        assert!(
            "a[".parse::<NameGlobOrSubstring>()
                .unwrap_err()
                .contains("[[] a bracket")
        );
    }

    #[test]
    fn ranks_come_as_numbers_and_ranges() {
        let set: RankSet = "0,4-6".parse().unwrap();
        let members: Vec<u32> = (0..9).filter(|&rank| set.has_rank(rank)).collect();
        assert_eq!(
            (members, set.to_string()),
            (vec![0, 4, 5, 6], "0,4-6".to_owned())
        );
        for bad in ["", "a", "3-1", "1-", "-1"] {
            assert!(bad.parse::<RankSet>().is_err(), "{bad}");
        }
    }

    #[test]
    fn unknown_kinds_are_refused_by_name() {
        let error = "send,kernel".parse::<NodeTypeFilter>().unwrap_err();
        assert!(
            error.contains("there is no type `kernel`; expected one of host, compute"),
            "{error}"
        );
        assert_eq!(
            "send, receive".parse::<NodeTypeFilter>().unwrap().0.len(),
            2
        );
    }
}

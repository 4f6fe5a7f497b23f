//! Table with one row per node of a replay. Each row states when the node ran, and why it did not start earlier.
//!
//! Columns are flat arrays in Apache Arrow's layout. A string is stored as an index into a list of values. An unknown
//! value has a zero bit in a bitmap. Only [`NodeTable::list_columns`] lists the columns, so that file writers and other
//! programs agree on them.

mod parquet;
mod text;

use chakram_base::units::{Time, format_thousands};
use chakram_engine::ReplayRefusal;
use std::collections::BTreeMap;

/// Why a node did not start earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StartCause {
    /// It waited for no other node: it started at the beginning of the replay, or when its rank was released.
    Release,
    /// It waited for its last dependency, which completed at this time, or earlier by the node's delay.
    Dependency,
    /// It waited for the previous node on its lane, which ended at this time.
    Lane,
    /// It waited for the last member of its collective, which became ready at this time.
    Member,
    /// Its collective waited for its turn in the group's launch order.
    Order,
}

impl StartCause {
    /// Every cause with its name, ordered by number.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Release, "release"),
        (Self::Dependency, "dependency"),
        (Self::Lane, "lane"),
        (Self::Member, "member"),
        (Self::Order, "order"),
    ];
}

/// A column of strings, stored as indices into a list of values. Index -1 means no string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodedTextColumn {
    /// For each row, the index of its string in `values`.
    pub codes: Vec<i32>,
    /// The distinct strings.
    pub values: Vec<String>,
}

impl CodedTextColumn {
    /// Returns the string in `row`; `None` if the row has no string.
    pub fn get(&self, row: usize) -> Option<&str> {
        let code = usize::try_from(self.codes[row]).ok()?;
        Some(&self.values[code])
    }
}

/// A column of numbers, some of which may be unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionalNumberColumn<T> {
    /// Number of each row; 0 if unknown.
    pub values: Vec<T>,
    /// One bit per row, starting with the lowest bit of each byte: 1 if the number is known.
    pub known: Vec<u8>,
    /// Number of unknown rows.
    pub unknown: usize,
}

impl<T: Copy + Default> OptionalNumberColumn<T> {
    fn push(&mut self, value: Option<T>) {
        let row = self.values.len();
        if row.is_multiple_of(8) {
            self.known.push(0);
        }
        if let (Some(_), Some(byte)) = (value, self.known.last_mut()) {
            *byte |= 1 << (row % 8);
        }
        self.unknown += usize::from(value.is_none());
        self.values.push(value.unwrap_or_default());
    }

    /// Returns the number in `row`; `None` if unknown.
    pub fn get(&self, row: usize) -> Option<T> {
        let known = self.known[row / 8] >> (row % 8) & 1;
        (known == 1).then(|| self.values[row])
    }
}

/// A column of a node table, of any type.
#[derive(Clone, Copy, Debug)]
pub enum NodeColumnValues<'t> {
    /// 32-bit integers, all known.
    U32(&'t [u32]),
    /// 64-bit integers, all known.
    U64(&'t [u64]),
    /// 32-bit integers; some rows may be unknown.
    PartialU32(&'t OptionalNumberColumn<u32>),
    /// 64-bit integers; some rows may be unknown.
    PartialU64(&'t OptionalNumberColumn<u64>),
    /// Strings.
    Text(&'t CodedTextColumn),
}

/// Table with one row per node of a replay, sorted by rank, then in trace order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTable {
    rank: Vec<u32>,
    node: Vec<u64>,
    name: CodedTextColumn,
    class: CodedTextColumn,
    start_ps: Vec<u64>,
    end_ps: Vec<u64>,
    lane: CodedTextColumn,
    waited_for: CodedTextColumn,
    waited_rank: OptionalNumberColumn<u32>,
    waited_node: OptionalNumberColumn<u64>,
    partner_rank: OptionalNumberColumn<u32>,
    partner_node: OptionalNumberColumn<u64>,
}

/// A node, identified by its rank and its id in the trace.
pub type NodeRankAndId = (u32, u64);

/// A row to add. The row's strings are indices from [`DistinctTextIndices`].
#[derive(Clone, Copy, Debug)]
pub struct NodeTableRow {
    /// Rank and trace id that identify the node.
    pub node: NodeRankAndId,
    /// String index of the node's name.
    pub name: i32,
    /// String index of the node's class.
    pub class: i32,
    /// Times of issue and completion.
    pub span: [Time; 2],
    /// String index of the lane's name, or -1 if the node has no lane.
    pub lane: i32,
    /// Why the node did not start earlier, and the node that it waited for.
    pub cause: (StartCause, Option<NodeRankAndId>),
    /// The communication partner that determined when the node ended, if there was one.
    pub partner: Option<NodeRankAndId>,
}

/// Assigns indices to distinct strings in order of first occurrence.
#[derive(Debug, Default)]
pub struct DistinctTextIndices(BTreeMap<String, i32>);

impl DistinctTextIndices {
    /// Returns the index of `text`, and adds `text` if it is new.
    pub fn intern_text(&mut self, text: &str) -> i32 {
        if let Some(&number) = self.0.get(text) {
            return number;
        }
        let number = self.0.len() as i32;
        self.0.insert(text.to_owned(), number);
        number
    }

    fn into_values(self) -> Vec<String> {
        let mut values = vec![String::new(); self.0.len()];
        for (text, number) in self.0 {
            values[number as usize] = text;
        }
        values
    }
}

impl NodeTable {
    /// Names of the columns, in the order of [`Self::list_columns`].
    pub const COLUMNS: [&'static str; 12] = [
        "rank",
        "node",
        "name",
        "class",
        "start_ps",
        "end_ps",
        "lane",
        "waited_for",
        "waited_rank",
        "waited_node",
        "partner_rank",
        "partner_node",
    ];

    /// Creates an empty table with space for `rows` rows.
    pub fn with_capacity(rows: usize) -> Self {
        let mut table = Self::default();
        table.rank.reserve_exact(rows);
        table.node.reserve_exact(rows);
        table.start_ps.reserve_exact(rows);
        table.end_ps.reserve_exact(rows);
        for texts in [
            &mut table.name,
            &mut table.class,
            &mut table.lane,
            &mut table.waited_for,
        ] {
            texts.codes.reserve_exact(rows);
        }
        table
    }

    /// Adds a row.
    pub fn push(&mut self, row: NodeTableRow) {
        let NodeTableRow { node, span, .. } = row;
        self.rank.push(node.0);
        self.node.push(node.1);
        self.name.codes.push(row.name);
        self.class.codes.push(row.class);
        self.start_ps.push(span[0].0);
        self.end_ps.push(span[1].0);
        self.lane.codes.push(row.lane);
        let (cause, waited) = row.cause;
        self.waited_for.codes.push(cause as i32);
        self.waited_rank.push(waited.map(|(rank, _)| rank));
        self.waited_node.push(waited.map(|(_, node)| node));
        self.partner_rank.push(row.partner.map(|(rank, _)| rank));
        self.partner_node.push(row.partner.map(|(_, node)| node));
    }

    /// Sets the strings for the rows' name, class and lane indices.
    pub fn set_texts_of_indexed_columns(
        &mut self,
        names: DistinctTextIndices,
        classes: &[String],
        lanes: DistinctTextIndices,
    ) {
        self.name.values = names.into_values();
        self.class.values = classes.to_vec();
        self.lane.values = lanes.into_values();
        let causes = StartCause::ALL.iter().map(|(_, name)| (*name).to_owned());
        self.waited_for.values = causes.collect();
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.rank.len()
    }

    /// Returns true if the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rank.is_empty()
    }

    /// Returns the columns in the order of [`Self::COLUMNS`].
    pub fn list_columns(&self) -> [NodeColumnValues<'_>; 12] {
        [
            NodeColumnValues::U32(&self.rank),
            NodeColumnValues::U64(&self.node),
            NodeColumnValues::Text(&self.name),
            NodeColumnValues::Text(&self.class),
            NodeColumnValues::U64(&self.start_ps),
            NodeColumnValues::U64(&self.end_ps),
            NodeColumnValues::Text(&self.lane),
            NodeColumnValues::Text(&self.waited_for),
            NodeColumnValues::PartialU32(&self.waited_rank),
            NodeColumnValues::PartialU64(&self.waited_node),
            NodeColumnValues::PartialU32(&self.partner_rank),
            NodeColumnValues::PartialU64(&self.partner_node),
        ]
    }
}

/// Limit on the number of rows in a node table.
#[derive(Debug)]
pub struct NodeTableRowLimit;

impl NodeTableRowLimit {
    /// Maximum number of rows in a table. Also the maximum number of nodes in a replay with a critical path.
    pub const MOST: u64 = 8 << 20;

    /// Checks that a table with `nodes` rows is allowed.
    ///
    /// # Errors
    ///
    /// Fails if `nodes` exceeds [`Self::MOST`].
    pub fn check_row_count(nodes: u64) -> Result<(), ReplayRefusal> {
        if nodes <= Self::MOST {
            return Ok(());
        }
        let found = format!(
            "the replay has {} nodes, and a table of nodes at most {}",
            format_thousands(nodes),
            format_thousands(Self::MOST)
        );
        Err(ReplayRefusal::new(
            found,
            "fewer ranks, or one step of the job",
        ))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a table of ten rows; every third row waits for no node.
    pub fn build_example_table() -> NodeTable {
        let mut table = NodeTable::default();
        let (mut names, mut lanes) = (
            DistinctTextIndices::default(),
            DistinctTextIndices::default(),
        );
        for i in 0..10_u32 {
            let name = names.intern_text(["a, b", "=c"][i as usize % 2]);
            let lane = if i == 4 {
                -1
            } else {
                lanes.intern_text("compute")
            };
            let known = (i % 3 != 0).then_some((i, 7));
            let cause = match known {
                Some(_) => StartCause::Lane,
                None => StartCause::Release,
            };
            table.push(NodeTableRow {
                node: (i, u64::from(i) << 33),
                name,
                class: 1,
                span: [Time(u64::from(i)), Time(u64::MAX)],
                lane,
                cause: (cause, known),
                partner: None,
            });
        }
        table.set_texts_of_indexed_columns(
            names,
            &["nothing".to_owned(), "compute".to_owned()],
            lanes,
        );
        table
    }

    #[test]
    fn unknown_numbers_have_zero_bits_in_known_mask() {
        let table = build_example_table();
        // Rows 0, 3, 6 and 9 are unknown, so bits 1, 2, 4, 5, 7 of the first byte and bit 0 of the second are set.
        assert_eq!(table.waited_rank.known, [0b1011_0110, 0b01]);
        assert_eq!(table.waited_rank.unknown, 4);
        assert_eq!(table.waited_node.get(4), Some(7));
        assert_eq!(table.waited_node.get(9), None);
        assert_eq!(table.partner_node.unknown, 10);
        assert_eq!(
            (table.lane.get(3), table.lane.get(4)),
            (Some("compute"), None)
        );
        assert_eq!(table.list_columns().len(), NodeTable::COLUMNS.len());
        for (number, (cause, _)) in StartCause::ALL.iter().enumerate() {
            assert_eq!(*cause as usize, number);
        }
    }
}

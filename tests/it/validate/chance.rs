//! Generates sound random jobs: all operations have one global order, and dependencies are on
//! earlier operations in this order.

use chakram::internals::groups::metadata_text;
use chakram::internals::proto::attribute_proto::Value;
use chakram::internals::proto::{AttributeProto, BoolList, GlobalMetadata, IoInfo, Node};
use chakram::validate::{DefectLog, TraceDefectsAndDigest, ValidateOptions, validate_job};
use chakram::workload::DeclaredGroups;
use prost::Message;

/// Random numbers from a seed, by splitmix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())].clone()
    }
}

/// A job before it is written. The first node of a rank declares groups.
#[derive(Clone)]
pub struct UnwrittenJob {
    pub ranks: Vec<Vec<Node>>,
    pub groups: DeclaredGroups,
    pub options: ValidateOptions,
    /// A rank whose file is truncated, and its remaining bytes.
    pub cut: Option<(usize, usize)>,
    /// The rank without a trace; the next field is the rank with two traces.
    pub absent: Option<u32>,
    pub twice: Option<u32>,
}

pub fn make_attribute_with_value(name: &str, value: Value) -> AttributeProto {
    AttributeProto {
        name: name.to_owned(),
        value: Some(value),
        ..AttributeProto::default()
    }
}

pub fn make_integer_attribute(name: &str, value: i64) -> AttributeProto {
    make_attribute_with_value(name, Value::Int64Val(value))
}

/// Returns the value of an integer attribute, if the node has it.
pub fn find_integer_attribute_mut<'n>(node: &'n mut Node, name: &str) -> Option<&'n mut i64> {
    let attr = node.attr.iter_mut().find(|attr| attr.name == name)?;
    match &mut attr.value {
        Some(Value::Int64Val(value)) => Some(value),
        _ => None,
    }
}

pub fn has_attribute(node: &Node, name: &str) -> bool {
    node.attr.iter().any(|attr| attr.name == name)
}

pub fn is_collective(node: &Node) -> bool {
    node.r#type == 7
}

pub fn is_message(node: &Node) -> bool {
    matches!(node.r#type, 5 | 6)
}

pub fn make_group_declaration_node(groups: &DeclaredGroups) -> Node {
    Node {
        id: 5,
        name: "## process_group:init ##".to_owned(),
        r#type: 1,
        inputs: Some(IoInfo {
            values: metadata_text(groups),
            ..IoInfo::default()
        }),
        ..Node::default()
    }
}

fn make_node_with_kind_and_attributes(kind: i32, attr: Vec<AttributeProto>) -> Node {
    Node {
        r#type: kind,
        duration_micros: 5,
        attr,
        ..Node::default()
    }
}

/// Returns a collective with this `comm_type`.
fn make_collective_node(kind: i64, bytes: i64, group: Option<&str>) -> Node {
    let mut attr = vec![
        make_integer_attribute("comm_type", kind),
        make_integer_attribute("comm_size", bytes),
    ];
    attr.extend(
        group.map(|name| make_attribute_with_value("pg_name", Value::StringVal(name.to_owned()))),
    );
    make_node_with_kind_and_attributes(7, attr)
}

impl UnwrittenJob {
    /// Returns a job of 2 to 4 ranks with at least one operation of every kind. It includes in-switch accesses only if
    /// `in_switch` is set.
    pub fn random_sound_job(dice: &mut Dice, in_switch: bool) -> Self {
        let ranks = 2 + dice.roll(3);
        let mut groups = DeclaredGroups::new();
        for name in ["1", "tp"] {
            let first = dice.roll(ranks - 1);
            let mut members = vec![first as u32];
            members.extend(
                (first + 1..ranks - 1)
                    .filter(|_| dice.roll(2) == 0)
                    .map(|r| r as u32),
            );
            members.push(ranks as u32 - 1);
            groups.insert(name.to_owned(), members);
        }
        let mut job = Self {
            ranks: vec![vec![make_group_declaration_node(&groups)]; ranks],
            groups,
            options: ValidateOptions::default_options_changed_by(|o| o.show = 1000),
            cut: None,
            absent: None,
            twice: None,
        };
        for event in 0..8 {
            job.add_random_operation(event, dice);
        }
        for _ in 0..4 {
            let event = 2 + dice.roll(7 + usize::from(in_switch));
            job.add_random_operation(event, dice);
        }
        if in_switch {
            job.add_random_operation(9, dice);
        }
        if dice.roll(2) == 0 {
            for nodes in &mut job.ranks {
                for i in (1..nodes.len()).rev() {
                    let j = 1 + dice.roll(i);
                    nodes.swap(i, j);
                }
            }
        }
        job
    }

    /// Adds a random operation on some or all ranks.
    fn add_random_operation(&mut self, event: usize, dice: &mut Dice) {
        let all = 0..self.ranks.len();
        let bytes = 8 << dice.roll(20);
        let name = dice.pick(&["1", "tp"]);
        let members: Vec<usize> = self.groups[name].iter().map(|&r| r as usize).collect();
        let host = || make_attribute_with_value("is_cpu_op", Value::BoolVal(true));
        match event {
            0 | 1 => all.for_each(|rank| {
                self.append_node_with_dependencies(
                    rank,
                    make_node_with_kind_and_attributes(4, vec![]),
                    dice,
                )
            }),
            2 => all.for_each(|rank| {
                self.append_node_with_dependencies(
                    rank,
                    make_node_with_kind_and_attributes(4, vec![host()]),
                    dice,
                )
            }),
            3 => {
                let kind = dice.pick(&[0, 2, 6, 7, 9]);
                all.for_each(|rank| {
                    self.append_node_with_dependencies(
                        rank,
                        make_collective_node(kind, bytes, None),
                        dice,
                    )
                });
            }
            4 => {
                let kind = dice.pick(&[0, 2, 6, 7]);
                for rank in members {
                    self.append_node_with_dependencies(
                        rank,
                        make_collective_node(kind, bytes, Some(name)),
                        dice,
                    );
                }
            }
            5 => {
                let kind = dice.pick(&[1, 3, 4, 5]);
                let root = dice.pick(&members) as i64;
                for rank in members {
                    let mut node = make_collective_node(kind, bytes, Some(name));
                    node.attr.push(make_integer_attribute("comm_root", root));
                    self.append_node_with_dependencies(rank, node, dice);
                }
            }
            6 => {
                let mask = BoolList {
                    values: vec![true, false],
                };
                for rank in all {
                    let mut node = make_collective_node(0, bytes, None);
                    let mask = Value::BoolList(mask.clone());
                    node.attr
                        .push(make_attribute_with_value("involved_dim", mask));
                    self.append_node_with_dependencies(rank, node, dice);
                }
            }
            7 | 8 => {
                let from = dice.roll(self.ranks.len());
                let to = (from + 1 + dice.roll(self.ranks.len() - 1)) % self.ranks.len();
                let tag = dice.roll(3) as i64;
                self.add_message_halves((from, to), tag, bytes, dice);
            }
            _ => {
                let switch = Value::StringVal("all_gather".to_owned());
                for rank in all {
                    let attr = vec![
                        make_integer_attribute("tensor_size", bytes),
                        make_integer_attribute("tensor_loc", 2),
                        make_attribute_with_value("in_switch", switch.clone()),
                    ];
                    self.append_node_with_dependencies(
                        rank,
                        make_node_with_kind_and_attributes(2, attr),
                        dice,
                    );
                }
            }
        }
    }

    fn add_message_halves(
        &mut self,
        (from, to): (usize, usize),
        tag: i64,
        bytes: i64,
        dice: &mut Dice,
    ) {
        let half = |far: &str, rank: usize| {
            vec![
                make_integer_attribute(far, rank as i64),
                make_integer_attribute("comm_tag", tag),
                make_integer_attribute("comm_size", bytes),
            ]
        };
        self.append_node_with_dependencies(
            from,
            make_node_with_kind_and_attributes(5, half("comm_dst", to)),
            dice,
        );
        self.append_node_with_dependencies(
            to,
            make_node_with_kind_and_attributes(6, half("comm_src", from)),
            dice,
        );
    }

    /// Appends a node to its rank, with a dependency on one of the last nodes.
    fn append_node_with_dependencies(&mut self, rank: usize, mut node: Node, dice: &mut Dice) {
        let nodes = &mut self.ranks[rank];
        let count = nodes.len();
        node.id = 100 + 10 * count as u64;
        node.name = format!("n{}", dice.roll(3));
        if count > 1 {
            let mut before: Vec<u64> = nodes[1..].iter().rev().take(3).map(|n| n.id).collect();
            node.data_deps.push(before.remove(dice.roll(before.len())));
            for deps in [&mut node.data_deps, &mut node.ctrl_deps] {
                if !before.is_empty() && dice.roll(3) == 0 {
                    deps.push(before.remove(dice.roll(before.len())));
                }
            }
        }
        nodes.push(node);
    }

    /// Returns the contents of the ranks' trace files.
    pub fn files(&self) -> Vec<(u32, Vec<u8>)> {
        let mut files = Vec::new();
        for (rank, nodes) in (0..).zip(&self.ranks) {
            let mut bytes = GlobalMetadata::default().encode_length_delimited_to_vec();
            for node in nodes {
                bytes.extend(node.encode_length_delimited_to_vec());
            }
            if let Some((_, left)) = self.cut.filter(|(cut, _)| *cut == rank as usize) {
                bytes.truncate(left);
            }
            if self.twice == Some(rank) {
                files.push((rank, bytes.clone()));
            }
            if self.absent != Some(rank) {
                files.push((rank, bytes));
            }
        }
        files
    }

    /// Returns the defects that `validate` finds.
    pub fn findings(&self) -> DefectLog {
        let policy = self.options.dependencies;
        let files = self.files();
        let traces = files.iter().map(|(rank, contents)| {
            (
                *rank,
                TraceDefectsAndDigest::check_trace(contents, policy, self.options.show),
            )
        });
        let traces: Vec<_> = traces.collect();
        let members: Vec<_> = traces.iter().map(|(rank, trace)| (*rank, trace)).collect();
        validate_job(&members, &self.options)
    }

    /// Returns the positions, as (rank, index), of the nodes that `wanted` accepts.
    pub fn positions_of_nodes_where(&self, wanted: impl Fn(&Node) -> bool) -> Vec<(usize, usize)> {
        let ranks = self.ranks.iter().enumerate();
        let places = ranks.flat_map(|(rank, nodes)| (1..nodes.len()).map(move |i| (rank, i)));
        places
            .filter(|&(rank, i)| wanted(&self.ranks[rank][i]))
            .collect()
    }
}

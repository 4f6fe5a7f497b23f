//! Parses the arguments of communication operators.

use super::CommOp;
use crate::pytorch::ProcessGroup;
use crate::pytorch::groups::{LARGEST_GROUP, rank_progression};
use chakram_trace::format::{CollectiveKind, Dtype};
use serde_json::Value;

/// Arguments of a communication call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommCallArgs {
    /// Bytes that the rank contributes.
    pub bytes_in: u64,
    /// Bytes in the rank's output buffer.
    pub bytes_out: u64,
    /// True if the capture states the sizes. A stated size may be zero.
    pub size_stated: bool,
    /// Element type.
    pub dtype: Option<Dtype>,
    /// Index, in the group, of the collective's root or of the message's peer.
    pub peer: Option<u32>,
    /// Job rank of the message's peer, if a record states it.
    pub peer_rank: Option<u32>,
    /// Sequence number of the collective in its group, if a record states it. All members record the same number.
    pub sequence: Option<u64>,
    /// Tag of a message.
    pub tag: i32,
    /// True if the call returns immediately (`async_op`); unknown before PyTorch 2.9.
    pub asynchronous: Option<bool>,
    /// Group name.
    pub group: Option<String>,
    /// True if the element counts differ between members.
    pub uneven: bool,
    /// Bytes that an all-to-all sends to each member: empty if all are equal, `None` if unknown.
    pub sends: Option<Vec<u64>>,
    /// Bytes that an all-to-all receives from each member, with the same conventions as `sends`.
    pub receives: Option<Vec<u64>>,
    /// Number of group members, if the arguments reveal it.
    pub members: Option<u32>,
    /// Storages that contain the result.
    pub results: Vec<u64>,
    /// True if the call is known only from its kernel's name.
    pub by_name: bool,
}

/// Argument positions of a `c10d` operator.
struct C10dArgPositions {
    name: &'static str,
    act: CommOp,
    output: Option<usize>,
    input: Option<usize>,
    peer: Option<usize>,
    asynchronous: Option<usize>,
    /// Positions of the split sizes for the output and for the input.
    splits: Option<(usize, usize)>,
}

const fn build_c10d_arg_positions(
    name: &'static str,
    act: CommOp,
    output: Option<usize>,
    input: Option<usize>,
    peer: Option<usize>,
    asynchronous: Option<usize>,
) -> C10dArgPositions {
    C10dArgPositions {
        name,
        act,
        output,
        input,
        peer,
        asynchronous,
        splits: None,
    }
}

use CollectiveKind::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
};
use CommOp::Collective;

/// Argument positions of the `c10d` operators, from their schemas in PyTorch's
/// `torch/csrc/distributed/c10d/Ops.cpp`.
static LAYOUTS: [C10dArgPositions; 18] = [
    build_c10d_arg_positions(
        "allreduce_",
        Collective(AllReduce),
        Some(0),
        Some(0),
        None,
        Some(4),
    ),
    build_c10d_arg_positions(
        "allreduce_coalesced_",
        Collective(AllReduce),
        Some(0),
        Some(0),
        None,
        Some(3),
    ),
    build_c10d_arg_positions(
        "broadcast_",
        Collective(Broadcast),
        Some(0),
        Some(0),
        Some(2),
        Some(4),
    ),
    build_c10d_arg_positions(
        "reduce_",
        Collective(Reduce),
        Some(0),
        Some(0),
        Some(3),
        Some(5),
    ),
    build_c10d_arg_positions(
        "allgather_",
        Collective(AllGather),
        Some(0),
        Some(1),
        None,
        Some(3),
    ),
    build_c10d_arg_positions(
        "_allgather_base_",
        Collective(AllGather),
        Some(0),
        Some(1),
        None,
        Some(3),
    ),
    build_c10d_arg_positions(
        "allgather_coalesced_",
        Collective(AllGather),
        Some(0),
        Some(1),
        None,
        Some(3),
    ),
    build_c10d_arg_positions(
        "allgather_into_tensor_coalesced_",
        Collective(AllGather),
        Some(0),
        Some(1),
        None,
        Some(3),
    ),
    build_c10d_arg_positions(
        "reduce_scatter_",
        Collective(ReduceScatter),
        Some(0),
        Some(1),
        None,
        Some(4),
    ),
    build_c10d_arg_positions(
        "_reduce_scatter_base_",
        Collective(ReduceScatter),
        Some(0),
        Some(1),
        None,
        Some(4),
    ),
    build_c10d_arg_positions(
        "reduce_scatter_tensor_coalesced_",
        Collective(ReduceScatter),
        Some(0),
        Some(1),
        None,
        Some(4),
    ),
    build_c10d_arg_positions(
        "gather_",
        Collective(Gather),
        Some(0),
        Some(1),
        Some(3),
        Some(4),
    ),
    build_c10d_arg_positions(
        "scatter_",
        Collective(Scatter),
        Some(0),
        Some(1),
        Some(3),
        Some(4),
    ),
    C10dArgPositions {
        splits: Some((3, 4)),
        ..build_c10d_arg_positions(
            "alltoall_base_",
            Collective(AllToAll),
            Some(0),
            Some(1),
            None,
            Some(5),
        )
    },
    build_c10d_arg_positions(
        "alltoall_",
        Collective(AllToAll),
        Some(0),
        Some(1),
        None,
        Some(3),
    ),
    build_c10d_arg_positions("barrier", Collective(Barrier), None, None, None, Some(3)),
    build_c10d_arg_positions("send", CommOp::Send, None, Some(0), Some(2), None),
    build_c10d_arg_positions("recv_", CommOp::Receive, Some(0), None, Some(2), None),
];

/// Returns the operation of the operator `name` without parsing arguments.
pub(super) fn comm_op_of_operator(name: &str) -> Option<CommOp> {
    find_c10d_arg_positions(name).map(|layout| layout.act)
}

fn find_c10d_arg_positions(name: &str) -> Option<&'static C10dArgPositions> {
    let name = name.strip_prefix("c10d::")?;
    LAYOUTS.iter().find(|layout| layout.name == name)
}

/// Parses the call that the operator `name` makes from its arguments `inputs` and their `types`, both in JSON.
pub(super) fn parse_comm_call(
    name: &str,
    inputs: &str,
    types: &str,
) -> Option<(CommOp, CommCallArgs)> {
    let layout = find_c10d_arg_positions(name)?;
    let values: Value = serde_json::from_str(inputs).ok()?;
    let at = |place: Option<usize>| place.and_then(|i| values.get(i));
    let (mut out, mut input) = (
        TensorBytesAndStorages::default(),
        TensorBytesAndStorages::default(),
    );
    at(layout.output)
        .into_iter()
        .for_each(|value| out.add_tensor(value));
    at(layout.input)
        .into_iter()
        .for_each(|value| input.add_tensor(value));
    // A barrier's tensor is a placeholder that is not transferred, so its bytes do not count.
    if layout.act == Collective(Barrier) {
        (out, input) = (
            TensorBytesAndStorages::default(),
            TensorBytesAndStorages::default(),
        );
    }
    let number = |place| {
        at(place)
            .and_then(Value::as_u64)
            .and_then(|n| u32::try_from(n).ok())
    };
    // In `send` and `recv_`, the argument after the peer is the tag.
    let tag = values.get(3).and_then(Value::as_i64);
    let uneven = layout.splits.is_some_and(|(a, b)| {
        [a, b]
            .iter()
            .any(|&i| values.get(i).is_some_and(split_sizes_differ))
    });
    let exchanged = match layout.act {
        Collective(AllToAll) => (
            all_to_all_bytes_per_member(
                layout.splits.map(|at| at.1),
                layout.input,
                &values,
                input.bytes,
            ),
            all_to_all_bytes_per_member(
                layout.splits.map(|at| at.0),
                layout.output,
                &values,
                out.bytes,
            ),
        ),
        _ => (None, None),
    };
    Some((
        layout.act,
        CommCallArgs {
            bytes_in: input.bytes,
            bytes_out: out.bytes,
            size_stated: at(layout.input).or(at(layout.output)).is_some(),
            dtype: parse_first_tensor_dtype(types),
            peer: number(layout.peer),
            peer_rank: None,
            sequence: None,
            tag: match layout.act {
                Collective(_) => 0,
                _ => tag.and_then(|tag| i32::try_from(tag).ok()).unwrap_or(0),
            },
            asynchronous: at(layout.asynchronous).and_then(Value::as_bool),
            group: None,
            sends: exchanged.0,
            receives: exchanged.1,
            uneven: uneven || matches!(name, "c10d::alltoall_") && input.sizes_differ,
            members: group_size_from_splits_or_tensors(name, layout, &values),
            results: out.storages,
            by_name: false,
        },
    ))
}

/// Returns how many of an all-to-all's `bytes` go to each member. The result is empty if all members get equal parts.
/// `splits` and `tensors` are the argument positions of the split sizes and of the tensor list.
fn all_to_all_bytes_per_member(
    splits: Option<usize>,
    tensors: Option<usize>,
    values: &Value,
    bytes: u64,
) -> Option<Vec<u64>> {
    let list = |place: Option<usize>| values.get(place?)?.as_array();
    if let Some(sizes) = list(splits) {
        let sizes: Option<Vec<u64>> = sizes.iter().map(Value::as_u64).collect();
        return split_bytes_in_proportion(&sizes?, bytes);
    }
    let each = list(tensors)?.iter().map(|tensor| {
        let mut own = TensorBytesAndStorages::default();
        own.add_tensor(tensor);
        own.bytes
    });
    Some(each.collect())
}

/// Splits `bytes` in proportion to `sizes`, the row counts of a tensor's parts. The result is empty if
/// `sizes` is empty.
pub(super) fn split_bytes_in_proportion(sizes: &[u64], bytes: u64) -> Option<Vec<u64>> {
    let rows = sizes
        .iter()
        .try_fold(0_u64, |sum, &rows| sum.checked_add(rows))?;
    // All rows of the tensor have the same size, so a remainder means that the record is damaged.
    let row = match rows {
        0 => 0,
        rows => bytes.is_multiple_of(rows).then_some(bytes / rows)?,
    };
    sizes.iter().map(|rows| rows.checked_mul(row)).collect()
}

/// Returns the group's size: the number of splits, or the length of a tensor list that has one
/// tensor per member.
fn group_size_from_splits_or_tensors(
    name: &str,
    layout: &C10dArgPositions,
    values: &Value,
) -> Option<u32> {
    let length = |place: usize| {
        let list = values.get(place)?.as_array()?;
        u32::try_from(list.len()).ok().filter(|&count| count > 0)
    };
    match (layout.splits, name) {
        (Some((output, input)), _) => length(output).or_else(|| length(input)),
        (None, "c10d::alltoall_") => length(0),
        _ => None,
    }
}

impl CommCallArgs {
    /// Returns the number of group members: the ratio of the larger size to the smaller. Returns `None` if this kind of
    /// collective has no fixed ratio.
    pub fn member_count_from_size_ratio(&self, kind: CollectiveKind) -> Option<u32> {
        let ratio = |more: u64, less: u64| {
            let count = (less > 0 && more.is_multiple_of(less)).then(|| more / less)?;
            u32::try_from(count).ok().filter(|&count| count > 0)
        };
        self.members.or_else(|| match kind {
            AllGather => ratio(self.bytes_out, self.bytes_in),
            ReduceScatter => ratio(self.bytes_in, self.bytes_out),
            // Only the root has the whole buffer, so the other members' sizes show no ratio.
            Gather if self.bytes_out > 0 => ratio(self.bytes_out, self.bytes_in),
            Scatter if self.bytes_in > 0 => ratio(self.bytes_in, self.bytes_out),
            _ => None,
        })
    }
}

/// Returns the group name of a functional operator: its last string argument.
pub(super) fn parse_functional_group_name(inputs: &str) -> Option<String> {
    let values: Vec<Value> = serde_json::from_str(inputs).ok()?;
    let last = values.iter().rev().find_map(Value::as_str)?;
    // If the observer cannot serialize a value, it writes a placeholder such as `<Object>`.
    (!last.starts_with('<')).then(|| last.to_owned())
}

/// Returns the group among the inputs of a `record_param_comms`: the pair `[name, description]`. Since schema 1.0.3,
/// the pair is followed by the first rank, the stride and the number of ranks.
pub fn parse_group_of_record(inputs: &str) -> Option<ProcessGroup> {
    let values: Vec<Value> = serde_json::from_str(inputs).ok()?;
    let named = |value: &Value| match value.as_array()?.as_slice() {
        [Value::String(name), Value::String(desc)] if !name.is_empty() => {
            Some((name.clone(), desc.clone()))
        }
        _ => None,
    };
    let (name, desc) = values.iter().find_map(named)?;
    let [.., first, stride, size] = &values[..] else {
        return None;
    };
    let number = |value: &Value| value.as_u64().and_then(|value| u32::try_from(value).ok());
    let size = number(size).filter(|size| (1..=LARGEST_GROUP).contains(size));
    let ranks = match (number(first), number(stride), size) {
        (Some(first), Some(stride), Some(size)) => rank_progression(first, stride, size),
        _ => None,
    };
    Some(ProcessGroup {
        name,
        desc,
        ranks: ranks.unwrap_or_default(),
        size,
        ..ProcessGroup::default()
    })
}

/// Returns the first element type of a list such as `["GenericList[Tensor(float)]", …]`.
pub fn parse_first_tensor_dtype(types: &str) -> Option<Dtype> {
    let (_, rest) = types.split_once("Tensor(")?;
    Dtype::from_name(rest.split_once(')')?.0)
}

fn split_sizes_differ(splits: &Value) -> bool {
    splits
        .as_array()
        .is_some_and(|list| list.windows(2).any(|pair| pair[0] != pair[1]))
}

/// Sums over all tensors in nested lists.
#[derive(Default)]
struct TensorBytesAndStorages {
    bytes: u64,
    storages: Vec<u64>,
    first: Option<u64>,
    sizes_differ: bool,
}

impl TensorBytesAndStorages {
    /// Adds a tensor of the form `[id, storage, offset, elements, bytes of one, "device"]`.
    fn add_tensor(&mut self, value: &Value) {
        let Some(list) = value.as_array() else {
            return;
        };
        let number = |i: usize| list.get(i).and_then(Value::as_u64);
        match (list.len(), list.get(5).and_then(Value::as_str)) {
            // A list of six elements that ends with a device is a tensor. Other lists may contain
            // tensors.
            (6, Some(_)) => {
                let bytes = number(3)
                    .unwrap_or(0)
                    .saturating_mul(number(4).unwrap_or(0));
                self.bytes = self.bytes.saturating_add(bytes);
                self.sizes_differ |= self.first.is_some_and(|first| first != bytes);
                self.first.get_or_insert(bytes);
                self.storages
                    // Storage 0 means that the tensor has no memory.
                    .extend(number(1).filter(|&storage| storage != 0));
            }
            _ => list.iter().for_each(|inner| self.add_tensor(inner)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_say_bytes_roots_and_results() {
        // The call has 4,096 floats of 4 B and the root 2, and it is not asynchronous.
        let (act, asked) = parse_comm_call(
            "c10d::reduce_",
            r#"[[[7, 8, 0, 4096, 4, "cpu"]], "<Object>", "<Object>", 2, 0, false, -1]"#,
            r#"["GenericList[Tensor(float)]","Object","Object","Int","Int","Bool","Int"]"#,
        )
        .unwrap();
        assert_eq!(act, Collective(Reduce));
        assert_eq!((asked.bytes_in, asked.bytes_out), (16_384, 16_384));
        assert_eq!((asked.peer, asked.asynchronous), (Some(2), Some(false)));
        assert_eq!((asked.dtype, asked.results), (Some(Dtype::Fp32), vec![8]));
    }

    #[test]
    fn lists_of_tensors_are_summed_and_uneven_splits_noticed() {
        // The call has one input of 40 B and two outputs of 10 B and 30 B.
        let lists = r#"[[[1,2,0,10,1,"cpu"],[3,4,0,30,1,"cpu"]], [[5,6,0,20,1,"cpu"],[7,9,0,20,1,"cpu"]], "<Object>", true, -1]"#;
        let (_, found) = parse_comm_call("c10d::alltoall_", lists, "[]").unwrap();
        assert_eq!((found.bytes_in, found.bytes_out), (40, 40));
        assert_eq!(found.results, [2, 4]);
        assert_eq!(
            (found.sends, found.receives),
            (Some(vec![20, 20]), Some(vec![10, 30]))
        );
        assert_eq!(found.asynchronous, Some(true));
        let base = r#"[[1,2,0,40,1,"cpu"],[3,4,0,40,1,"cpu"],"<Object>",[10,30],[20,20],false,-1]"#;
        let (_, based) = parse_comm_call("c10d::alltoall_base_", base, "[]").unwrap();
        assert!(based.uneven);
        assert_eq!(
            (based.sends, based.receives),
            (Some(vec![20, 20]), Some(vec![10, 30]))
        );
        // Rows of 3 B; no rows at all; 3 rows, which cannot share 40 B equally; and no sizes, which means equal parts.
        assert_eq!(
            split_bytes_in_proportion(&[2, 0, 5], 21),
            Some(vec![6, 0, 15])
        );
        assert_eq!(split_bytes_in_proportion(&[0, 0], 0), Some(vec![0, 0]));
        assert_eq!(split_bytes_in_proportion(&[2, 1], 40), None);
        assert_eq!(split_bytes_in_proportion(&[], 40), Some(vec![]));
        // Two splits or two tensors mean that the group has two members.
        assert_eq!((based.members, found.members), (Some(2), Some(2)));
    }

    #[test]
    fn sizes_show_how_many_members_a_group_has() {
        // 40 B from each of four members make 160 B. The sizes of an all-reduce do not reveal the number
        // of members.
        let gathered = CommCallArgs {
            bytes_in: 40,
            bytes_out: 160,
            ..CommCallArgs::default()
        };
        assert_eq!(gathered.member_count_from_size_ratio(AllGather), Some(4));
        assert_eq!(gathered.member_count_from_size_ratio(AllReduce), None);
        assert_eq!(gathered.member_count_from_size_ratio(ReduceScatter), None);
    }

    #[test]
    fn messages_have_an_other_end_and_a_tag() {
        let send = r#"[[[7, 8, 0, 32768, 4, "cpu"]], "<Object>", 2, 6]"#;
        let (act, found) = parse_comm_call(
            "c10d::send",
            send,
            r#"["GenericList[Tensor(c10::BFloat16)]"]"#,
        )
        .unwrap();
        assert_eq!(act, CommOp::Send);
        assert_eq!(
            (found.bytes_in, found.peer, found.tag),
            (131_072, Some(2), 6)
        );
        assert_eq!(found.dtype, Some(Dtype::Bf16));
        assert!(found.results.is_empty(), "who sent may write again at once");
    }

    #[test]
    fn functional_operators_name_their_group() {
        let inputs = r#"[[7, 8, 0, 4096, 4, "cpu"], "sum", 4, "12"]"#;
        assert_eq!(parse_functional_group_name(inputs).as_deref(), Some("12"));
        assert_eq!(
            parse_functional_group_name(r#"[[1,2,0,4,4,"cpu"], "<Object>"]"#),
            None
        );
    }

    #[test]
    fn records_name_their_group_by_place() {
        let inputs =
            r#"[[[7,8,0,4096,4,"cuda:0"]], 5, ["3","mesh_tp"], 0, "allreduce", [], [], 0, 1, 4]"#;
        let group = parse_group_of_record(inputs).expect("it names one");
        assert_eq!((group.name.as_str(), group.desc.as_str()), ("3", "mesh_tp"));
        assert_eq!(group.ranks, [0, 1, 2, 3]);
        // The wait operator's arguments contain no group. Schema 1.0.1 contains a pointer instead of the group.
        assert_eq!(
            parse_group_of_record(r#"[5, ["",""], -1, "wait", [], []]"#),
            None
        );
        assert_eq!(
            parse_group_of_record(r#"[5, 94130, 0, "allreduce", [], []]"#),
            None
        );
    }
}

//! Calls carried out by kernels of NCCL and similar libraries.
//!
//! The operation of a kernel follows from the arguments that `record_param_comms` recorded around its launch, which
//! newer profilers repeat on the kernel, or from the `c10d` operator; never from the kernel's name: every all-to-all
//! is called SendRecv.

use super::super::kineto::Category;
use super::super::rank::{Device, NONE, Rank};
use super::args::{self, asked};
use super::{Act, Asked, Call, Calls};
use crate::trace::{CollectiveKind, Dtype};

/// Finds the calls of kernels, and appends them to `calls`.
pub(super) fn find(rank: &Rank, calls: &mut Calls) {
    let mut found: Vec<Call> = Vec::new();
    for (i, device) in rank.devices.iter().enumerate() {
        let event = &rank.kineto.events[device.event as usize];
        if event.category != Category::Kernel || !is_communication(rank, device) {
            continue;
        }
        let records = Records::around(rank, device);
        let made = records.calls(rank);
        if made.is_empty() {
            calls.unknown.push(rank.name(device.event).to_owned());
        }
        for (item, act, asked) in made {
            let known = found
                .iter_mut()
                .rev()
                // A collective of several kernels launches them in succession, so recent calls are enough.
                .take(64)
                .find(|call| call.item == item);
            match known {
                Some(call) => {
                    call.start = call.start.min(device.start);
                    call.end = call.end.max(device.end);
                    call.done = call.end;
                    call.parts += 1;
                }
                None => found.push(Call {
                    item,
                    rf_id: rank.kineto.events[rank.items[item as usize].event as usize].rf_id,
                    act,
                    asked,
                    group: NONE,
                    worker: NONE,
                    stream: Some(device.stream),
                    device: i as u32,
                    launched: device.start,
                    start: device.start,
                    end: device.end,
                    done: device.end,
                    event: device.event,
                    parts: 1,
                }),
            }
        }
    }
    calls.list.extend(found);
}

/// Returns whether a kernel moves data between ranks.
fn is_communication(rank: &Rank, device: &Device) -> bool {
    let event = &rank.kineto.events[device.event as usize];
    let named = |args: &Vec<(String, String)>| args.iter().any(|(key, _)| key == "Collective name");
    rank.kineto.args.get(event.args as usize).is_some_and(named)
        || ["nccl", "rccl", "ncclSym", "nvshmem"]
            .iter()
            .any(|prefix| rank.name(device.event).starts_with(prefix))
}

/// Operators and records around the launch of a kernel.
struct Records {
    /// Items of `record_param_comms`; several when one kernel carries out a batch of messages.
    records: Vec<u32>,
    /// Item of the `c10d` operator.
    operator: u32,
}

impl Records {
    fn around(rank: &Rank, device: &Device) -> Self {
        let mut this = Self {
            records: Vec::new(),
            operator: NONE,
        };
        for i in rank.ancestors(device.launch) {
            let name = rank.item_name(&rank.items[i as usize]);
            if name == "record_param_comms" && this.records.is_empty() {
                this.records.push(i);
            } else if name == "nccl:coalesced" && this.records.is_empty() {
                this.records = members(rank, i, device.launch);
            } else if args::act_of(name).is_some() && this.operator == NONE {
                this.operator = i;
            }
        }
        this
    }

    fn calls(&self, rank: &Rank) -> Vec<(u32, Act, Asked)> {
        let recorded = self.records.iter();
        let mut made: Vec<_> = recorded
            .filter_map(|&i| recorded_call(rank, i).map(|(act, asked)| (i, act, asked)))
            .collect();
        let from_operator = || {
            let item = rank.items.get(self.operator as usize)?;
            let node = rank.host.nodes.get(item.host as usize)?;
            let args = rank.host.args.get(node.args as usize)?;
            asked(rank.item_name(item), &args.inputs, &args.input_types)
        };
        let Some((act, asked)) = from_operator() else {
            return made;
        };
        match &mut made[..] {
            [] => made.push((self.operator, act, asked)),
            // The operator knows which storages hold the result, and where the root is.
            [(_, recorded, known)] if *recorded == act => {
                known.results = asked.results;
                known.peer = known.peer.or(asked.peer);
                known.tag = asked.tag;
            }
            _ => {}
        }
        made
    }
}

/// Returns the records that a batch holds before its one launch.
fn members(rank: &Rank, batch: u32, launch: u32) -> Vec<u32> {
    // Items are ordered by thread and start, so the batch's items lie between it and the launch.
    let inside = batch..launch;
    let is_record = |i: &u32| {
        let item = &rank.items[*i as usize];
        item.thread == rank.items[batch as usize].thread
            && rank.item_name(item) == "record_param_comms"
    };
    inside.filter(is_record).collect()
}

/// Parses a `record_param_comms`: attributes of the host node, or arguments of Kineto's event.
fn recorded_call(rank: &Rank, index: u32) -> Option<(Act, Asked)> {
    let item = &rank.items[index as usize];
    let event = &rank.kineto.events[item.event as usize];
    let host = rank.host.nodes.get(item.host as usize);
    let host = host.and_then(|node| rank.host.args.get(node.args as usize));
    let text = |attribute: &str, argument: &str| {
        let of = |list: &[(String, String)], key: &str| {
            let found = list.iter().find(|(k, _)| k == key);
            found.map(|(_, value)| value.trim_matches('"').to_owned())
        };
        let known = host.and_then(|args| of(&args.attrs, attribute));
        known
            // An empty attribute counts as missing.
            .filter(|value| !value.is_empty())
            .or_else(|| of(rank.kineto.args.get(event.args as usize)?, argument))
    };
    let act = act_named(&text("collective_name", "Collective name")?)?;
    let dtype = text("dtype", "dtype").unwrap_or_default();
    let size = element_bytes(&dtype)?;
    let elements = |attribute, argument| -> u64 {
        text(attribute, argument)
            .and_then(|value| value.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let inputs = elements("in_msg_nelems", "In msg nelems");
    let outputs = elements("out_msg_nelems", "Out msg nelems");
    let splits = [
        text("in_split_size", "In split size"),
        text("out_split_size", "Out split size"),
    ];
    let uneven = splits.iter().flatten().any(|list| uneven(list));
    let peer = match act {
        Act::Send => text("dst_rank", "Dst Rank"),
        Act::Receive => text("src_rank", "Src Rank"),
        Act::Collective(kind) if kind.has_root() => text("root", "Root"),
        Act::Collective(_) => None,
    };
    Some((
        act,
        Asked {
            bytes_in: inputs.saturating_mul(size),
            bytes_out: outputs.saturating_mul(size),
            dtype: Dtype::from_name(&dtype),
            peer: peer.and_then(|peer| peer.parse().ok()),
            tag: 0,
            asynchronous: Some(true),
            group: text("pg_name", "Process Group Name"),
            uneven,
            results: Vec::new(),
        },
    ))
}

fn uneven(list: &str) -> bool {
    let inner = list.trim_matches(['[', ']']);
    let mut sizes = inner.split(',').map(str::trim);
    let first = sizes.next();
    !inner.is_empty() && sizes.any(|size| Some(size) != first)
}

/// Returns the operation that NCCL's process group calls `name`.
fn act_named(name: &str) -> Option<Act> {
    use Act::Collective;
    use CollectiveKind as Kind;
    let plain = name.trim_start_matches("nccl:").trim_start_matches('_');
    Some(match plain {
        "send" => Act::Send,
        "recv" => Act::Receive,
        _ if plain.starts_with("allreduce") || plain == "all_reduce" => Collective(Kind::AllReduce),
        _ if plain.starts_with("reduce_scatter") => Collective(Kind::ReduceScatter),
        _ if plain.starts_with("allgather") || plain.starts_with("all_gather") => {
            Collective(Kind::AllGather)
        }
        _ if plain.starts_with("all_to_all") || plain.starts_with("alltoall") => {
            Collective(Kind::AllToAll)
        }
        _ if plain.starts_with("broadcast") => Collective(Kind::Broadcast),
        "reduce" | "reduce_oop" => Collective(Kind::Reduce),
        "gather" => Collective(Kind::Gather),
        "scatter" => Collective(Kind::Scatter),
        "barrier" => Collective(Kind::Barrier),
        _ => return None,
    })
}

/// Returns the bytes of one element of PyTorch's scalar type `name`.
fn element_bytes(name: &str) -> Option<u64> {
    Some(match name {
        "Byte" | "Char" | "Bool" | "QInt8" | "QUInt8" => 1,
        "Short" | "Half" | "BFloat16" | "UInt16" => 2,
        "Int" | "Float" | "QInt32" | "UInt32" => 4,
        "Long" | "Double" | "ComplexFloat" | "UInt64" => 8,
        "ComplexDouble" => 16,
        other if other.starts_with("Float8") => 1,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_operations_are_those_of_the_process_group() {
        let kinds = [
            ("allreduce_coalesced", CollectiveKind::AllReduce),
            ("_allgather_base", CollectiveKind::AllGather),
            ("_reduce_scatter_base", CollectiveKind::ReduceScatter),
            ("all_to_allv", CollectiveKind::AllToAll),
            ("broadcast_oop", CollectiveKind::Broadcast),
        ];
        for (name, kind) in kinds {
            assert_eq!(act_named(name), Some(Act::Collective(kind)), "{name}");
        }
        assert_eq!(act_named("wait"), None);
    }

    #[test]
    fn split_sizes_are_even_when_all_are_equal_or_none_is_given() {
        assert!(!uneven("[]"));
        assert!(!uneven("[4, 4]"));
        assert!(uneven("[4, 8]"));
    }
}

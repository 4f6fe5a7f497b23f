//! Reads NCCL calls from the ranges that NCCL writes to Nsight Systems, and assigns each to the kernel that executes
//! it.
//!
//! A range has a name such as `ncclAllReduce`, and a payload with the message size, the root or peer, and (since NCCL
//! 2.24) the communicator. Some NCCL builds write all these fields into the name
//! (`ncclAllReduce(): commHash 0x1, …, data_size 4096, …`); the parser supports this form too. NCCL launches the
//! kernels of a group of calls when the group ends. A call therefore belongs to the next launch of the same kind on the
//! same thread.

use serde_json::Value;
use std::collections::BTreeMap;

/// NCCL's function names, each with the name that PyTorch's records use for the operation.
const KINDS: [(&str, &str); 9] = [
    ("ncclAllReduce", "allreduce"),
    ("ncclAllGather", "allgather"),
    ("ncclReduceScatter", "reduce_scatter"),
    ("ncclBroadcast", "broadcast"),
    ("ncclBcast", "broadcast"),
    ("ncclReduce", "reduce"),
    ("ncclAlltoAll", "alltoall"),
    ("ncclSend", "send"),
    ("ncclRecv", "recv"),
];

/// An NCCL call, or the creation of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NcclCallOrCommInit {
    /// A collective or message.
    Call(NcclCall),
    /// A process joined a communicator.
    Member {
        /// Name of the communicator.
        communicator: String,
        /// Rank of the process within the communicator.
        rank: u32,
        /// Number of members in the communicator.
        ranks: u32,
    },
}

/// An NCCL call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NcclCall {
    /// Name that PyTorch's records use for the call's operation.
    pub kind: &'static str,
    /// Bytes in a message, or in one rank's buffer of a collective. `None` if the export does not state it.
    pub bytes: Option<u64>,
    /// Root of a collective, or peer of a message, as a rank within the communicator.
    pub root: Option<u32>,
    /// Name of the communicator, or `None` if the export does not state it.
    pub communicator: Option<String>,
}

impl NcclCallOrCommInit {
    /// Parses a range called `name` with the payload `json`. Returns `None` if it is not one of NCCL's communication
    /// ranges.
    pub fn parse_range(name: &str, json: Option<&str>) -> Option<Self> {
        if !name.starts_with("nccl") && !name.starts_with("commHash") {
            return None;
        }
        let facts = NcclRangeTextFields::from_range(name, json);
        if let (Some(communicator), Some(rank), Some(ranks)) =
            (&facts.communicator, facts.rank, facts.ranks)
        {
            return Some(Self::Member {
                communicator: communicator.clone(),
                rank,
                ranks,
            });
        }
        let word = name.split(['(', ' ', ':']).next()?;
        let (_, kind) = KINDS.iter().find(|(function, _)| *function == word)?;
        Some(Self::Call(NcclCall {
            kind,
            bytes: facts.bytes,
            root: facts.root,
            communicator: facts.communicator,
        }))
    }
}

/// Fields that the text of a range states.
#[derive(Default)]
struct NcclRangeTextFields {
    bytes: Option<u64>,
    root: Option<u32>,
    communicator: Option<String>,
    rank: Option<u32>,
    ranks: Option<u32>,
}

impl NcclRangeTextFields {
    fn from_range(name: &str, json: Option<&str>) -> Self {
        let mut facts = Self::default();
        let payload = json.and_then(|json| serde_json::from_str::<Value>(json).ok());
        for (key, value) in payload.iter().filter_map(Value::as_object).flatten() {
            let text = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            facts.set_argument_by_key(&key.to_lowercase(), &text);
        }
        // The text contains `key value, key value`, after a colon or as the whole name.
        let tail = name.split_once("(): ").map_or(name, |(_, tail)| tail);
        let words: Vec<&str> = tail
            .split([' ', ','])
            .filter(|word| !word.is_empty())
            .collect();
        for pair in words.windows(2) {
            let key = match pair[0] {
                "commHash" => "communicator",
                "data_size" => "bytes",
                "root" | "receiver_rank" | "sender_rank" => "root",
                "rank" => "rank",
                "nranks" => "nranks",
                _ => continue,
            };
            facts.set_argument_by_key(key, pair[1]);
        }
        facts
    }

    fn set_argument_by_key(&mut self, key: &str, value: &str) {
        let number = || value.parse().ok();
        if key.contains("communicator") || key == "comm" {
            self.communicator = Some(value.to_owned());
        } else if key.contains("bytes") || key.contains("message size") {
            self.bytes = value.parse().ok();
        } else if key == "root" || key.contains("peer") {
            self.root = number();
        } else if key.contains("of ranks") || key == "nranks" {
            self.ranks = number();
        } else if key.contains("rank") {
            self.rank = number();
        }
    }
}

/// An event on one thread: an NCCL call, or the launch of a communication kernel.
#[derive(Clone, Debug)]
pub(super) enum NcclCallOrKernelLaunch {
    /// Start of a call.
    Call(NcclCall),
    /// Launch of a kernel. The values are the index of the kernel's event, and the operation that begins the kernel's
    /// name (`None` if the name shows no operation).
    Launch(u32, Option<&'static str>),
}

/// Maps each kernel (by its event index) to the call that it executes. Omits kernels whose call or size cannot be
/// determined. `threads` contains the events of each thread, sorted by time. A kernel that executes several calls of a
/// group gets one call with their total bytes.
pub(super) fn map_kernels_to_nccl_calls(
    threads: BTreeMap<u32, Vec<(i64, NcclCallOrKernelLaunch)>>,
) -> BTreeMap<u32, NcclCall> {
    let mut found = BTreeMap::new();
    for mut moments in threads.into_values() {
        // If a call and a launch have the same time, the call comes first.
        moments.sort_by_key(|(time, moment)| {
            (*time, matches!(moment, NcclCallOrKernelLaunch::Launch(..)))
        });
        let mut pending: Vec<NcclCall> = Vec::new();
        let mut launches: Vec<(u32, Option<&'static str>)> = Vec::new();
        for (_, moment) in moments {
            match moment {
                NcclCallOrKernelLaunch::Call(call) => {
                    if !launches.is_empty() {
                        assign_group_calls_to_launches_by_kind(&pending, &launches, &mut found);
                        pending.clear();
                        launches.clear();
                    }
                    pending.push(call);
                }
                NcclCallOrKernelLaunch::Launch(event, kind) => launches.push((event, kind)),
            }
        }
        assign_group_calls_to_launches_by_kind(&pending, &launches, &mut found);
    }
    found
}

/// Assigns a group's calls to the launches after the group, separately for each kind. A single kernel gets all calls.
/// Otherwise the number of kernels must equal the number of calls.
fn assign_group_calls_to_launches_by_kind(
    calls: &[NcclCall],
    launches: &[(u32, Option<&'static str>)],
    found: &mut BTreeMap<u32, NcclCall>,
) {
    let is_message = |kind: &str| matches!(kind, "send" | "recv");
    for (place, call) in calls.iter().enumerate() {
        let kind = call.kind;
        if calls[..place].iter().any(|before| before.kind == kind) {
            continue;
        }
        let own: Vec<&NcclCall> = calls.iter().filter(|call| call.kind == kind).collect();
        // Kernels for messages and kernels for all-to-all have the same name, so the name does not show the kind.
        let of_kind = |launch: &&(u32, Option<&str>)| match launch.1 {
            Some(named) => named == kind,
            None => is_message(kind) || kind == "alltoall",
        };
        let mut kernels = launches.iter().filter(of_kind).map(|(event, _)| *event);
        let kernels: Vec<u32> = kernels.by_ref().collect();
        // A kernel that both sends and receives cannot be assigned to calls of one kind.
        let is_mixed = is_message(kind)
            && calls
                .iter()
                .any(|other| is_message(other.kind) && other.kind != kind);
        if is_mixed {
            continue;
        }
        let same = own
            .iter()
            .all(|call| call.root == own[0].root && call.communicator == own[0].communicator);
        if kernels.len() == own.len() {
            let told = kernels.into_iter().zip(own.into_iter().cloned());
            found.extend(told.filter(|(_, call)| call.bytes.is_some()));
        } else if let (&[kernel], true) = (&kernels[..], same) {
            let mut bytes = own.iter().map(|call| call.bytes);
            let bytes = bytes.try_fold(0_u64, |sum, bytes| Some(sum.saturating_add(bytes?)));
            if bytes.is_none() {
                continue;
            }
            found.insert(
                kernel,
                NcclCall {
                    bytes,
                    ..own[0].clone()
                },
            );
        }
    }
}

impl NcclCall {
    /// Returns the call's arguments under the names that PyTorch's records use. `peer` is the job rank of the
    /// collective's root or of the message's peer.
    pub fn list_arguments_as_in_pytorch(&self, peer: Option<u32>) -> Vec<(String, String)> {
        let mut arguments = vec![
            ("Collective name".to_owned(), self.kind.to_owned()),
            ("dtype".to_owned(), "Byte".to_owned()),
        ];
        let bytes = self.bytes.unwrap_or(0).to_string();
        // NCCL reports the size of a rank's input for an all-gather, and of a rank's output for a
        // reduce-scatter.
        if self.kind != "reduce_scatter" && self.kind != "recv" {
            arguments.push(("In msg nelems".to_owned(), bytes.clone()));
        }
        if !matches!(self.kind, "allgather" | "send") {
            arguments.push(("Out msg nelems".to_owned(), bytes));
        }
        if let Some(communicator) = &self.communicator {
            arguments.push(("Process Group Name".to_owned(), communicator.clone()));
        }
        let rooted = |key: &str, rank: Option<u32>| Some((key.to_owned(), rank?.to_string()));
        arguments.extend(match self.kind {
            "send" => rooted("Dst Rank", peer),
            "recv" => rooted("Src Rank", peer),
            _ => rooted("Root", self.root),
        });
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build_nccl_call_of_kind_and_bytes(kind: &'static str, bytes: u64) -> NcclCall {
        NcclCall {
            kind,
            bytes: Some(bytes),
            root: None,
            communicator: None,
        }
    }

    #[test]
    fn ranges_say_bytes_in_payloads_and_in_names() {
        let payload = r#"{"Message size [bytes]": 4096, "Reduction operation": "Sum"}"#;
        assert_eq!(
            NcclCallOrCommInit::parse_range("ncclAllReduce", Some(payload)),
            Some(NcclCallOrCommInit::Call(build_nccl_call_of_kind_and_bytes(
                "allreduce",
                4096
            )))
        );
        let named =
            "ncclBroadcast(): commHash 0x7f, stream 0x1, data_size 512, type_size 4, root 3, pid 9";
        let expected = NcclCall {
            root: Some(3),
            communicator: Some("0x7f".to_owned()),
            ..build_nccl_call_of_kind_and_bytes("broadcast", 512)
        };
        assert_eq!(
            NcclCallOrCommInit::parse_range(named, None),
            Some(NcclCallOrCommInit::Call(expected))
        );
        let member = "commHash 0x7f commId 0x9 rank 2 nranks 4 pid 77";
        assert_eq!(
            NcclCallOrCommInit::parse_range(member, None),
            Some(NcclCallOrCommInit::Member {
                communicator: "0x7f".to_owned(),
                rank: 2,
                ranks: 4
            })
        );
        let created =
            r#"{"NCCL communicator ID": 81, "No. of ranks": 8, "Rank": 5, "CUDA device": 1}"#;
        assert_eq!(
            NcclCallOrCommInit::parse_range("ncclCommInitRank", Some(created)),
            Some(NcclCallOrCommInit::Member {
                communicator: "81".to_owned(),
                rank: 5,
                ranks: 8
            })
        );
        let unsaid = NcclCall {
            bytes: None,
            ..build_nccl_call_of_kind_and_bytes("allreduce", 0)
        };
        assert_eq!(
            NcclCallOrCommInit::parse_range("ncclAllReduce", None),
            Some(NcclCallOrCommInit::Call(unsaid))
        );
        assert_eq!(
            NcclCallOrCommInit::parse_range("ncclGroupStart", None),
            None
        );
        assert_eq!(
            NcclCallOrCommInit::parse_range("forward", Some(payload)),
            None
        );
    }

    /// Two calls and one kernel: the kernel moves 100 + 28 bytes. Two calls and two kernels: each kernel gets
    /// one call. Two calls and three kernels: the calls cannot be assigned.
    #[test]
    fn one_kernel_sums_calls_and_two_kernels_get_one_call_each() {
        let of = |moments: &[NcclCallOrKernelLaunch]| {
            let moments = (0..).zip(moments.iter().cloned()).collect();
            map_kernels_to_nccl_calls(BTreeMap::from([(0, moments)]))
        };
        let calls = [100, 28].map(|bytes| {
            NcclCallOrKernelLaunch::Call(build_nccl_call_of_kind_and_bytes("allreduce", bytes))
        });
        let launch = |event| NcclCallOrKernelLaunch::Launch(event, Some("allreduce"));
        let one = of(&[&calls[..], &[launch(7)]].concat());
        assert_eq!(
            one,
            BTreeMap::from([(7, build_nccl_call_of_kind_and_bytes("allreduce", 128))])
        );
        let two = of(&[&calls[..], &[launch(7), launch(8)]].concat());
        let each = [
            (7, build_nccl_call_of_kind_and_bytes("allreduce", 100)),
            (8, build_nccl_call_of_kind_and_bytes("allreduce", 28)),
        ];
        assert_eq!(two, BTreeMap::from(each));
        let three = of(&[&calls[..], &[launch(7), launch(8), launch(9)]].concat());
        assert!(three.is_empty());
        // A kernel that executes a send and a receive gets no call.
        let both = ["send", "recv"]
            .map(|kind| NcclCallOrKernelLaunch::Call(build_nccl_call_of_kind_and_bytes(kind, 9)));
        let both = of(&[&both[..], &[NcclCallOrKernelLaunch::Launch(7, None)]].concat());
        assert!(both.is_empty());
        let one_way = [
            NcclCallOrKernelLaunch::Call(build_nccl_call_of_kind_and_bytes("send", 9)),
            NcclCallOrKernelLaunch::Launch(7, None),
        ];
        assert_eq!(
            of(&one_way),
            BTreeMap::from([(7, build_nccl_call_of_kind_and_bytes("send", 9))])
        );
    }
}

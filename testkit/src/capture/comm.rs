//! Adds collectives and messages in the form in which each backend records them.

use super::Device;
use super::build::{Builder, Call, annotation, plain};
use super::cost::CollectiveKind;
use super::cost::Exchange;
use super::layout::record_name;
use super::program::{Axis, Instr};
use super::tensor::{Arg, NUMBER, Tensor};

/// A collective that a program requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'t> {
    pub kind: CollectiveKind,
    pub axis: Axis,
    pub input: &'t Tensor,
    pub output: &'t Tensor,
}

impl Builder<'_> {
    /// Adds the start of the collective inside `c10d`'s operator.
    pub(super) fn start(&mut self, ask: Ask<'_>) -> u32 {
        let Ask {
            kind,
            axis,
            input,
            output,
        } = ask;
        let bytes = input.bytes().max(output.bytes());
        let exchange = Exchange::Collective(kind);
        if self.options.device == Device::Cpu {
            // Gloo implements a reduce-scatter as an all-reduce.
            let name = match kind {
                CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => "gloo:all_reduce",
                CollectiveKind::AllGather => "gloo:all_gather",
                _ => "gloo:broadcast",
            };
            let op = self.declare(annotation(name), &[Arg::Tensor(input)], &[]);
            let meet = self.meet(exchange, axis, bytes, op);
            self.instr(Instr::Issue(meet));
            return meet;
        }
        self.nccl(ask, bytes)
    }

    fn nccl(&mut self, ask: Ask<'_>, bytes: u64) -> u32 {
        let (group, root) = (self.layout.group(ask.axis, self.rank).clone(), self.rank);
        let size = group.ranks.len();
        let start = group.ranks[0];
        let stride = group.ranks.get(1).map_or(1, |second| second - start);
        let ranks = format!("{:?}", group.ranks);
        let (name, pg, desc) = (record_name(ask.kind), &group.name, group.description);
        let (sent, received) = (ask.input.elements(), ask.output.elements());
        let mut attrs = String::new();
        for (key, kind, value) in [
            ("collective_name", "string", format!("\"{name}\"")),
            ("dtype", "string", "\"Float\"".to_owned()),
            ("in_msg_nelems", "uint64", sent.to_string()),
            ("out_msg_nelems", "uint64", received.to_string()),
            ("in_split_size", "string", "\"[]\"".to_owned()),
            ("out_split_size", "string", "\"[]\"".to_owned()),
            ("global_rank_start", "uint64", start.to_string()),
            ("global_rank_stride", "uint64", stride.to_string()),
            ("pg_name", "string", format!("\"{pg}\"")),
            ("pg_desc", "string", format!("\"{desc}\"")),
            ("pg_size", "uint64", size.to_string()),
        ] {
            attrs.push_str(&format!(
                ", \n  {{\"name\": \"{key}\", \"type\": \"{kind}\", \"value\": {value}}}"
            ));
        }
        let comms = format!(
            "\"Collective name\": \"{name}\", \"In msg nelems\": {sent}, \"Out msg nelems\": {received}, \
             \"Group size\": {size}, \"dtype\": \"Float\", \"In split size\": \"[]\", \
             \"Out split size\": \"[]\", \"Process Group Name\": \"{pg}\", \
             \"Process Group Description\": \"{desc}\", \"Process Group Ranks\": \"{ranks}\""
        );
        let recorded = format!(
            "{comms}, \"Global rank start\": {start}, \"Global rank stride\": {stride}, \
             \"Rank\": {root}, \"Seq\": {NUMBER}"
        );
        let call = Call {
            number: self.number(ask.axis),
            more: [&attrs, &recorded],
            ..plain("record_param_comms")
        };
        let place = group.ranks.binary_search(&root).unwrap_or(0);
        let own = match ask.kind {
            CollectiveKind::Broadcast => 0,
            _ => place as i64,
        };
        let mut meet = 0;
        self.op(
            call,
            &[
                Arg::Tensors(&[ask.input]),
                Arg::Number,
                Arg::Pair(pg, desc),
                Arg::Int(own),
                Arg::Text(name),
                Arg::Ints(&[]),
                Arg::Ints(&[]),
                Arg::Int(start.into()),
                Arg::Int(stride.into()),
                Arg::Int(size as i64),
            ],
            &[Arg::Tensors(&[ask.output])],
            |b| {
                let (frame, kernel) = match ask.kind {
                    CollectiveKind::AllReduce => {
                        ("nccl:all_reduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
                    }
                    CollectiveKind::AllGather => {
                        ("nccl:_all_gather_base", "ncclDevKernel_AllGather_RING_LL")
                    }
                    CollectiveKind::ReduceScatter => (
                        "nccl:_reduce_scatter_base",
                        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
                    ),
                    _ => ("nccl:broadcast", "ncclDevKernel_Broadcast_RING_LL"),
                };
                let number = b.number(ask.axis);
                let frame = Call {
                    number,
                    ..annotation(frame)
                };
                b.op(frame, &[Arg::Tensor(ask.input)], &[], |b| {
                    let op = (b.program.ops.len() - 1) as u32;
                    meet = b.meet(Exchange::Collective(ask.kind), ask.axis, bytes, op);
                    let name = format!(
                        "{kernel}(ncclDevComm*, unsigned long, ncclWork*)"
                    );
                    let args = format!(
                        "\n      \"registers per thread\": 96,\n      \"shared memory\": 82240,\n      \
                         \"blocks per SM\": 0.181818,\n      \"warps per SM\": 3.090909,\n      \
                         \"grid\": [24, 1, 1],\n      \"block\": [544, 1, 1],\n      \
                         \"est. achieved occupancy %\": 0,\n      {comms}, \"Seq\": {NUMBER}"
                    );
                    let kernel = b.program.kernel(&name, 0, &args, None);
                    b.program.meets[meet as usize].kernel = Some(kernel);
                    b.instr(Instr::Collective(meet));
                });
            },
        );
        meet
    }

    /// Adds the wait for `meet`, as in `work.wait()`: with Gloo on the thread, with NCCL on the compute
    /// stream.
    pub(super) fn wait(&mut self, meet: u32) {
        if self.options.device == Device::Cpu {
            self.instr(Instr::Block(meet));
            return;
        }
        let attrs: String = [
            ("collective_name", "string", "\"wait\""),
            ("dtype", "string", "\"Byte\""),
            ("in_msg_nelems", "uint64", "0"),
            ("out_msg_nelems", "uint64", "0"),
            ("in_split_size", "string", "\"[]\""),
            ("out_split_size", "string", "\"[]\""),
            ("pg_size", "uint64", "1"),
        ]
        .iter()
        .map(|(key, kind, value)| {
            format!(", \n  {{\"name\": \"{key}\", \"type\": \"{kind}\", \"value\": {value}}}")
        })
        .collect();
        let recorded = "\"Collective name\": \"wait\", \"In msg nelems\": 0, \"Out msg nelems\": 0, \
                        \"Group size\": 1, \"dtype\": \"Byte\", \"In split size\": \"[]\", \
                        \"Out split size\": \"[]\", \"Process Group Ranks\": \"[]\"";
        let call = Call {
            number: self.program.ops[self.program.meets[meet as usize].op as usize].number,
            more: [&attrs, recorded],
            ..plain("record_param_comms")
        };
        self.same_number(self.program.meets[meet as usize].axis);
        self.op(
            call,
            &[
                Arg::Number,
                Arg::Pair("", ""),
                Arg::Int(0),
                Arg::Text("wait"),
                Arg::Ints(&[]),
                Arg::Ints(&[]),
                Arg::Int(-1),
                Arg::Int(-1),
                Arg::Int(1),
            ],
            &[],
            |b| b.instr(Instr::StreamWait(meet)),
        );
    }

    /// Adds a collective as `torch.distributed` calls it. If `asynchronous` is true, the caller must add the
    /// wait.
    pub(super) fn c10d(&mut self, ask: Ask<'_>, asynchronous: bool) -> u32 {
        let (input, output) = (Arg::Tensor(ask.input), Arg::Tensor(ask.output));
        let (asynchronous, forever) = (Arg::Bool(asynchronous), Arg::Int(-1));
        let list = [ask.output];
        let list = Arg::Tensors(&list);
        let mut meet = 0;
        let body = |b: &mut Self| meet = b.start(ask);
        match ask.kind {
            CollectiveKind::AllReduce => self.op(
                plain("c10d::allreduce_"),
                &[
                    list,
                    Arg::Object,
                    Arg::Object,
                    Arg::None,
                    asynchronous,
                    forever,
                ],
                &[list, Arg::Object],
                body,
            ),
            CollectiveKind::AllGather => self.op(
                plain("c10d::_allgather_base_"),
                &[output, input, Arg::Object, asynchronous, forever],
                &[output, Arg::Object],
                body,
            ),
            CollectiveKind::ReduceScatter => self.op(
                plain("c10d::_reduce_scatter_base_"),
                &[
                    output,
                    input,
                    Arg::Object,
                    Arg::Object,
                    asynchronous,
                    forever,
                ],
                &[output, Arg::Object],
                body,
            ),
            _ => self.op(
                plain("c10d::broadcast_"),
                &[
                    list,
                    Arg::Object,
                    Arg::Int(0),
                    Arg::Int(0),
                    asynchronous,
                    forever,
                ],
                &[list, Arg::Object],
                body,
            ),
        }
        meet
    }

    /// Adds a collective as the functional interface calls it, without the wait.
    pub(super) fn functional(&mut self, ask: Ask<'_>) -> u32 {
        let group = self.layout.group(ask.axis, self.rank);
        let (pg, size) = (group.name.clone(), group.ranks.len() as i64);
        let (input, output) = (Arg::Tensor(ask.input), Arg::Tensor(ask.output));
        let (from, to) = ([ask.input], [ask.output]);
        let (from, to) = (Arg::Tensors(&from), Arg::Tensors(&to));
        let (pg, size) = (Arg::Text(&pg), Arg::Int(size));
        let mut meet = 0;
        match ask.kind {
            CollectiveKind::AllReduce => {
                let args = [input, Arg::Text("sum"), pg];
                let call = plain("_c10d_functional::all_reduce");
                self.op(call, &args, &[output], |b| {
                    b.op(
                        plain("aten::clone"),
                        &[input, Arg::Int(0)],
                        &[output],
                        |b| {
                            b.empty_like(ask.input, ask.output);
                            b.copy_(ask.output, ask.input);
                        },
                    );
                    let inside = Ask {
                        input: ask.output,
                        ..ask
                    };
                    meet = b.c10d(inside, true);
                });
            }
            CollectiveKind::AllGather => {
                let call = plain("_c10d_functional::all_gather_into_tensor");
                self.op(call, &[input, size, pg], &[output], |b| {
                    b.empty(ask.output);
                    let call = plain("c10d::allgather_into_tensor_coalesced_");
                    let args = [to, from, Arg::Object, Arg::Bool(true)];
                    b.op(call, &args, &[Arg::Object], |b| meet = b.start(ask));
                });
            }
            _ => {
                let call = plain("_c10d_functional::reduce_scatter_tensor");
                let args = [input, Arg::Text("sum"), size, pg];
                self.op(call, &args, &[output], |b| {
                    b.empty(ask.output);
                    let call = plain("c10d::reduce_scatter_tensor_coalesced_");
                    let args = [
                        to,
                        from,
                        Arg::Object,
                        Arg::Object,
                        Arg::Bool(true),
                        Arg::Int(-1),
                    ];
                    b.op(call, &args, &[Arg::Object], |b| meet = b.start(ask));
                });
            }
        }
        meet
    }

    /// Adds the wait for a functional collective.
    pub(super) fn wait_tensor(&mut self, meet: u32, tensor: &Tensor) {
        let tensor = [Arg::Tensor(tensor)];
        let call = plain("_c10d_functional::wait_tensor");
        self.op(call, &tensor, &tensor, |b| b.wait(meet));
    }

    /// Adds the start of a message to or from the neighbour `peer`. `global` is the message's index in the step.
    pub(super) fn message(
        &mut self,
        receive: bool,
        peer: u32,
        global: u32,
        tensor: &Tensor,
    ) -> u32 {
        let (outer, inner) = match receive {
            false => ("c10d::send", "gloo:send"),
            true => ("c10d::recv_", "gloo:recv"),
        };
        let list = [tensor];
        let args = [
            Arg::Tensors(&list),
            Arg::Object,
            Arg::Int(peer.into()),
            Arg::Int(0),
        ];
        let mut meet = 0;
        self.op(plain(outer), &args, &[Arg::Object], |b| {
            let op = b.declare(annotation(inner), &[Arg::Tensor(tensor)], &[]);
            meet = b.meet(Exchange::Message, Axis::Pair, tensor.bytes(), op);
            b.program.meets[meet as usize].global = global;
            b.instr(Instr::Issue(meet));
        });
        meet
    }
}

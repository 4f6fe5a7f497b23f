//! Adds collectives and messages in the form that each backend records.

use super::Device;
use super::build::{
    OperatorNameAndAutogradRole, StepProgramBuilder, annotation_call, plain_operator_call,
};
use super::cost::CollectiveKind;
use super::cost::CommunicationOperation;
use super::layout::nccl_record_name_of_collective;
use super::program::{GroupAxis, ThreadInstruction};
use super::tensor::{NUMBER, OperatorOperand, ProgramTensor};

/// A collective that a program requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedProgramCollective<'t> {
    pub kind: CollectiveKind,
    pub axis: GroupAxis,
    pub input: &'t ProgramTensor,
    pub output: &'t ProgramTensor,
}

impl StepProgramBuilder<'_> {
    /// Adds the start of the collective inside `c10d`'s operator.
    pub(super) fn add_collective_start(&mut self, ask: RequestedProgramCollective<'_>) -> u32 {
        let RequestedProgramCollective {
            kind,
            axis,
            input,
            output,
        } = ask;
        let bytes = input.byte_count().max(output.byte_count());
        let exchange = CommunicationOperation::Collective(kind);
        if self.options.device == Device::Cpu {
            // Gloo implements a reduce-scatter as an all-reduce.
            let name = match kind {
                CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => "gloo:all_reduce",
                CollectiveKind::AllGather => "gloo:all_gather",
                _ => "gloo:broadcast",
            };
            let op = self.declare_operator(
                annotation_call(name),
                &[OperatorOperand::Tensor(input)],
                &[],
            );
            let meet = self.add_exchange(exchange, axis, bytes, op);
            self.push_instruction(ThreadInstruction::Issue(meet));
            return meet;
        }
        self.start_nccl_collective(ask, bytes)
    }

    fn start_nccl_collective(&mut self, ask: RequestedProgramCollective<'_>, bytes: u64) -> u32 {
        let (group, root) = (
            self.layout.group_of_rank(ask.axis, self.rank).clone(),
            self.rank,
        );
        let size = group.ranks.len();
        let start = group.ranks[0];
        let stride = group.ranks.get(1).map_or(1, |second| second - start);
        let ranks = format!("{:?}", group.ranks);
        let (name, pg, desc) = (
            nccl_record_name_of_collective(ask.kind),
            &group.name,
            group.description,
        );
        let (sent, received) = (ask.input.element_count(), ask.output.element_count());
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
        let call = OperatorNameAndAutogradRole {
            number: self.assign_next_exchange_number_to_operator(ask.axis),
            more: [&attrs, &recorded],
            ..plain_operator_call("record_param_comms")
        };
        let place = group.ranks.binary_search(&root).unwrap_or(0);
        let own = match ask.kind {
            CollectiveKind::Broadcast => 0,
            _ => place as i64,
        };
        let mut meet = 0;
        self.add_operator_enclosing_body(
            call,
            &[
                OperatorOperand::Tensors(&[ask.input]),
                OperatorOperand::Number,
                OperatorOperand::Pair(pg, desc),
                OperatorOperand::Int(own),
                OperatorOperand::Text(name),
                OperatorOperand::Ints(&[]),
                OperatorOperand::Ints(&[]),
                OperatorOperand::Int(start.into()),
                OperatorOperand::Int(stride.into()),
                OperatorOperand::Int(size as i64),
            ],
            &[OperatorOperand::Tensors(&[ask.output])],
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
                let number = b.assign_next_exchange_number_to_operator(ask.axis);
                let frame = OperatorNameAndAutogradRole {
                    number,
                    ..annotation_call(frame)
                };
                b.add_operator_enclosing_body(frame, &[OperatorOperand::Tensor(ask.input)], &[], |b| {
                    let op = (b.program.ops.len() - 1) as u32;
                    meet = b.add_exchange(CommunicationOperation::Collective(ask.kind), ask.axis, bytes, op);
                    let name = format!(
                        "{kernel}(ncclDevComm*, unsigned long, ncclWork*)"
                    );
                    let args = format!(
                        "\n      \"registers per thread\": 96,\n      \"shared memory\": 82240,\n      \
                         \"blocks per SM\": 0.181818,\n      \"warps per SM\": 3.090909,\n      \
                         \"grid\": [24, 1, 1],\n      \"block\": [544, 1, 1],\n      \
                         \"est. achieved occupancy %\": 0,\n      {comms}, \"Seq\": {NUMBER}"
                    );
                    let kernel = b.program.intern_kernel(&name, 0, &args, None);
                    b.program.meets[meet as usize].kernel = Some(kernel);
                    b.push_instruction(ThreadInstruction::Collective(meet));
                });
            },
        );
        meet
    }

    /// Adds the wait for the meeting `meet` (a collective or message), as in `work.wait()`. With Gloo, the thread
    /// waits; with NCCL, the compute stream waits.
    pub(super) fn add_communication_wait(&mut self, meet: u32) {
        if self.options.device == Device::Cpu {
            self.push_instruction(ThreadInstruction::Block(meet));
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
        let call = OperatorNameAndAutogradRole {
            number: self.program.ops[self.program.meets[meet as usize].op as usize].number,
            more: [&attrs, recorded],
            ..plain_operator_call("record_param_comms")
        };
        self.repeat_exchange_number_for_operator(self.program.meets[meet as usize].axis);
        self.add_operator_enclosing_body(
            call,
            &[
                OperatorOperand::Number,
                OperatorOperand::Pair("", ""),
                OperatorOperand::Int(0),
                OperatorOperand::Text("wait"),
                OperatorOperand::Ints(&[]),
                OperatorOperand::Ints(&[]),
                OperatorOperand::Int(-1),
                OperatorOperand::Int(-1),
                OperatorOperand::Int(1),
            ],
            &[],
            |b| b.push_instruction(ThreadInstruction::StreamWait(meet)),
        );
    }

    /// Adds a collective as `torch.distributed` calls it. If `asynchronous` is true, the caller must add the
    /// wait.
    pub(super) fn add_c10d_collective(
        &mut self,
        ask: RequestedProgramCollective<'_>,
        asynchronous: bool,
    ) -> u32 {
        let (input, output) = (
            OperatorOperand::Tensor(ask.input),
            OperatorOperand::Tensor(ask.output),
        );
        let (asynchronous, forever) = (
            OperatorOperand::Bool(asynchronous),
            OperatorOperand::Int(-1),
        );
        let list = [ask.output];
        let list = OperatorOperand::Tensors(&list);
        let mut meet = 0;
        let body = |b: &mut Self| meet = b.add_collective_start(ask);
        match ask.kind {
            CollectiveKind::AllReduce => self.add_operator_enclosing_body(
                plain_operator_call("c10d::allreduce_"),
                &[
                    list,
                    OperatorOperand::Object,
                    OperatorOperand::Object,
                    OperatorOperand::None,
                    asynchronous,
                    forever,
                ],
                &[list, OperatorOperand::Object],
                body,
            ),
            CollectiveKind::AllGather => self.add_operator_enclosing_body(
                plain_operator_call("c10d::_allgather_base_"),
                &[
                    output,
                    input,
                    OperatorOperand::Object,
                    asynchronous,
                    forever,
                ],
                &[output, OperatorOperand::Object],
                body,
            ),
            CollectiveKind::ReduceScatter => self.add_operator_enclosing_body(
                plain_operator_call("c10d::_reduce_scatter_base_"),
                &[
                    output,
                    input,
                    OperatorOperand::Object,
                    OperatorOperand::Object,
                    asynchronous,
                    forever,
                ],
                &[output, OperatorOperand::Object],
                body,
            ),
            _ => self.add_operator_enclosing_body(
                plain_operator_call("c10d::broadcast_"),
                &[
                    list,
                    OperatorOperand::Object,
                    OperatorOperand::Int(0),
                    OperatorOperand::Int(0),
                    asynchronous,
                    forever,
                ],
                &[list, OperatorOperand::Object],
                body,
            ),
        }
        meet
    }

    /// Adds a collective as the functional interface calls it. The caller must add the wait.
    pub(super) fn add_functional_collective_without_wait(
        &mut self,
        ask: RequestedProgramCollective<'_>,
    ) -> u32 {
        let group = self.layout.group_of_rank(ask.axis, self.rank);
        let (pg, size) = (group.name.clone(), group.ranks.len() as i64);
        let (input, output) = (
            OperatorOperand::Tensor(ask.input),
            OperatorOperand::Tensor(ask.output),
        );
        let (from, to) = ([ask.input], [ask.output]);
        let (from, to) = (
            OperatorOperand::Tensors(&from),
            OperatorOperand::Tensors(&to),
        );
        let (pg, size) = (OperatorOperand::Text(&pg), OperatorOperand::Int(size));
        let mut meet = 0;
        match ask.kind {
            CollectiveKind::AllReduce => {
                let args = [input, OperatorOperand::Text("sum"), pg];
                let call = plain_operator_call("_c10d_functional::all_reduce");
                self.add_operator_enclosing_body(call, &args, &[output], |b| {
                    b.add_operator_enclosing_body(
                        plain_operator_call("aten::clone"),
                        &[input, OperatorOperand::Int(0)],
                        &[output],
                        |b| {
                            b.empty_like(ask.input, ask.output);
                            b.add_tensor_copy_operator(ask.output, ask.input);
                        },
                    );
                    let inside = RequestedProgramCollective {
                        input: ask.output,
                        ..ask
                    };
                    meet = b.add_c10d_collective(inside, true);
                });
            }
            CollectiveKind::AllGather => {
                let call = plain_operator_call("_c10d_functional::all_gather_into_tensor");
                self.add_operator_enclosing_body(call, &[input, size, pg], &[output], |b| {
                    b.add_empty(ask.output);
                    let call = plain_operator_call("c10d::allgather_into_tensor_coalesced_");
                    let args = [
                        to,
                        from,
                        OperatorOperand::Object,
                        OperatorOperand::Bool(true),
                    ];
                    b.add_operator_enclosing_body(call, &args, &[OperatorOperand::Object], |b| {
                        meet = b.add_collective_start(ask)
                    });
                });
            }
            _ => {
                let call = plain_operator_call("_c10d_functional::reduce_scatter_tensor");
                let args = [input, OperatorOperand::Text("sum"), size, pg];
                self.add_operator_enclosing_body(call, &args, &[output], |b| {
                    b.add_empty(ask.output);
                    let call = plain_operator_call("c10d::reduce_scatter_tensor_coalesced_");
                    let args = [
                        to,
                        from,
                        OperatorOperand::Object,
                        OperatorOperand::Object,
                        OperatorOperand::Bool(true),
                        OperatorOperand::Int(-1),
                    ];
                    b.add_operator_enclosing_body(call, &args, &[OperatorOperand::Object], |b| {
                        meet = b.add_collective_start(ask)
                    });
                });
            }
        }
        meet
    }

    /// Adds the wait for a functional collective, as `wait_tensor` records it.
    pub(super) fn wait_tensor(&mut self, meet: u32, tensor: &ProgramTensor) {
        let tensor = [OperatorOperand::Tensor(tensor)];
        let call = plain_operator_call("_c10d_functional::wait_tensor");
        self.add_operator_enclosing_body(call, &tensor, &tensor, |b| {
            b.add_communication_wait(meet)
        });
    }

    /// Adds the start of a message to or from the neighbour `peer`. `global` is the message's index in the step.
    pub(super) fn add_message_start(
        &mut self,
        receive: bool,
        peer: u32,
        global: u32,
        tensor: &ProgramTensor,
    ) -> u32 {
        let (outer, inner) = match receive {
            false => ("c10d::send", "gloo:send"),
            true => ("c10d::recv_", "gloo:recv"),
        };
        let list = [tensor];
        let args = [
            OperatorOperand::Tensors(&list),
            OperatorOperand::Object,
            OperatorOperand::Int(peer.into()),
            OperatorOperand::Int(0),
        ];
        let mut meet = 0;
        self.add_operator_enclosing_body(
            plain_operator_call(outer),
            &args,
            &[OperatorOperand::Object],
            |b| {
                let op = b.declare_operator(
                    annotation_call(inner),
                    &[OperatorOperand::Tensor(tensor)],
                    &[],
                );
                meet = b.add_exchange(
                    CommunicationOperation::Message,
                    GroupAxis::Pair,
                    tensor.byte_count(),
                    op,
                );
                b.program.meets[meet as usize].global = global;
                b.push_instruction(ThreadInstruction::Issue(meet));
            },
        );
        meet
    }
}

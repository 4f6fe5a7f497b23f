//! A collective algorithm: an all-reduce through the first member.

use chakram::extend::{
    CollectiveStage, CollectiveStagePrimitive, MemberLinePosition, SendStepWithConditions,
    UserAlgorithmModel,
};

/// All members send their buffers to the first member, which sends the sum back to each of them.
#[derive(Debug)]
pub struct StarAllReduce;

impl UserAlgorithmModel for StarAllReduce {
    fn name(&self) -> &'static str {
        "star"
    }

    fn supports_primitive(&self, primitive: CollectiveStagePrimitive, _: u32) -> bool {
        primitive == CollectiveStagePrimitive::AllReduce
    }

    fn nth_send(
        &self,
        stage: &CollectiveStage,
        line: MemberLinePosition,
        i: u32,
    ) -> Option<SendStepWithConditions> {
        let others = line.size - 1;
        let (count, to, after) = match line.index {
            // When all buffers have arrived, the first member sends the sum to the others, one after another.
            0 => (others, i + 1, others),
            _ => (1, 0, 0),
        };
        (i < count).then_some(SendStepWithConditions {
            to,
            amount: stage.buffer,
            after,
            arrived: 0,
            recv_posted: 0,
        })
    }

    fn receive_count(&self, _: &CollectiveStage, line: MemberLinePosition) -> u32 {
        match line.index {
            0 => line.size - 1,
            _ => 1,
        }
    }
}

//! Tests orders of passes that come from files.

use super::*;

fn format_schedule_lines(schedule: &PipelineSchedule, stages: u32, count: u32) -> String {
    schedule.to_lines(stages, count).join("\n")
}

#[test]
fn orders_are_read_as_they_are_written() {
    for (schedule, stages, count) in [
        (PipelineSchedule::GPipe, 3, 5),
        (ONE_F_ONE_B, 4, 8),
        (build_interleaved_schedule(3), 4, 8),
        (PipelineSchedule::Inference, 3, 4),
        (PipelineSchedule::ZeroBubbleH1, 4, 9),
        (PipelineSchedule::ZeroBubbleV, 4, 8),
        (PipelineSchedule::DualPipeV, 4, 10),
    ] {
        let text = format_schedule_lines(&schedule, stages, count);
        let orders =
            StagePassOrders::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(
            (orders.stage_count(), orders.micro_batches()),
            (stages, count)
        );
        let listed = PipelineSchedule::Listed(Arc::new(orders));
        assert_eq!(
            listed.check_stage_and_micro_batch_counts(stages, count),
            Ok(())
        );
        assert_eq!(listed.has_training(), schedule.has_training());
        assert_eq!(format_schedule_lines(&listed, stages, count), text);
        for stage in 0..stages {
            let of = |one: &PipelineSchedule| {
                one.steps_of_stage(stage, stages, count).collect::<Vec<_>>()
            };
            assert_eq!(of(&listed), of(&schedule), "{schedule:?}");
            let stored = |one: &PipelineSchedule| {
                one.max_passes_with_stored_activations(stage, stages, count)
            };
            assert_eq!(stored(&listed), stored(&schedule));
        }
    }
}

/// PyTorch's pipelining prints this order for 1F1B on two ranks: one line per rank, with an empty cell
/// wherever the rank waits.
#[test]
fn pytorch_pass_order_file_is_parsed() {
    let text = "0F0,0F1,,0B0,,0B1\r\n,1F0,1B0,1F1,1B1,\r\n";
    let orders = StagePassOrders::parse(text).unwrap();
    let listed = PipelineSchedule::Listed(Arc::new(orders));
    assert_eq!(
        format_pass_order(listed.clone(), 0, 2, 2),
        "1a 2a 1a\' 2a\'"
    );
    assert_eq!(format_pass_order(listed, 1, 2, 2), "1a 1a\' 2a 2a\'");
    let pair = StagePassOrders::parse("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0I2,0W2").unwrap();
    let listed = PipelineSchedule::Listed(Arc::new(pair));
    assert_eq!(
        format_pass_order(listed, 0, 1, 3),
        "1a 2a 3a|1a\' 2a\' 3ai 3aw"
    );
}

#[test]
fn wrong_orders_are_refused_with_their_line_and_step() {
    for (text, expected) in [
        ("", "line 0: found no passes"),
        (
            "0F0,0X0",
            "line 1, step 2: found \"0X0\", expected a part, one of F, B, I and W, and a micro-batch",
        ),
        ("0F0,0SEND_F0,0B0", "line 1, step 2: found \"0SEND_F0\""),
        ("0F0,0UNSHARD", "line 1, step 2: found \"0UNSHARD\""),
        ("0F0,0B", "line 1, step 2: found \"0B\""),
        (
            "0F99999999999,0B0",
            "line 1, step 1: found \"0F99999999999\"",
        ),
        (
            "0F0,0F0,0B0",
            "line 1, step 2: found 0F0, expected each pass once",
        ),
        (
            "0B0,0F0",
            "line 1, step 1: found 0B0, expected each pass after the pass",
        ),
        (
            "0F0,0W0,0I0",
            "line 1, step 2: found 0W0, expected each pass after",
        ),
        (
            "(0F0;0B0)OVERLAP_F_B",
            "line 1, step 1: found 0B0, expected each pass after",
        ),
        (
            "0F0,0F1,0B0",
            "line 1: found no 0B1, expected the forward passes of every micro-batch",
        ),
        ("0F0,0I0", "line 1: found no 0W0"),
        (
            "0F0,0B0\n0F0,0B0",
            "line 2: found part 0, expected each part on one stage; line 1 has the same part",
        ),
        (
            "0F0,0B0\n2F0,2B0",
            "line 2: found part 2, expected parts 0 to 1",
        ),
        (
            "0F0,0B0\n1F0,2F0",
            "line 2: found 2 parts of the model, expected 1",
        ),
        ("0F0,0F1,0B1,0B0\n1F0,1B0,1F1,1B1", ""),
        // Deadlock: the first stage waits for micro-batch 0's gradient before it sends micro-batch
        // 1, but the second stage must process micro-batch 1 first.
        (
            "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1",
            "line 1, step 2: found 0B0, expected an order without a deadlock",
        ),
    ] {
        match StagePassOrders::parse(text) {
            Ok(_) => assert_eq!(expected, "", "{text}"),
            Err(error) => {
                let error = error.to_string();
                assert!(
                    !expected.is_empty() && error.starts_with(expected),
                    "{text}: {error}"
                );
            }
        }
    }
    let orders = StagePassOrders::parse("0F0,0B0\n1F0,1B0").unwrap();
    let listed = PipelineSchedule::Listed(Arc::new(orders));
    let refusal = |stages, count| {
        listed
            .check_stage_and_micro_batch_counts(stages, count)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refusal(4, 1),
        "`pipeline` is 4; expected 2, the number of stages in the pass orders"
    );
    assert!(refusal(2, 8).starts_with("`micro_batches` is 8; expected 1"));
}

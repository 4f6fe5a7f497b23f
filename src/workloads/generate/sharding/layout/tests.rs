//! Tests individual cases with expected numbers. The modules `oracle` and `sums` use explicit sets of elements to test
//! all small cases.

use super::*;

mod oracle;
mod sums;

fn build_sharding_by_samples(parts: u32, stride: u32) -> SampleRowColumnSharding {
    SampleRowColumnSharding {
        samples: MemberNumberDigit::new(parts, stride),
        ..SampleRowColumnSharding::WHOLE
    }
}

fn build_column_sharding(parts: u32, stride: u32) -> SampleRowColumnSharding {
    SampleRowColumnSharding {
        columns: MemberNumberDigit::new(parts, stride),
        ..SampleRowColumnSharding::WHOLE
    }
}

fn list_group_members(among: &EqualSizedMemberGroups) -> Vec<Vec<u32>> {
    (0..among.group_count())
        .map(|g| among.members_of(g))
        .collect()
}

fn unwrap_all_gather(change: &Redistribution) -> (Vec<Vec<u32>>, u64) {
    let Redistribution::AllGather { among, share } = change else {
        panic!("{change:?}");
    };
    (list_group_members(among), *share)
}

fn unwrap_all_to_all(change: &Redistribution) -> (Vec<Vec<u32>>, u64) {
    let Redistribution::AllToAll { among, share } = change else {
        panic!("{change:?}");
    };
    (list_group_members(among), *share)
}

fn unwrap_messages(change: Redistribution) -> (Vec<[u64; 3]>, u64) {
    let Redistribution::Messages { messages, of } = change else {
        panic!("{change:?}");
    };
    let plain = |m: &ShardMessage| [m.from.into(), m.to.into(), m.pieces];
    (messages.iter().map(plain).collect(), of)
}

#[test]
fn columns_of_megatron_are_gathered_for_whoever_needs_all() {
    let change = plan_redistribution(
        &build_column_sharding(4, 1),
        &SampleRowColumnSharding::WHOLE,
        4,
    );
    assert_eq!(unwrap_all_gather(&change), (vec![vec![0, 1, 2, 3]], 1));
    // If the samples are also split in two, there are two groups of four members, and each member ends with 1/2 of the
    // result.
    let [before, after] = [4, 1].map(|parts| SampleRowColumnSharding {
        columns: MemberNumberDigit::new(parts, 1),
        ..build_sharding_by_samples(2, 4)
    });
    let change = plan_redistribution(&before, &after, 8);
    let halves = vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]];
    assert_eq!(unwrap_all_gather(&change), (halves, 2));
}

#[test]
fn dlrm_table_columns_become_samples_by_an_all_to_all() {
    // Member i has the columns of its own tables for all samples, which are 1/4 of the result. It needs all columns of
    // its own samples, so it receives 1/16 of the result from each member.
    let all = vec![vec![0, 1, 2, 3]];
    let forward = plan_redistribution(
        &build_column_sharding(4, 1),
        &build_sharding_by_samples(4, 1),
        4,
    );
    assert_eq!(unwrap_all_to_all(&forward), (all.clone(), 4));
    let backward = plan_redistribution(
        &build_sharding_by_samples(4, 1),
        &build_column_sharding(4, 1),
        4,
    );
    assert_eq!(unwrap_all_to_all(&backward), (all, 4));
}

#[test]
fn slices_of_held_data_need_no_communication() {
    for after in [
        SampleRowColumnSharding::WHOLE,
        build_column_sharding(4, 1),
        build_sharding_by_samples(2, 2),
    ] {
        assert_eq!(
            plan_redistribution(&SampleRowColumnSharding::WHOLE, &after, 4),
            Redistribution::Nothing
        );
    }
    // Each member has one half of the result, and member i needs the i-th quarter.
    assert_eq!(
        plan_redistribution(
            &build_column_sharding(2, 2),
            &build_column_sharding(4, 1),
            4
        ),
        Redistribution::Nothing
    );
    let rows = SampleRowColumnSharding {
        rows: MemberNumberDigit::new(4, 1),
        ..SampleRowColumnSharding::WHOLE
    };
    assert_eq!(
        plan_redistribution(&rows, &rows, 4),
        Redistribution::Nothing
    );
}

#[test]
fn copies_are_sliced_before_they_are_gathered_or_exchanged() {
    // Even members and odd members have different columns. Members 0 and 1 need the first half of
    // the samples, and each already has 1/4 of the result in its own columns.
    let change = plan_redistribution(
        &build_column_sharding(2, 1),
        &build_sharding_by_samples(2, 2),
        4,
    );
    assert_eq!(
        unwrap_all_gather(&change),
        (vec![vec![0, 1], vec![2, 3]], 2)
    );
    // After a sum over k, members 0 and 1 both have the first half of the columns. Member i needs the i-th quarter of
    // the samples. Member 0 already has half of what it needs (1/8 of the result). Member 2 has the other half (1/8 of
    // the result).
    let change = plan_redistribution(
        &build_column_sharding(2, 2),
        &build_sharding_by_samples(4, 1),
        4,
    );
    assert_eq!(
        unwrap_all_to_all(&change),
        (vec![vec![0, 2], vec![1, 3]], 4)
    );
}

#[test]
fn members_with_equal_needs_each_receive_them_in_an_all_to_all() {
    // Members 0 and 1 need the first half of the samples. Each member has a different quarter of the columns, and half
    // of this quarter (1/8 of the result) belongs to the samples that it needs. Each member receives the other three
    // eighths of what it needs. Including the fragment for itself, each member sends and receives 1/2 of the result.
    let change = plan_redistribution(
        &build_column_sharding(4, 1),
        &build_sharding_by_samples(2, 2),
        4,
    );
    assert_eq!(unwrap_all_to_all(&change), (vec![vec![0, 1, 2, 3]], 2));
}

#[test]
fn unaligned_members_get_messages_from_the_nearest_holder() {
    // Even members have the first half of the columns, but members 0 and 1 need it. Members 0 and 2
    // are equally near to member 1, and members 1 and 3 are equally near to member 2, so the lower
    // one sends.
    let change = plan_redistribution(
        &build_column_sharding(2, 1),
        &build_column_sharding(2, 2),
        4,
    );
    assert_eq!(unwrap_messages(change), (vec![[0, 1, 1], [1, 2, 1]], 2));
    // If the columns are cut into sixths, even members have 0..3 and odd members have 3..6. Members 0 and 1 need 0..2,
    // members 2 and 3 need 2..4, and members 4 and 5 need 4..6. Member 1 lacks both sixths that it needs, and so does
    // member 4. Member 2 lacks sixth 3, and member 3 lacks sixth 2.
    let change = plan_redistribution(
        &build_column_sharding(2, 1),
        &build_column_sharding(3, 2),
        6,
    );
    let expected = vec![[0, 1, 2], [1, 2, 1], [2, 3, 1], [3, 4, 2]];
    assert_eq!(unwrap_messages(change), (expected, 6));
}

#[test]
fn sum_is_reduce_scattered_if_summing_members_keep_distinct_slices() {
    let thirds = MemberNumberDigit::new(3, 1);
    let among = |from: &SampleRowColumnSharding, to: &SampleRowColumnSharding| {
        reduce_scatter_groups(from, &[thirds], to, 6).map(|p| list_group_members(&p))
    };
    let pairs = vec![vec![0, 1, 2], vec![3, 4, 5]];
    // Columns are split by 2. Members 0, 1 and 2 sum the first half, and each of them keeps one
    // third of its samples.
    let both = SampleRowColumnSharding {
        samples: thirds,
        ..build_column_sharding(2, 3)
    };
    assert_eq!(
        among(&build_column_sharding(2, 3), &both),
        Some(pairs.clone())
    );
    // If each member instead keeps one third of its half's columns, it keeps one sixth of all
    // columns.
    assert_eq!(
        among(&build_column_sharding(2, 3), &build_column_sharding(6, 1)),
        Some(pairs)
    );
    // No reduce-scatter is possible in four cases: all members keep their shards, two summing members need the same
    // part, the summing members have different shards, or nothing is summed.
    assert_eq!(
        among(&build_column_sharding(2, 3), &build_column_sharding(2, 3)),
        None
    );
    assert_eq!(
        among(
            &SampleRowColumnSharding::WHOLE,
            &build_column_sharding(3, 2)
        ),
        None
    );
    assert_eq!(among(&build_column_sharding(3, 1), &both), None);
    assert_eq!(
        reduce_scatter_groups(&build_column_sharding(2, 3), &[], &both, 6),
        None
    );
}

#[test]
fn redistributions_among_thousands_of_members_are_planned() {
    let change = plan_redistribution(
        &build_column_sharding(4096, 1),
        &SampleRowColumnSharding::WHOLE,
        4096,
    );
    assert!(
        matches!(&change, Redistribution::AllGather { among, share: 1 } if among.has_single_group())
    );
    // Each of the 256 shards is on two members. Even members need the first 128 shards, and odd
    // members need the last 128 shards. The even members 0, 2, .., 254 and the odd members 257,
    // 259, .., 511 already have one of the shards that they need.
    let (messages, of) = unwrap_messages(plan_redistribution(
        &build_column_sharding(256, 2),
        &build_column_sharding(2, 1),
        512,
    ));
    assert_eq!((messages.len(), of), (512 * 128 - 256, 256));
}

#[test]
#[should_panic(expected = "of 4")]
fn overlapping_axis_digits_are_refused() {
    let diagonal = SampleRowColumnSharding {
        samples: MemberNumberDigit::new(2, 1),
        ..build_column_sharding(2, 1)
    };
    plan_redistribution(&SampleRowColumnSharding::WHOLE, &diagonal, 4);
}

#[test]
#[should_panic(expected = "of 6")]
fn shard_count_that_does_not_divide_member_count_is_refused() {
    plan_redistribution(
        &build_column_sharding(4, 1),
        &SampleRowColumnSharding::WHOLE,
        6,
    );
}

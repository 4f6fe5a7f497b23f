//! Tests that encode and decode objects with arbitrary contents.

use super::*;
use crate::wire::ArchiveDecodingError;
use proptest::prelude::*;

/// Encodes `objects` as one family, and decodes each object.
fn encode_and_check_round_trip(
    objects: &[Vec<u8>],
    level: CompressionLevel,
    is_trace: bool,
) -> Vec<Vec<EncodedChunk>> {
    let mut encoder = WorkloadObjectDeltaEncoder::new(level);
    let encoded: Vec<Vec<EncodedChunk>> = (0..)
        .zip(objects)
        .map(|(number, bytes)| {
            encoder
                .encode_object(bytes, number, "job", is_trace)
                .unwrap()
        })
        .collect();
    for (object, chunks) in objects.iter().zip(&encoded) {
        let (mut back, mut joined) = (Vec::new(), Vec::new());
        for chunk in chunks {
            let decoded = decode_chunk_with_base(&encoded, chunk);
            let mut out = |part: &[u8]| {
                back.extend_from_slice(part);
                Ok(())
            };
            let given = decoded.write_contents(chunk.bytes, &mut joined, &mut out);
            given.unwrap();
        }
        assert!(
            back == *object,
            "{} bytes became {}",
            object.len(),
            back.len()
        );
    }
    encoded
}

fn decode_chunk_with_base(
    all: &[Vec<EncodedChunk>],
    chunk: &EncodedChunk,
) -> DecodedFrameAndColumns {
    let base = chunk
        .base
        .map(|(object, at)| decode_chunk_with_base(all, &all[object as usize][at as usize]));
    DecodedFrameAndColumns::decode_frame(
        &chunk.frame,
        chunk.coding,
        (chunk.unpacked, chunk.bytes),
        base.as_ref(),
        &mut ReusableChunkBuffers::default(),
    )
    .unwrap()
}

fn frame_records(records: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for record in records {
        crate::wire::put_varint(&mut out, record.len() as u64);
        out.extend_from_slice(record);
    }
    out
}

/// Generates fields of a message: varints, strings, fixed-size numbers and nested messages, in any order; some fields
/// are not encoded minimally.
fn protobuf_message_strategy() -> impl Strategy<Value = Vec<u8>> {
    let varint = |value: u64| {
        let mut out = Vec::new();
        crate::wire::put_varint(&mut out, value);
        out
    };
    let field = 0u64..12;
    let leaf = prop_oneof![
        (field.clone(), any::<u64>()).prop_map(move |(f, v)| [varint(f << 3), varint(v)].concat()),
        (field.clone(), 0u64..300).prop_map(move |(f, v)| [varint(f << 3), varint(v)].concat()),
        (field.clone(), "[a-c0-2]{0,26}").prop_map(move |(f, t)| {
            [varint(f << 3 | 2), varint(t.len() as u64), t.into_bytes()].concat()
        }),
        (field.clone(), any::<[u8; 8]>())
            .prop_map(move |(f, v)| [varint(f << 3 | 1), v.to_vec()].concat()),
        (field, any::<[u8; 4]>()).prop_map(move |(f, v)| [varint(f << 3 | 5), v.to_vec()].concat()),
        prop::collection::vec(any::<u8>(), 0..6),
        Just(vec![0x08, 0x80, 0x00]),
    ];
    let list = prop::collection::vec(leaf, 0..6).prop_map(|parts| parts.concat());
    list.prop_recursive(3, 24, 4, move |inner| {
        prop::collection::vec((0u64..12, inner), 0..5).prop_map(move |fields| {
            let parts = fields.into_iter().flat_map(|(f, body)| {
                [varint(f << 3 | 2), varint(body.len() as u64), body].concat()
            });
            parts.collect()
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_is_packed_comes_back(
        records in prop::collection::vec(protobuf_message_strategy(), 0..12),
        others in prop::collection::vec(prop::collection::vec(protobuf_message_strategy(), 0..6), 0..3),
        tail in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let mut objects = vec![frame_records(&records)];
        // Further objects differ from the first only in replaced messages. The last object also ends with extra bytes,
        // like a truncated record.
        for other in others {
            let mut changed = records.clone();
            for (to, from) in changed.iter_mut().step_by(2).zip(other) {
                *to = from;
            }
            objects.push(frame_records(&changed));
        }
        objects.push([frame_records(&records), tail].concat());
        for level in [CompressionLevel::Plain, CompressionLevel::Default, CompressionLevel::Best] {
            for is_trace in [true, false] {
                encode_and_check_round_trip(&objects, level, is_trace);
            }
        }
    }

    #[test]
    fn any_bytes_are_columns_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 0usize..400) {
        let (mut buffers, mut joined) = Default::default();
        if let Ok(columns) = ChunkTemplatesAndColumns::decode_columns(&bytes, None, size, &mut buffers) {
            for framed in [true, false] {
                let mut given = 0;
                let mut out = |part: &[u8]| {
                    given += part.len();
                    Ok::<(), ArchiveDecodingError>(())
                };
                let whole = columns.rebuild_records(size, framed, &mut joined, &mut out).is_ok();
                prop_assert!(given <= size && (!whole || given == size));
            }
        }
    }
}

#[test]
fn a_short_chunk_has_the_columns_of_a_long_base() {
    // The base has a record with eleven fields, and the next object has one record of two bytes.
    let wide: Vec<u8> = (1..12).flat_map(|field| [field << 3, 1]).collect();
    let objects = [
        frame_records(&[vec![], wide]),
        frame_records(&[vec![], vec![8, 1]]),
    ];
    for level in [CompressionLevel::Default, CompressionLevel::Best] {
        let encoded = encode_and_check_round_trip(&objects, level, true);
        assert!(encoded[1].iter().all(|chunk| chunk.base == Some((0, 0))));
    }
}

/// Builds a trace of `nodes` nodes, each with an id, a dependency on the previous node, and a duration that differs
/// between ranks.
fn build_chain_trace(nodes: u64, rank: u64) -> Vec<u8> {
    let mut records = vec![vec![]];
    for id in 1..=nodes {
        let mut record = vec![0x08];
        crate::wire::put_varint(&mut record, id);
        record.extend_from_slice(&[0x12, 2, b'm', b'm', 0x38]);
        crate::wire::put_varint(&mut record, 1000 + (id * 7919 + rank * 31) % 256);
        records.push(record);
    }
    frame_records(&records)
}

#[test]
fn a_rank_that_differs_in_times_costs_its_times() {
    let ranks: Vec<Vec<u8>> = (0..4).map(|rank| build_chain_trace(5000, rank)).collect();
    let encoded = encode_and_check_round_trip(&ranks, CompressionLevel::Default, true);
    for chunks in &encoded[1..] {
        // Durations differ from those of the base by 31 per rank, modulo 256, so each difference is a byte with few
        // distinct values.
        let bytes: usize = chunks.iter().map(|chunk| chunk.frame.len()).sum();
        assert!(bytes < 5000, "{bytes} bytes for 5,000 nodes");
        assert!(chunks.iter().all(|chunk| chunk.base == Some((0, 0))));
    }
}

#[test]
fn ranks_that_differ_in_structure_come_back() {
    // A node's name determines its type. The second and third ranks also have types that the first lacks.
    let rank = |every: u64| {
        let mut records = vec![vec![]];
        for id in 1..2000 {
            let mut record = vec![0x08];
            crate::wire::put_varint(&mut record, id);
            record.extend_from_slice(&[0x12, 1, b'a' + (id % 3) as u8, 0x18]);
            let other = if id % every == 0 { every } else { 0 };
            crate::wire::put_varint(&mut record, id % 3 + other);
            records.push(record);
        }
        frame_records(&records)
    };
    encode_and_check_round_trip(
        &[rank(5000), rank(7), rank(300)],
        CompressionLevel::Default,
        true,
    );
}

#[test]
fn large_objects_have_chunks_that_are_read_alone() {
    let large = build_chain_trace(700_000, 0);
    let ranks = [large.clone(), build_chain_trace(700_000, 1)];
    for level in [CompressionLevel::Plain, CompressionLevel::Default] {
        let encoded = encode_and_check_round_trip(&ranks, level, true);
        assert!(encoded[0].len() >= 2, "{} bytes", large.len());
        let records: u64 = encoded[1].iter().map(|chunk| chunk.records).sum();
        assert_eq!(records, 700_001);
    }
}

#[test]
fn lines_that_differ_in_numbers_cost_their_numbers() {
    let text = |job: u32| -> Vec<u8> {
        let row = |rank: u32| format!("  {{\"rank\":{rank},\"file\":\"job{job}.{rank}.et\"}},\n");
        (0..1000).map(row).collect::<String>().into_bytes()
    };
    let encoded =
        encode_and_check_round_trip(&[text(1), text(2)], CompressionLevel::Default, false);
    for chunks in &encoded {
        assert_eq!(chunks[0].coding, ChunkBytesOrColumnsEncoding::Lines);
        // The values of every column are constant or increase by one, so the frame is small.
        assert!(chunks[0].frame.len() < 200, "{}", chunks[0].frame.len());
    }
    // Random bytes have no lines of common structure, so they are stored without columns.
    let noise: Vec<u8> = (0..4096u64)
        .map(|i| ((i * i * 0x9e37_79b9) >> 13) as u8)
        .collect();
    let encoded = encode_and_check_round_trip(&[noise], CompressionLevel::Default, false);
    assert_eq!(encoded[0][0].coding, ChunkBytesOrColumnsEncoding::Bytes);
}

#[test]
fn a_frame_with_a_wrong_stated_size_is_refused() {
    let frame = compress_frame(&vec![0; 1 << 20], 3, None).unwrap();
    for unpacked in [
        0,
        1,
        (1 << 20) - 1,
        (1 << 20) + 1,
        LARGEST,
        LARGEST + 1,
        u64::MAX,
    ] {
        assert!(
            decompress_frame(&frame, unpacked, None).is_err(),
            "{unpacked}"
        );
    }
    assert!(decompress_frame(&frame, 1 << 20, None).is_ok());
}

#[test]
fn columns_that_no_template_names_are_refused() {
    // The input claims to have 60 million columns, but no records or templates. The chunk is large enough for this
    // number of columns to pass the first check.
    let count = 60_000_000;
    let mut encoded = vec![0];
    crate::wire::put_varint(&mut encoded, count);
    encoded.push(0);
    encoded.resize(count as usize, 0);
    let mut buffers = Default::default();
    let refused =
        ChunkTemplatesAndColumns::decode_columns(&encoded, None, 0, &mut buffers).unwrap_err();
    assert_eq!(
        refused.0,
        "the chunk has more columns than its templates name"
    );
    // A chunk without templates may have one column, because the id column always exists.
    assert!(
        ChunkTemplatesAndColumns::decode_columns(&[0, 1, 0, 0, 0], None, 0, &mut buffers).is_ok()
    );
}

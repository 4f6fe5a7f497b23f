//! Tests archives whose catalogue or index claims more data than the archive contains.

use super::chunk::{ChunkBytesOrColumnsEncoding, EncodedChunk};
use super::document::{SCHEMA, SegmentWorkloadCatalogueChanges, SegmentWriteIntent};
use super::segment::SegmentWriter;
use super::{Archive, ArchiveError};
use std::time::Instant;

/// Writes an archive with one object, which consists of these chunks.
fn write_one_object_archive(chunks: Vec<EncodedChunk>, bytes: u64) -> tempfile::NamedTempFile {
    let start = SegmentWriteIntent {
        schema: SCHEMA.to_owned(),
        tool_version: String::new(),
        operation: "add".to_owned(),
        workloads: Vec::new(),
    };
    let mut writer = SegmentWriter::new(Vec::new(), &start).unwrap();
    writer
        .write_object_chunks("00".repeat(32), bytes, chunks)
        .unwrap();
    let change = SegmentWorkloadCatalogueChanges::default();
    let (mut out, end) = writer.finish_segment_and_return_footer(&change).unwrap();
    out.extend(end);
    assert!(out.len() < 1024, "{}", out.len());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), out).unwrap();
    file
}

fn build_chunk_claiming_sizes(
    unpacked: u64,
    bytes: u64,
    coding: ChunkBytesOrColumnsEncoding,
) -> EncodedChunk {
    EncodedChunk {
        frame: super::chunk::compress_frame(&[0; 100], 3, None).unwrap(),
        coding,
        unpacked,
        bytes,
        records: 0,
        base: None,
    }
}

#[test]
fn a_chunk_with_falsely_claimed_sizes_is_refused() {
    const TERA: u64 = 1 << 40;
    for (unpacked, bytes) in [(TERA, TERA), (100, TERA), (TERA, 100), (60 << 20, 60 << 20)] {
        for coding in ChunkBytesOrColumnsEncoding::ALL {
            let file = write_one_object_archive(
                vec![build_chunk_claiming_sizes(unpacked, bytes, coding)],
                bytes,
            );
            let started = Instant::now();
            let archive = Archive::open_archive(file.path()).unwrap();
            let result = archive.stream_object_verifying_hash(&"00".repeat(32), &mut |_| Ok(()));
            assert!(
                matches!(result, Err(ArchiveError::Broken { .. })),
                "{result:?}"
            );
            assert!(started.elapsed().as_secs() < 5);
        }
    }
    // The index claims that each of eight small chunks contains 60 MiB of the object.
    let chunks = (0..8)
        .map(|_| build_chunk_claiming_sizes(100, 60 << 20, ChunkBytesOrColumnsEncoding::Columns));
    let file = write_one_object_archive(chunks.collect(), 8 * (60 << 20));
    assert!(
        Archive::open_archive(file.path())
            .unwrap()
            .read_object(&"00".repeat(32))
            .is_err()
    );
    // The claimed size of the object exceeds the sum of the chunks' sizes.
    let file = write_one_object_archive(
        vec![build_chunk_claiming_sizes(
            100,
            100,
            ChunkBytesOrColumnsEncoding::Bytes,
        )],
        TERA,
    );
    let error = Archive::open_archive(file.path())
        .unwrap()
        .read_object(&"00".repeat(32))
        .unwrap_err();
    assert!(
        error.to_string().contains("the chunks have 100 bytes"),
        "{error}"
    );
}

#[test]
fn columns_claiming_too_many_records_are_refused_without_allocating() {
    // A chunk of 100 bytes claims that it has 2^40 empty records.
    let mut columns = Vec::new();
    super::wire::put_varint(&mut columns, 1 << 40);
    columns.resize(100, 0);
    let frame = super::chunk::compress_frame(&columns, 3, None).unwrap();
    let claimed = EncodedChunk {
        frame,
        ..build_chunk_claiming_sizes(100, 100, ChunkBytesOrColumnsEncoding::Columns)
    };
    let file = write_one_object_archive(vec![claimed], 100);
    let error = Archive::open_archive(file.path())
        .unwrap()
        .read_object(&"00".repeat(32))
        .unwrap_err();
    assert!(error.to_string().contains("a count is larger"), "{error}");
}

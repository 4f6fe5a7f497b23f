//! Tests compressed, truncated and empty files.

use super::{build_file_from_nodes, build_file_from_records, build_kernel};
use chakram_trace::format::file::DecompressedTraceFile;
use chakram_trace::graph::{EnforcedDependencyKinds, Graph};
use std::io::Write;

fn build_chain_file() -> Vec<u8> {
    build_file_from_nodes(&[
        build_kernel(300, &[], &[]),
        build_kernel(301, &[300], &[]),
        build_kernel(302, &[301, 300], &[300]),
        build_kernel(303, &[302], &[]),
    ])
}

fn read_graph_or_error_text(contents: &[u8]) -> Result<Graph, String> {
    let read = Graph::read_graph(contents, 0, EnforcedDependencyKinds::Auto);
    read.map(|(graph, _)| graph).map_err(|e| e.to_string())
}

#[test]
fn compression_is_known_by_its_bytes_and_not_by_the_name() {
    let plain = build_chain_file();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&plain).unwrap();
    let gzip = gzip.finish().unwrap();
    let zstd = zstd::encode_all(&plain[..], 3).unwrap();
    // Two gzip members, as `cat a.gz b.gz` produces them, are one file.
    let (head, tail) = plain.split_at(20);
    let members = [head, tail].map(|part| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(part).unwrap();
        out.finish().unwrap()
    });
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [
        ("a.0.et", &plain),
        ("b.0.et", &gzip),
        ("c.0.et", &zstd),
        ("d.0.et.gz", &zstd),
        ("e.0.et.zst", &plain),
        ("f", &members.concat()),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(
            DecompressedTraceFile::open_as_current_schema(&path)
                .unwrap()
                .as_slice(),
            plain,
            "{name}"
        );
    }
    for (name, bytes) in [("g.0.et", &gzip), ("h.0.et", &zstd)] {
        let path = folder.path().join(name);
        for cut in 5..bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let error = DecompressedTraceFile::open_as_current_schema(&path)
                .unwrap_err()
                .to_string();
            assert!(
                error.contains(name) && error.contains("decompress"),
                "{error}"
            );
        }
    }
}

#[test]
fn a_large_file_is_mapped_and_reads_the_same() {
    let nodes: Vec<_> = (0..80_000).map(|id| build_kernel(id, &[], &[])).collect();
    let contents = build_file_from_nodes(&nodes);
    assert!(contents.len() > 1 << 20, "{} bytes", contents.len());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.0.et");
    std::fs::write(&path, &contents).unwrap();
    assert_eq!(
        DecompressedTraceFile::open_as_current_schema(&path)
            .unwrap()
            .as_slice(),
        contents
    );
    assert_eq!(read_graph_or_error_text(&contents).unwrap().len(), 80_000);
}

#[test]
fn truncation_inside_any_record_is_reported() {
    let whole = build_chain_file();
    // Offsets at which the file's records end.
    let mut ends = Vec::new();
    let mut frames = chakram_trace::format::wire::FrameCursor::new(&whole);
    while let Some(record) = frames.next_record().unwrap() {
        ends.push(record.offset + record.bytes.len());
    }
    assert_eq!(ends.len(), 5);
    for cut in 0..whole.len() {
        let read = read_graph_or_error_text(&whole[..cut]);
        if let Some(nodes) = ends.iter().position(|&end| end == cut) {
            assert_eq!(read.unwrap().len(), nodes, "cut at {cut}");
            continue;
        }
        let error = read.unwrap_err();
        if cut == 0 {
            assert!(error.contains("byte 0: the file is empty"), "{error}");
            continue;
        }
        let record = ends.iter().filter(|&&end| end < cut).count();
        let expected = format!("record {record}, byte ");
        assert!(error.contains(&expected), "cut at {cut}: {error}");
        assert!(error.contains("truncated"), "cut at {cut}: {error}");
        let offset = error.split(&expected).nth(1).unwrap();
        let offset: usize = offset.split(':').next().unwrap().parse().unwrap();
        let start = record.checked_sub(1).map_or(0, |before| ends[before]);
        assert!((start..=cut).contains(&offset), "cut at {cut}: {error}");
    }
}

#[test]
fn flipping_any_bit_gives_a_valid_graph_or_an_error() {
    let whole = build_chain_file();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            crate::harness::et_reader::check_fuzzed_et_file(&damaged);
        }
    }
}

#[test]
fn an_empty_record_is_a_node_of_defaults() {
    let graph = read_graph_or_error_text(&build_file_from_records([[0_u8; 0]])).unwrap();
    assert_eq!(
        (graph.len(), graph.id(graph.nodes().next().unwrap())),
        (1, 0)
    );
}

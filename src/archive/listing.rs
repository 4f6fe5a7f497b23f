//! Reads listings, which contain only the facts about workloads that queries and tables need.

use super::document::{SegmentWorkloadCatalogueChanges, check_workload_name};
use super::metadata::{MetadataValue, QueryableWorkload};
use super::store::{apply_catalogue_change, find_segments_of_file_or_folder};
use super::tail::UncommittedArchiveTail;
use super::{ArchiveError, WorkloadEntry};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

impl QueryableWorkload for WorkloadEntry {
    fn workload_name(&self) -> &str {
        &self.name
    }

    fn rank_count(&self) -> u64 {
        self.rank_count()
    }

    fn metadata_value(&self, key: &str) -> Option<&MetadataValue> {
        self.metadata.get(key)
    }
}

/// A row of a listing: a workload without its files, baselines and provenance.
#[derive(Debug, Deserialize)]
pub struct WorkloadListingRow<'t> {
    /// Name of the workload.
    #[serde(borrow)]
    pub name: Cow<'t, str>,
    /// Metadata by key.
    #[serde(borrow, default)]
    pub metadata: KeySortedMetadata<'t>,
    /// Number of ranks, and total size of their traces.
    #[serde(rename = "traces")]
    pub amounts: WorkloadRankCountAndUnpackedBytes,
}

/// Metadata sorted by key.
#[derive(Debug, Default)]
pub struct KeySortedMetadata<'t>(pub Vec<(Cow<'t, str>, MetadataValue)>);

/// Sums over the traces of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkloadRankCountAndUnpackedBytes {
    /// Number of ranks.
    pub ranks: u64,
    /// Total size of the traces as separate files, in bytes.
    pub bytes: u64,
}

impl QueryableWorkload for WorkloadListingRow<'_> {
    fn workload_name(&self) -> &str {
        &self.name
    }

    fn rank_count(&self) -> u64 {
        self.amounts.ranks
    }

    fn metadata_value(&self, key: &str) -> Option<&MetadataValue> {
        let found = self.metadata.0.iter().find(|(own, _)| *own == key);
        found.map(|(_, value)| value)
    }
}

/// Text that is borrowed from the document, or copied if it contains JSON
/// escapes.
#[derive(Deserialize)]
#[serde(transparent)]
struct BorrowedOrOwnedText<'t>(#[serde(borrow)] Cow<'t, str>);

impl<'de: 't, 't> Deserialize<'de> for KeySortedMetadata<'t> {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        struct KeySortedMetadataVisitor;
        impl<'de> Visitor<'de> for KeySortedMetadataVisitor {
            type Value = KeySortedMetadata<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of metadata")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(BorrowedOrOwnedText(key)) = map.next_key()? {
                    all.push((key, map.next_value()?));
                }
                Ok(KeySortedMetadata(all))
            }
        }
        input.deserialize_map(KeySortedMetadataVisitor)
    }
}

impl<'de> Deserialize<'de> for WorkloadRankCountAndUnpackedBytes {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct TraceRankCountAndBytes {
            ranks: u32,
            bytes: u64,
        }
        struct TraceListTotalsDeserializer;
        impl<'de> Visitor<'de> for TraceListTotalsDeserializer {
            type Value = WorkloadRankCountAndUnpackedBytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of traces")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<Self::Value, A::Error> {
                let mut all = WorkloadRankCountAndUnpackedBytes::default();
                while let Some(TraceRankCountAndBytes { ranks, bytes }) = rows.next_element()? {
                    all.ranks += u64::from(ranks);
                    let bytes = bytes.saturating_mul(ranks.into());
                    all.bytes = all.bytes.saturating_add(bytes);
                }
                Ok(all)
            }
        }
        input.deserialize_seq(TraceListTotalsDeserializer)
    }
}

/// Catalogues of an archive, from which listings are read.
#[derive(Debug)]
pub struct ArchiveListingReader {
    catalogues: Vec<(super::segment::ArchiveFileSegment, Vec<u8>)>,
    stored_bytes: u64,
    tail: Option<UncommittedArchiveTail>,
}

impl ArchiveListingReader {
    /// Opens the archive `path`, which is a file or a folder.
    ///
    /// # Errors
    ///
    /// Fails if `path` is not an archive, or if a catalogue cannot be unpacked.
    pub fn open_listing(path: &Path) -> Result<Self, ArchiveError> {
        let (segments, tail) = find_segments_of_file_or_folder(path)?;
        let stored_bytes = segments.iter().map(|segment| segment.end.length).sum();
        let texts = segments.into_iter().map(|segment| {
            let text = segment.read_catalogue_text()?;
            Ok((segment, text))
        });
        Ok(Self {
            catalogues: texts.collect::<Result<_, ArchiveError>>()?,
            stored_bytes,
            tail,
        })
    }

    /// Returns the bytes after the last committed segment, or `None`.
    pub fn uncommitted_tail(&self) -> Option<&UncommittedArchiveTail> {
        self.tail.as_ref()
    }

    /// Returns the total size of the archive's segments, in bytes.
    pub fn total_segment_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Returns the archive's workloads, sorted by name.
    ///
    /// # Errors
    ///
    /// Fails if a catalogue is damaged.
    pub fn list_workloads(
        &self,
    ) -> Result<BTreeMap<Cow<'_, str>, WorkloadListingRow<'_>>, ArchiveError> {
        let mut all = BTreeMap::new();
        for (segment, text) in &self.catalogues {
            let change: SegmentWorkloadCatalogueChanges<WorkloadListingRow<'_>> =
                segment.parse_catalogue(text)?;
            let check = |row: &WorkloadListingRow<'_>| check_workload_name(&row.name);
            apply_catalogue_change(&mut all, change, check, |row| row.name.clone())
                .map_err(|error| error.in_file(&segment.file.path))?;
        }
        Ok(all)
    }
}

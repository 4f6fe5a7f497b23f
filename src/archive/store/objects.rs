//! Finds the objects of an archive, and reads their contents chunk by chunk.

use super::Archive;
use crate::ArchiveError;
use crate::chunk::{
    ChunkBytesOrColumnsEncoding, DecodedFrameAndColumns, ReusableChunkBuffers,
    take_up_to_count_records,
};
use crate::document::{ChunkFrameAndBaseRow, SegmentObjectIndex};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Object index of all segments, and cache of decoded chunks. Both are filled on first use.
#[derive(Debug, Default)]
pub struct ObjectIndexAndChunkCache {
    indices: OnceLock<ArchiveObjectIndex>,
    /// Recently used base chunks, decoded.
    decoded: Mutex<VecDeque<(ObjectPlaceAndChunkIndex, Arc<DecodedFrameAndColumns>)>>,
    /// Memory that later chunks reuse.
    buffers: Mutex<Vec<ReusableChunkBuffers>>,
}

/// Location of an object: the index of its segment, and the object's index within that segment.
type ObjectSegmentAndIndex = (usize, usize);
/// Location of a chunk: the location of its object, and the chunk's index within that object.
type ObjectPlaceAndChunkIndex = (ObjectSegmentAndIndex, usize);

/// Objects of all segments.
#[derive(Debug, Default)]
struct ArchiveObjectIndex {
    indices: Vec<SegmentObjectIndex>,
    /// For each base, the last chunk that uses it.
    bases: BTreeMap<ObjectPlaceAndChunkIndex, ObjectPlaceAndChunkIndex>,
    places: BTreeMap<[u8; 32], ObjectSegmentAndIndex>,
}

/// Maximum number of cached bases. Several ranks share a base; the cache makes sure that it is unpacked only once.
const KEPT: usize = 16;
/// Maximum number of bases in a chain, where each chunk is the base of the next.
const DEPTH: usize = 8;

impl Archive {
    fn object_index(&self) -> Result<&ArchiveObjectIndex, ArchiveError> {
        if let Some(index) = self.cache.indices.get() {
            return Ok(index);
        }
        let mut index = ArchiveObjectIndex::default();
        for (number, segment) in self.segments.iter().enumerate() {
            let own = segment.read_object_index()?;
            for (at, row) in own.objects.iter().enumerate() {
                if let Ok(hash) = blake3::Hash::from_hex(&row.blake3) {
                    index.places.entry(*hash.as_bytes()).or_insert((number, at));
                }
                let chunks = row.chunks.iter().enumerate();
                index.bases.extend(chunks.filter_map(|(position, chunk)| {
                    let (object, base) = chunk.base_object_and_chunk_indices()?;
                    Some((((number, object), base), ((number, at), position)))
                }));
            }
            index.indices.push(own);
        }
        Ok(self.cache.indices.get_or_init(|| index))
    }

    fn find_object_location(
        &self,
        hash: &str,
    ) -> Result<Option<ObjectSegmentAndIndex>, ArchiveError> {
        let hash = blake3::Hash::from_hex(hash).ok();
        let places = &self.object_index()?.places;
        Ok(hash.and_then(|hash| places.get(hash.as_bytes()).copied()))
    }

    /// Returns whether the archive has the object with this hash.
    pub fn has_object(&self, hash: &str) -> Result<bool, ArchiveError> {
        Ok(self.find_object_location(hash)?.is_some())
    }

    /// Returns the packed size of an object, in bytes, or 0 if the archive does not have the
    /// object.
    pub fn packed_object_size_or_zero(&self, hash: &str) -> Result<u64, ArchiveError> {
        let index = self.object_index()?;
        let rows = self
            .find_object_location(hash)?
            .map(|(segment, at)| &index.indices[segment].objects[at].chunks);
        Ok(rows.into_iter().flatten().map(|chunk| chunk.1).sum())
    }

    /// Reads and verifies the object with this hash.
    ///
    /// # Errors
    ///
    /// Fails if the object does not exist, is damaged, or would take too much memory.
    pub fn read_object(&self, hash: &str) -> Result<Vec<u8>, ArchiveError> {
        let mut out = Vec::new();
        let (segment, at) = self.require_object_location(hash)?;
        let bytes = self.object_index()?.indices[segment].objects[at].bytes;
        chakram_base::bounds::check_items_fit_memory(
            "an object of an archive",
            bytes,
            1,
            "extract the workload, which takes less memory",
        )
        .map_err(|error| {
            ArchiveError::broken_archive_error(error.to_string()).in_file(&self.path)
        })?;
        self.stream_object_verifying_hash(hash, &mut |part| {
            out.extend_from_slice(part);
            Ok(())
        })?;
        Ok(out)
    }

    fn require_object_location(&self, hash: &str) -> Result<ObjectSegmentAndIndex, ArchiveError> {
        self.find_object_location(hash)?.ok_or_else(|| {
            let found = format!("the object {hash} is missing");
            ArchiveError::broken_archive_error(found).in_file(&self.path)
        })
    }

    /// Passes the bytes of an object to `out`, chunk by chunk, and compares their hash with the
    /// object's name.
    pub fn stream_object_verifying_hash(
        &self,
        hash: &str,
        out: &mut dyn FnMut(&[u8]) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let (segment, at) = self.require_object_location(hash)?;
        self.stream_verified_object_at_location((segment, at), out)
    }

    /// Passes the bytes of the object at a location to `out`, like [`Self::stream_object_verifying_hash`].
    pub fn stream_verified_object_at_location(
        &self,
        place: (usize, usize),
        out: &mut dyn FnMut(&[u8]) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let row = &self.object_index()?.indices[place.0].objects[place.1];
        let mut hasher = blake3::Hasher::new();
        for number in 0..row.chunks.len() {
            self.pass_decoded_chunk_records_to_output((place, number), &mut |contents| {
                hasher.update(contents);
                out(contents)
            })?;
        }
        if hasher.finalize().to_hex().as_str() == row.blake3 {
            return Ok(());
        }
        let found = format!("object {}: the bytes have a different hash", row.blake3);
        Err(ArchiveError::broken_archive_error(found).in_file(&self.segments[place.0].file.path))
    }

    /// Returns the number of nodes in a trace object, or `None` if the object is stored as plain bytes.
    pub fn object_node_count(&self, hash: &str) -> Result<Option<u64>, ArchiveError> {
        let place = self.require_object_location(hash)?;
        let chunks = &self.object_index()?.indices[place.0].objects[place.1].chunks;
        let records = chunks
            .iter()
            .fold(0u64, |all, chunk| all.saturating_add(chunk.5));
        // Do not count the first record, which is the metadata.
        Ok(records.checked_sub(1))
    }

    /// Passes the selected records of a trace object to `out`, with their length prefixes. Reads only the chunks that
    /// hold these records, and the bases of these chunks. Verifies the chunks' checksums, but not the object's hash.
    pub fn copy_selected_records(
        &self,
        hash: &str,
        wanted: Range<u64>,
        out: &mut dyn FnMut(&[u8]) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let place = self.require_object_location(hash)?;
        let row = &self.object_index()?.indices[place.0].objects[place.1];
        let mut first = 0u64;
        for (number, chunk) in row.chunks.iter().enumerate() {
            let own = first..first.saturating_add(chunk.5);
            first = own.end;
            let mut skipped = wanted.start.saturating_sub(own.start);
            let taken = wanted.end.min(own.end).saturating_sub(own.start);
            if skipped >= taken || own.is_empty() {
                continue;
            }
            let mut missing = taken - skipped;
            self.pass_decoded_chunk_records_to_output((place, number), &mut |mut contents| {
                let mut part = |count| take_up_to_count_records(&mut contents, count);
                match part(&mut skipped).and_then(|_| part(&mut missing)) {
                    Some(part) => out(part),
                    None => Err(ArchiveError::broken_archive_error("a record is malformed")),
                }
            })?;
            if missing > 0 {
                let error =
                    ArchiveError::broken_archive_error("the object has fewer records than stated");
                return Err(self.add_chunk_location_to_error(place, chunk, error));
            }
        }
        Ok(())
    }

    fn add_chunk_location_to_error(
        &self,
        place: ObjectSegmentAndIndex,
        chunk: &ChunkFrameAndBaseRow,
        error: ArchiveError,
    ) -> ArchiveError {
        let segment = &self.segments[place.0];
        error
            .add_offset_if_missing(segment.start + chunk.0)
            .in_file(&segment.file.path)
    }

    /// Passes the bytes of a chunk to `out`, in whole records.
    fn pass_decoded_chunk_records_to_output(
        &self,
        place: ObjectPlaceAndChunkIndex,
        out: &mut dyn FnMut(&[u8]) -> Result<(), ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let pool = || {
            self.cache
                .buffers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let mut buffers = pool().pop().unwrap_or_default();
        let decoded = self.decode_chunk(place, 0, &mut buffers)?;
        let mut joined = std::mem::take(&mut buffers.joined);
        let row = &self.object_index()?.indices[place.0.0].objects[place.0.1].chunks[place.1];
        let result = decoded.write_contents(row.4, &mut joined, out);
        let result = result.map_err(|error| self.add_chunk_location_to_error(place.0, row, error));
        buffers.joined = joined;
        if let Some(decoded) = Arc::into_inner(decoded) {
            decoded.recycle_into(&mut buffers);
        }
        self.drop_cached_bases_unused_after(place, &mut buffers);
        pool().push(buffers);
        result
    }

    /// Drops cached bases that no chunk after `place` uses. Objects are usually read in order, so these bases are not
    /// needed again.
    fn drop_cached_bases_unused_after(
        &self,
        place: ObjectPlaceAndChunkIndex,
        buffers: &mut ReusableChunkBuffers,
    ) {
        let Some(index) = self.cache.indices.get() else {
            return;
        };
        let mut kept = self
            .cache
            .decoded
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_over = |base: &ObjectPlaceAndChunkIndex| {
            let last = index.bases.get(base);
            last.is_some_and(|last| *last <= place)
        };
        // A base may share columns with its own base, so drop it before that base.
        while let Some(at) = kept.iter().rposition(|(base, _)| is_over(base)) {
            let base = kept.remove(at).and_then(|(_, base)| Arc::into_inner(base));
            if let Some(base) = base {
                base.recycle_into(buffers);
            }
        }
    }

    /// Decodes a chunk, and first its bases.
    fn decode_chunk(
        &self,
        place: ObjectPlaceAndChunkIndex,
        depth: usize,
        buffers: &mut ReusableChunkBuffers,
    ) -> Result<Arc<DecodedFrameAndColumns>, ArchiveError> {
        let kept = || {
            self.cache
                .decoded
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let known = kept().iter().find(|(at, _)| *at == place).cloned();
        if let Some((_, known)) = known {
            return Ok(known);
        }
        let (object, number) = place;
        let segment = &self.segments[object.0];
        let index = self.object_index()?;
        let objects = &index.indices[object.0].objects;
        let chunk = objects.get(object.1).and_then(|row| row.chunks.get(number));
        let chunk = chunk.ok_or_else(|| {
            ArchiveError::broken_archive_error("a base is missing").in_file(&segment.file.path)
        })?;
        let coding = ChunkBytesOrColumnsEncoding::ALL.get(usize::from(chunk.2));
        let coding = *coding.ok_or_else(|| {
            let error = ArchiveError::broken_archive_error("the coding is unknown");
            self.add_chunk_location_to_error(object, chunk, error)
        })?;
        let base = match chunk.base_object_and_chunk_indices() {
            Some((base, number)) if depth < DEPTH => {
                Some(self.decode_chunk(((object.0, base), number), depth + 1, buffers)?)
            }
            None => None,
            Some(_) => {
                let error = ArchiveError::broken_archive_error("the chain of bases is too deep");
                return Err(self.add_chunk_location_to_error(object, chunk, error));
            }
        };
        let mut frame = std::mem::take(&mut buffers.frame);
        let file = &segment.file;
        file.read_into(segment.start + chunk.0, chunk.1, &mut frame)?;
        let sizes = (chunk.3, chunk.4);
        let decoded =
            DecodedFrameAndColumns::decode_frame(&frame, coding, sizes, base.as_deref(), buffers);
        buffers.frame = frame;
        let decoded = Arc::new(
            decoded.map_err(|error| self.add_chunk_location_to_error(object, chunk, error))?,
        );
        // Cache only bases, because no other chunk is needed later.
        if index.bases.contains_key(&place) {
            let mut kept = kept();
            kept.push_back((place, Arc::clone(&decoded)));
            if kept.len() > KEPT
                && let Some((_, oldest)) = kept.pop_front()
                && let Some(oldest) = Arc::into_inner(oldest)
            {
                oldest.recycle_into(buffers);
            }
        }
        Ok(decoded)
    }

    /// Returns the hash of the object at a location.
    pub fn object_hash_at(&self, place: (usize, usize)) -> Result<String, ArchiveError> {
        Ok(self.object_index()?.indices[place.0].objects[place.1]
            .blake3
            .clone())
    }

    /// Returns the number of objects in all segments, or 0 if an index cannot be read.
    pub fn object_count(&self) -> u64 {
        let counts = self.object_count_per_segment().unwrap_or_default();
        counts.into_iter().map(|count| count as u64).sum()
    }

    /// Returns the number of objects in each segment.
    pub fn object_count_per_segment(&self) -> Result<Vec<usize>, ArchiveError> {
        Ok(self
            .object_index()?
            .indices
            .iter()
            .map(|index| index.objects.len())
            .collect())
    }
}

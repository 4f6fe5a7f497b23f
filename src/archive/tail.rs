//! Bytes after the last committed segment: a segment that is being written, unfinished or damaged.
//!
//! If a command was killed or a copy was cut short, the tail consists of a segment's first frames. Any other tail was
//! modified after it was written. Commands never remove such a tail: it may contain the only copy of a workload.

use super::ArchiveError;
use super::document::SegmentWriteIntent;
use super::segment::{
    CATALOGUE, END, END_BYTES, INDEX, MAGIC, OBJECT, RandomAccessSegmentFile, START,
    parse_segment_write_plan,
};
use chakram_trace::format::escape_and_shorten_name;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// State of a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UncommittedTailState {
    /// Another process has the writers' lock and is writing the tail.
    Growing,
    /// The tail ends before the segment's end is complete, because a command was interrupted or a
    /// copy was truncated.
    Unfinished,
    /// No interruption leaves such a tail: the segment's end is present but invalid, or the frames are in the wrong
    /// order.
    Damaged,
}

/// Bytes after the last committed segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UncommittedArchiveTail {
    /// File that contains the tail.
    pub file: PathBuf,
    /// Offset of the tail's first byte in the file.
    pub at: u64,
    /// Length of the tail, in bytes.
    pub bytes: u64,
    /// True if the tail ends before the segment's end is complete.
    pub(super) is_cut: bool,
    /// True if a writer has locked the archive.
    pub(super) is_locked: bool,
    /// Command that wrote the tail, if the tail's first frame names it.
    pub operation: Option<String>,
    /// Workloads that the command was going to add or replace.
    pub workloads: Vec<String>,
}

impl UncommittedArchiveTail {
    /// Examines the tail of `file`, which has `bytes` bytes and begins at offset `at`.
    pub(super) fn examine_tail(
        file: &RandomAccessSegmentFile,
        at: u64,
        bytes: u64,
    ) -> Result<Self, ArchiveError> {
        let io = |error| ArchiveError::io_error(&file.path, "read", error);
        let start = parse_segment_write_plan(&file.read_exact_at(at, bytes.min(1 << 20))?);
        let is_cut = has_truncated_segment(&file.path, at, at + bytes).map_err(io)?;
        Ok(Self::new(&file.path, at..at + bytes, is_cut, start))
    }

    pub(super) fn new(
        file: &Path,
        range: std::ops::Range<u64>,
        is_cut: bool,
        start: Option<SegmentWriteIntent>,
    ) -> Self {
        let (operation, workloads) = start.map_or((None, Vec::new()), |start| {
            (Some(start.operation), start.workloads)
        });
        Self {
            file: file.to_owned(),
            at: range.start,
            bytes: range.end - range.start,
            is_cut,
            is_locked: false,
            operation,
            workloads,
        }
    }

    /// Returns the state of the tail.
    pub fn tail_state(&self) -> UncommittedTailState {
        match (self.is_locked, self.is_cut) {
            (true, _) => UncommittedTailState::Growing,
            (_, true) => UncommittedTailState::Unfinished,
            _ => UncommittedTailState::Damaged,
        }
    }

    /// Returns whether the tail was modified after a command wrote it.
    pub fn is_damaged(&self) -> bool {
        self.tail_state() == UncommittedTailState::Damaged
    }

    /// Fails if the tail is damaged, because a writer must not remove a damaged tail. The caller must have the writers'
    /// lock.
    pub(super) fn check_tail_is_not_damaged(&self) -> Result<(), ArchiveError> {
        if self.is_cut {
            return Ok(());
        }
        let unlocked = Self {
            is_locked: false,
            ..self.clone()
        };
        let found = format!(
            "{unlocked}; nothing was written\n  try: an earlier copy of the archive, or, to continue without \
             these bytes, head -c {} {} > NEW.etz",
            self.at,
            self.file.display()
        );
        Err(ArchiveError::broken_archive_error(found).in_file(&self.file))
    }

    /// Copies the tail to a new file next to `beside`, under a name derived from `beside`, and returns the new file.
    pub(super) fn copy_to_new_file(&self, beside: &Path) -> Result<PathBuf, ArchiveError> {
        let name = beside.file_name().unwrap_or_default();
        for number in 1u32.. {
            let mut own = name.to_owned();
            own.push(match number {
                1 => ".unfinished".to_owned(),
                n => format!(".unfinished.{n}"),
            });
            let path = beside.with_file_name(own);
            let io = |error| ArchiveError::io_error(&path, "write", error);
            let mut out = match File::create_new(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file.map_err(io)?,
            };
            let copied = File::open(&self.file).and_then(|mut file| {
                file.seek(SeekFrom::Start(self.at))?;
                io::copy(&mut file.take(self.bytes), &mut out)?;
                out.sync_all()
            });
            if let Err(error) = copied {
                let _ = std::fs::remove_file(&path);
                return Err(io(error));
            }
            return Ok(path);
        }
        unreachable!("one of 2^32 names is free")
    }
}

impl fmt::Display for UncommittedArchiveTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, bytes, .. } = self;
        let operation = self.operation.as_deref().unwrap_or("segment");
        write!(f, "the {bytes} bytes from byte {at} on are ")?;
        match (self.tail_state(), &self.operation) {
            (UncommittedTailState::Growing, _) => {
                write!(f, "an `{}` in progress", escape_and_shorten_name(operation))?
            }
            (UncommittedTailState::Unfinished, Some(_)) => {
                write!(
                    f,
                    "an `{}` that was not finished",
                    escape_and_shorten_name(operation)
                )?;
            }
            (UncommittedTailState::Unfinished, None) => write!(f, "the beginning of a segment")?,
            (UncommittedTailState::Damaged, Some(_)) => write!(
                f,
                "a damaged `{}`, whose end has a wrong checksum",
                escape_and_shorten_name(operation)
            )?,
            (UncommittedTailState::Damaged, None) => write!(f, "damaged and not a segment")?,
        }
        let names: Vec<String> = self
            .workloads
            .iter()
            .map(|name| escape_and_shorten_name(name))
            .collect();
        match &names[..] {
            [] => Ok(()),
            names => write!(f, "; not in the archive: {}", names.join(", ")),
        }
    }
}

/// Returns true if the bytes `from..to` of `path` are the first frames of a segment whose end is missing or incomplete.
fn has_truncated_segment(path: &Path, from: u64, to: u64) -> io::Result<bool> {
    let mut file = BufReader::new(File::open(path)?);
    // A segment with a complete end is not truncated, even if the bytes before it are damaged.
    if to - from >= END_BYTES {
        file.seek(SeekFrom::Start(to - END_BYTES))?;
        let mut head = [0; 12];
        file.read_exact(&mut head)?;
        if head[..4] == MAGIC && head[8..] == END {
            return Ok(false);
        }
    }
    file.seek(SeekFrom::Start(from))?;
    let mut frames = FrameHeaderIterator {
        file,
        left: to - from,
    };
    // Kinds of frames that may follow.
    let mut next: &[[u8; 4]] = &[START];
    loop {
        if next == [END] {
            return Ok(frames.left < END_BYTES);
        }
        match frames.next_frame_kind()? {
            ZstdSkippableCutOrUnknownFrame::Cut => return Ok(true),
            ZstdSkippableCutOrUnknownFrame::Plain if next.contains(&OBJECT) => {}
            ZstdSkippableCutOrUnknownFrame::Skippable(letters) if next.contains(&letters) => {
                next = match letters {
                    CATALOGUE => &[INDEX],
                    INDEX => &[END],
                    _ => &[OBJECT, CATALOGUE],
                };
            }
            _ => return Ok(false),
        }
    }
}

/// The next frame of a tail.
enum ZstdSkippableCutOrUnknownFrame {
    /// A frame that extends past the end of the file.
    Cut,
    /// A zstd frame.
    Plain,
    /// A skippable frame with these letters.
    Skippable([u8; 4]),
    /// Bytes that are neither a zstd frame nor a skippable frame.
    Unknown,
}

/// Iterates over frames; reads only their headers.
struct FrameHeaderIterator {
    file: BufReader<File>,
    /// Number of bytes left.
    left: u64,
}

impl FrameHeaderIterator {
    /// Reads `N` bytes; returns `None` if fewer bytes are left.
    fn read_array<const N: usize>(&mut self) -> io::Result<Option<[u8; N]>> {
        let mut bytes = [0; N];
        if self.left < N as u64 {
            self.left = 0;
            return Ok(None);
        }
        self.file.read_exact(&mut bytes)?;
        self.left -= N as u64;
        Ok(Some(bytes))
    }

    /// Skips `count` bytes; returns `None` if fewer bytes are left.
    fn skip_bytes(&mut self, count: u64) -> io::Result<Option<()>> {
        if self.left < count {
            self.left = 0;
            return Ok(None);
        }
        self.left -= count;
        self.file.seek_relative(count as i64)?;
        Ok(Some(()))
    }

    fn next_frame_kind(&mut self) -> io::Result<ZstdSkippableCutOrUnknownFrame> {
        const ZSTD: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
        let Some(magic) = self.read_array::<4>()? else {
            return Ok(ZstdSkippableCutOrUnknownFrame::Cut);
        };
        let end = match magic {
            MAGIC => self.read_skippable_frame_kind()?,
            ZSTD => self.skip_zstd_frame_after_magic()?,
            _ => Some(ZstdSkippableCutOrUnknownFrame::Unknown),
        };
        Ok(end.unwrap_or(ZstdSkippableCutOrUnknownFrame::Cut))
    }

    fn read_skippable_frame_kind(&mut self) -> io::Result<Option<ZstdSkippableCutOrUnknownFrame>> {
        let Some(size) = self.read_array()? else {
            return Ok(None);
        };
        let size = u64::from(u32::from_le_bytes(size));
        if size < 4 {
            return Ok(Some(ZstdSkippableCutOrUnknownFrame::Unknown));
        }
        let Some(letters) = self.read_array()? else {
            return Ok(None);
        };
        if ![START, OBJECT, CATALOGUE, INDEX, END].contains(&letters) {
            return Ok(Some(ZstdSkippableCutOrUnknownFrame::Unknown));
        }
        let whole = self.skip_bytes(size - 4)?;
        Ok(whole.map(|()| ZstdSkippableCutOrUnknownFrame::Skippable(letters)))
    }

    /// Skips a zstd frame after its magic number (RFC 8878, 3.1.1).
    fn skip_zstd_frame_after_magic(
        &mut self,
    ) -> io::Result<Option<ZstdSkippableCutOrUnknownFrame>> {
        let Some([descriptor]) = self.read_array()? else {
            return Ok(None);
        };
        let is_single = descriptor & 0x20 != 0;
        let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let size = [u64::from(is_single), 2, 4, 8][usize::from(descriptor >> 6)];
        let checksum = u64::from(descriptor >> 2 & 1) * 4;
        if self
            .skip_bytes(u64::from(!is_single) + dictionary + size)?
            .is_none()
        {
            return Ok(None);
        }
        loop {
            let Some([a, b, c]) = self.read_array()? else {
                return Ok(None);
            };
            let header = u32::from_le_bytes([a, b, c, 0]);
            let length = match header >> 1 & 3 {
                1 => 1,
                3 => return Ok(Some(ZstdSkippableCutOrUnknownFrame::Unknown)),
                _ => u64::from(header >> 3),
            };
            let is_last = header & 1 != 0;
            let length = length + if is_last { checksum } else { 0 };
            if self.skip_bytes(length)?.is_none() {
                return Ok(None);
            }
            if is_last {
                return Ok(Some(ZstdSkippableCutOrUnknownFrame::Plain));
            }
        }
    }
}

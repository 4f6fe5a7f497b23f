//! Tracks to which events belong.

use crate::pytorch::number;
use crate::pytorch::stream::JsonValueText;
use chakram_trace::graph::StringArenaInterner;

use std::borrow::Cow;

/// A host thread or a device stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct KinetoTrackIdentity {
    /// Process id; for a stream, the device. Not always a number.
    pub pid: String,
    /// Thread or stream id. Not always a number.
    pub tid: String,
    /// First name that the file assigns to the track, such as `thread 7 (python)` or `stream 7`.
    pub name: String,
}

/// Tracks in order of first use. The file may name a track before or after its events.
#[derive(Default)]
pub(super) struct TrackTable {
    keys: StringArenaInterner,
    tracks: Vec<KinetoTrackIdentity>,
    named: StringArenaInterner,
    /// Distinct names. For each track in `named`, `names` contains the index of its name. Names are shared, because
    /// some profilers use one name for hundreds of thousands of tracks.
    texts: StringArenaInterner,
    names: Vec<u32>,
    key: String,
    last: u32,
}

/// Returns the text of a process or thread id, whether a number or a string.
fn track_id_text(part: Option<JsonValueText<'_>>) -> Cow<'_, str> {
    part.map_or(Cow::Borrowed(""), |part| {
        number::unquote_json_value(part.as_str())
    })
}

impl TrackTable {
    fn set_key_from_pid_and_tid(&mut self, pid: &str, tid: &str) {
        self.key.clear();
        self.key.extend([pid, "\0", tid]);
    }

    /// Returns the index of a track, adding it if it is new. Returns `None` if the table is full.
    pub fn track_index(
        &mut self,
        pid: Option<JsonValueText<'_>>,
        tid: Option<JsonValueText<'_>>,
    ) -> Option<u32> {
        let (pid, tid) = (track_id_text(pid), track_id_text(tid));
        // Consecutive events are usually on the same track, so try the last track first.
        if let Some(last) = self.tracks.get(self.last as usize)
            && last.pid == pid
            && last.tid == tid
        {
            return Some(self.last);
        }
        self.set_key_from_pid_and_tid(&pid, &tid);
        let number = self.keys.intern_name(&self.key)?;
        if number as usize == self.tracks.len() {
            self.tracks.push(KinetoTrackIdentity {
                pid: pid.into_owned(),
                tid: tid.into_owned(),
                name: String::new(),
            });
        }
        self.last = number;
        Some(number)
    }

    /// Returns a track's stream number. If the track's id is a word, derives a number from the
    /// track's index.
    pub fn parse_or_derive_stream_number(&self, track: u32) -> i64 {
        /// First stream number for tracks whose id is a word, larger than all other stream numbers.
        const WORDS: i64 = 100_000;
        let tid = number::parse_json_integer(&self.tracks[track as usize].tid);
        let number = tid.and_then(|tid| i64::try_from(tid).ok());
        number.unwrap_or(WORDS + i64::from(track))
    }

    /// Returns a track's device, which is its process id; −1 if the process id is a word.
    pub fn device_of_track(&self, track: u32) -> i32 {
        let pid = number::parse_json_integer(&self.tracks[track as usize].pid);
        pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(-1)
    }

    /// Names a track unless it already has a name. Returns `None` if the table is full.
    pub fn name_track(
        &mut self,
        pid: Option<JsonValueText<'_>>,
        tid: Option<JsonValueText<'_>>,
        name: Option<JsonValueText<'_>>,
    ) -> Option<()> {
        self.set_key_from_pid_and_tid(&track_id_text(pid), &track_id_text(tid));
        if self.named.intern_name(&self.key)? as usize == self.names.len() {
            self.names
                .push(self.texts.intern_name(&track_id_text(name))?);
        }
        Some(())
    }

    /// Returns the tracks with their names.
    pub fn into_named_tracks(mut self) -> Vec<KinetoTrackIdentity> {
        for (number, name) in self.names.into_iter().enumerate() {
            // The table cannot look up a key without inserting it. Keys inserted here do no harm, because their indices
            // follow those of all tracks.
            let track = self.keys.intern_name(self.named.get(number as u32));
            if let Some(track) = track.and_then(|t| self.tracks.get_mut(t as usize)) {
                track.name = self.texts.get(name).to_owned();
            }
        }
        self.tracks
    }
}

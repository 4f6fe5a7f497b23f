//! Whether a file is what a job's file says.

use super::RankFile;
use crate::trace::{Place, TraceError};

/// What a file holds, as a job's file has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seal {
    /// Its length.
    pub bytes: u64,
    /// The BLAKE3 hash of its bytes, where that counts.
    pub blake3: Option<[u8; 32]>,
}

impl Seal {
    /// Refuses `file`, which holds `bytes`, if that is something else.
    pub(super) fn check(&self, file: &RankFile, bytes: &[u8]) -> Result<(), TraceError> {
        self.check_length(file, bytes.len() as u64)?;
        match self.blake3 {
            Some(hash) if blake3::hash(bytes) != hash => Err(Self::broken(
                file,
                "its contents are not those of which the job's file has the hash".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses `file` if it is not as long as this says.
    pub fn check_length(&self, file: &RankFile, bytes: u64) -> Result<(), TraceError> {
        match bytes == self.bytes {
            true => Ok(()),
            false => Err(Self::broken(
                file,
                format!("it has {bytes} bytes, and {} by the job's file", self.bytes),
            )),
        }
    }

    fn broken(file: &RankFile, found: String) -> TraceError {
        Self::refused(
            file,
            format!("{found}: it was changed after the job was written"),
        )
    }

    /// What to say of a file of a job.
    pub(super) fn refused(file: &RankFile, found: String) -> TraceError {
        let place = Place {
            file: Some(file.path.clone()),
            ..Place::default()
        };
        TraceError::refused_at(
            place,
            found,
            "write the job again, or --no-verify, which takes files as they are",
        )
    }
}

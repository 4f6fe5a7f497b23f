//! Verifies files against the lengths and hashes in a job file.

use super::RankFile;
use crate::format::TraceError;
use crate::format::digest::ExpectedFileLengthAndHash;
use chakram_base::setting::SettingKey;

impl ExpectedFileLengthAndHash {
    /// Fails unless `bytes`, read from `file`, match this digest.
    pub fn check_contents(&self, file: &RankFile, bytes: &[u8]) -> Result<(), TraceError> {
        self.check_length(file, bytes.len() as u64)?;
        match self.blake3 {
            Some(hash) if blake3::hash(bytes) != hash => Err(Self::broken_file_error(
                file,
                "the contents do not match the hash in the job's file".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// Fails if the length of `file` differs from that in this digest.
    pub fn check_length(&self, file: &RankFile, bytes: u64) -> Result<(), TraceError> {
        if bytes == self.bytes {
            Ok(())
        } else {
            Err(Self::broken_file_error(
                file,
                format!(
                    "the file has {bytes} bytes, but the job's file states {}",
                    self.bytes
                ),
            ))
        }
    }

    fn broken_file_error(file: &RankFile, found: String) -> TraceError {
        Self::mismatch_with_job_file_error(
            file,
            format!("{found}; the trace was changed after the job was written"),
        )
    }

    /// Builds the error for a file that does not match the length or hash in its job file.
    pub(super) fn mismatch_with_job_file_error(file: &RankFile, found: String) -> TraceError {
        TraceError::invalid_file(
            &file.path,
            found,
            format!(
                "write the job again, or pass {}, which accepts changed files",
                SettingKey::NoVerify
            ),
        )
    }
}

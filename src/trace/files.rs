//! Writes output files. Every output file is complete or absent, and the outputs of one command appear together.
//!
//! A regular file is first written under a temporary name in its folder, then synced, and finally renamed. The new file
//! gets the permissions of the file that it replaces. Writers follow symbolic links. Devices, pipes, sockets and
//! descriptors (`/dev/stdout`) are written directly, without a temporary file. [`OutputsAndProtectedInputs`] ensures
//! that a command never replaces one of its inputs and never writes two outputs to one file.

mod output;
mod outputs;
mod target;
mod temporary;

pub use output::OutputFile;
pub use outputs::{
    CompleteUncommittedFileHandle, OutputClaim, OutputsAndProtectedInputs,
    join_prefix_middle_and_ending,
};
pub use target::file_identity;
pub use temporary::{defer_signal, remove_temporaries};

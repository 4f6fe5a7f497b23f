//! Runs the program's commands in this process. Returns output, notes and errors as data instead of
//! printing them.
//!
//! ```
//! use chakram::command::{FailureKind, execute_command};
//!
//! let run = |line: &str| execute_command(line.split(' ').map(Into::into).collect(), true);
//! let output = run("chakram replay traces/data-parallel-8 --format json")?;
//! assert!(output.text.starts_with(b"{"));
//! assert_eq!(output.nodes.map(|nodes| nodes.len()), Some(2688));
//! let failure = run("chakram replay traces/data-parallel-8 --network lnks").unwrap_err();
//! assert_eq!(failure.kind, FailureKind::Usage);
//! assert_eq!((failure.argument.as_deref(), &*failure.found), (Some("network"), "lnks"));
//! let failure = run("chakram replay nowhere/job --machine dgx-h100").unwrap_err();
//! assert_eq!((failure.kind, failure.file.as_deref()), (FailureKind::File, Some("nowhere")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use chakram_cli::embed::{
    CommandFailureWithMessageParts, CommandOutput, DeadlockedNodeIdentity, FailureKind,
    NodeIdentity, describe_commands, execute_command, set_up_memory_survival_and_setting_names,
};
pub use chakram_cli::run_with_arguments;

//! `chakram`: replays machine-learning execution traces on hardware you do not have.

use chakram_base::bounds::allocator::{self, CountingAllocator};
use std::process::ExitCode;

/// The allocator counts every allocation, so inputs cannot exceed the memory limit even where no code checks it.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    allocator::keep_freed_memory();
    chakram_cli::main()
}

//! `chakram`: replays machine-learning execution traces on hardware you do not have.

use chakram_base::bounds::allocator::{self, CountingAllocator};
use std::process::ExitCode;

/// Bounds the memory that depends on inputs: this allocator counts every allocation, also where no check
/// precedes it.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    allocator::keep_freed_memory();
    chakram_cli::main()
}

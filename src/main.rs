//! `chakram`: replays machine-learning execution traces on hardware you do not have.

use chakram_base::bounds::allocator::{self, CountingAllocator};
use std::process::ExitCode;

/// Memory that depends on inputs is bounded; where no check precedes an allocation, this allocator
/// counts it.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn main() -> ExitCode {
    allocator::keep_freed();
    chakram_cli::main()
}

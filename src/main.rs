//! `chakram`: replays machine-learning execution traces on hardware you do not have.

use std::process::ExitCode;

/// Memory that inputs ask for is bounded, and counted where no check comes before it.
#[global_allocator]
static ALLOCATOR: chakram::internals::bounds::allocator::CountingAllocator =
    chakram::internals::bounds::allocator::CountingAllocator;

fn main() -> ExitCode {
    chakram::internals::bounds::allocator::keep_freed();
    chakram::internals::cli::main()
}

//! The binary `chancery`. `serve` runs a replica; most other commands connect to one.

use std::process::ExitCode;

/// The allocator. It returns memory to the system after a burst of streams, which the default
/// allocator does not.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    chancery_cli::main()
}

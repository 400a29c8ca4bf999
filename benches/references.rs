//! The benchmark program: `cargo bench -p chancery-benches --bench references -- --check`.

use std::process::ExitCode;

use clap::Parser;

/// The allocator of the server.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let options = chancery_benches::references::Options::parse();
    let mut out = std::io::stdout();
    match chancery_benches::references::run(&options, &mut out) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            drop(std::io::Write::write_fmt(&mut out, format_args!("error: {error:#}\n")));
            ExitCode::FAILURE
        }
    }
}

//! Passes the version of the compiler to the program, which shows it in a metric.

use std::{env, error::Error, process::Command};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = env::var_os("RUSTC").ok_or("cargo sets no RUSTC")?;
    let said = String::from_utf8(Command::new(rustc).arg("--version").output()?.stdout)?;
    // `rustc 1.90.0 (1159e78c4 2025-09-14)`
    let version = said.split_whitespace().nth(1).ok_or("rustc prints no version")?;
    println!("cargo::rustc-env=CHANCERY_RUSTC={version}");
    Ok(())
}

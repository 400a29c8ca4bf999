//! Converts between a corpus and the directory of files that libFuzzer uses. `cargo xtask fuzz` starts it.

use std::{env, fs, io::Write as _, path::Path};

use anyhow::{Context as _, Result, bail};
use chancery_fuzz::{TARGETS, corpus, write_corpus};

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["list"] => {
            let mut out = std::io::stdout();
            for target in TARGETS {
                writeln!(out, "{} {}", target.name, target.input_bytes_max)?;
            }
        }
        ["unpack", target, dir] => {
            for (n, input) in corpus(target)?.iter().enumerate() {
                let path = Path::new(dir).join(format!("corpus-{n}"));
                fs::write(&path, input).with_context(|| format!("write {}", path.display()))?;
            }
        }
        ["pack", target, dir] => {
            let mut inputs = Vec::new();
            for entry in fs::read_dir(dir).with_context(|| format!("read {dir}"))? {
                inputs.push(fs::read(entry?.path())?);
            }
            write_corpus(target, &inputs)?;
        }
        _ => bail!("usage: corpus list | unpack TARGET DIR | pack TARGET DIR"),
    }
    Ok(())
}

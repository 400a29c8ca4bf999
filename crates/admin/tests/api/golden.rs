//! The API that other programs rely on.

use std::{collections::BTreeSet, env, fs, path::Path};

use chancery_admin_proto::pool;
use prost_reflect::Cardinality;

/// Every message, field, number and type, and every method. The lines of the file must not change.
/// New lines are added with `UPDATE_GOLDEN=1 cargo test -p chancery-admin --test api`.
#[test]
fn api_names_numbers_and_types_do_not_change() {
    let mut lines = BTreeSet::new();
    let ours = |name: &str| name.strip_prefix("chancery.admin.v1.").map(str::to_owned);
    for message in pool().all_messages().filter(|message| !message.is_map_entry()) {
        let Some(name) = ours(message.full_name()) else { continue };
        for field in message.fields() {
            let many = if field.cardinality() == Cardinality::Repeated { "repeated " } else { "" };
            let kind = format!("{many}{:?}", field.kind());
            lines.insert(format!("{name}.{} = {}: {kind}", field.name(), field.number()));
        }
    }
    for service in pool().services() {
        let Some(name) = ours(service.full_name()) else { continue };
        for method in service.methods() {
            let stream = if method.is_server_streaming() { "stream " } else { "" };
            let (input, output) = (method.input(), method.output());
            let (input, output) = (input.name(), output.name());
            lines.insert(format!("{name}.{}({input}) -> {stream}{output}", method.name()));
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/admin_api.txt");
    if env::var_os("UPDATE_GOLDEN").is_some() {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        fs::write(&path, text).unwrap();
    }
    let golden = fs::read_to_string(&path).unwrap();
    let golden: BTreeSet<String> = golden.lines().map(str::to_owned).collect();
    let gone: Vec<&String> = golden.difference(&lines).collect();
    assert!(gone.is_empty(), "programs rely on these: {gone:#?}");
    let new: Vec<&String> = lines.difference(&golden).collect();
    assert!(new.is_empty(), "add these to {}: {new:#?}", path.display());
}

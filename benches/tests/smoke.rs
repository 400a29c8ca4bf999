//! The benchmark runs: at sizes at which nothing can be said of costs.

#![expect(clippy::unwrap_used, reason = "a test that can not go on fails")]

use chancery_benches::{Options, run};
use clap::Parser as _;

fn report(args: &[&str]) -> (bool, String) {
    let options = Options::try_parse_from([&["core"], args].concat()).unwrap();
    let mut page = Vec::new();
    let holds = run(&options, &mut page).unwrap();
    (holds, String::from_utf8(page).unwrap())
}

#[test]
fn every_case_is_measured_at_every_size_and_the_check_can_fail() {
    let small = ["--resources=3,200", "--views=1,7", "--rounds=1", "--check"];
    let loose = ["--resources-tolerance=1e9", "--views-tolerance=1e9"];
    let (holds, page) = report(&[&small[..], &loose[..]].concat());
    assert!(holds, "{page}");
    assert_eq!(page.matches("; ns per ").count(), 29, "{page}");
    assert!(!page.contains(" - ") && !page.contains("NaN"), "{page}");

    let (holds, page) = report(&[&small[..], &["--resources-tolerance=0"]].concat());
    assert!(!holds && page.contains("NOT FLAT"), "{page}");
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    let refused = |args: &[&str]| {
        let options = Options::try_parse_from([&["core"], args].concat()).unwrap();
        run(&options, &mut Vec::new()).unwrap_err().to_string()
    };
    assert_eq!(refused(&["--resources=5,3"]), "the sizes are not ascending");
    assert_eq!(refused(&["--resources=1"]), "at least 2 resources and 1 view are needed");
    assert_eq!(refused(&["--rounds=0"]), "there is nothing to do");
}

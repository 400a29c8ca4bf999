//! Smoke tests: the benchmark runs at sizes that are too small for cost statements.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use chancery_benches::{Options, admission, references, run};
use clap::Parser as _;

fn report(args: &[&str]) -> (bool, String) {
    let options = Options::try_parse_from([&["core"], args].concat()).unwrap();
    let mut page = Vec::new();
    let holds = run(&options, &mut page).unwrap();
    (holds, String::from_utf8(page).unwrap())
}

#[test]
fn benchmark_measures_every_case_and_its_check_can_fail() {
    let small = ["--resources=3,200", "--views=1,7", "--rounds=1", "--check"];
    let loose = ["--resources-tolerance=1e9", "--views-tolerance=1e9"];
    let (holds, page) = report(&[&small[..], &loose[..]].concat());
    assert!(holds, "{page}");
    assert_eq!(page.matches("; ns per ").count(), 38, "{page}");
    assert!(!page.contains(" - ") && !page.contains("NaN"), "{page}");

    let (holds, page) = report(&[&small[..], &["--resources-tolerance=0"]].concat());
    assert!(!holds && page.contains("NOT FLAT"), "{page}");
}

#[test]
fn invalid_sizes_are_rejected() {
    let error = |args: &[&str]| {
        let options = Options::try_parse_from([&["core"], args].concat()).unwrap();
        run(&options, &mut Vec::new()).unwrap_err().to_string()
    };
    assert_eq!(
        error(&["--resources=5,3"]),
        "`--resources` and `--views` must be ascending, but are [5, 3] and [1, 100, 10000]"
    );
    assert_eq!(
        error(&["--resources=1"]),
        "at least 2 resources and 1 view are necessary, but `--resources` is [1] and `--views` is \
         [1, 100, 10000]"
    );
    assert_eq!(error(&["--rounds=0"]), "`--rounds` must be at least 1");
}

#[test]
fn benchmark_of_admission_measures_every_way_and_its_check_can_fail() {
    let report = |args: &[&str]| {
        let args = [&["admission", "--clusters=3", "--rounds=1", "--check"], args].concat();
        let options = admission::Options::try_parse_from(args).unwrap();
        let mut page = Vec::new();
        let holds = admission::run(&options, &mut page).unwrap();
        (holds, String::from_utf8(page).unwrap())
    };
    let (holds, page) = report(&["--per-second-min=0"]);
    assert!(holds, "{page}");
    assert_eq!(page.matches("clusters/s").count(), 15, "{page}");
    let (holds, page) = report(&["--per-second-min=1e12"]);
    assert!(!holds && page.contains("TOO SLOW"), "{page}");
}

#[test]
fn benchmark_of_references_measures_every_case_and_its_check_can_fail() {
    let report = |args: &[&str]| {
        let args = [&["references", "--resources=3,200", "--rounds=1", "--check"], args].concat();
        let options = references::Options::try_parse_from(args).unwrap();
        let mut page = Vec::new();
        let holds = references::run(&options, &mut page).unwrap();
        (holds, String::from_utf8(page).unwrap())
    };
    let (holds, page) = report(&["--tolerance=1e9"]);
    assert!(holds, "{page}");
    assert_eq!(page.matches("M = 200 to 3").count(), 3, "{page}");
    assert!(page.contains("200 clusters, 200 routes, 400 references"), "{page}");
    let (holds, page) = report(&["--tolerance=0"]);
    assert!(!holds && page.contains("NOT FLAT"), "{page}");
}

//! Every published suite, one test each. Where the scenarios cannot be fetched, the tests say so
//! loudly and pass, except on CI.

use quorate_conformance::{Judge, SUITES, Suite, suite};
use quorate_test_support::tell;

fn judge(name: &str) {
    let suite = suite(name).expect("the suite is in the table");
    let report = match suite.run() {
        Ok(report) => report,
        Err(error) if error.is_excusable() => {
            tell(&format!("NOT SHOWN: the published scenarios of {name} are missing: {error}"));
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert!(report.failures.is_empty(), "{report}\n{:#?}", report.failures);
    let skipped: usize = report.skipped.values().sum();
    assert_eq!(report.passed + skipped, report.total);
    assert_ne!(report.passed, 0, "nothing was run");
    tell(&report.to_string());
}

macro_rules! published {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() { judge(stringify!($name)); })*

        #[test]
        fn every_suite_has_a_test() {
            let tested = [$(stringify!($name)),*];
            let in_table: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
            assert_eq!(tested.as_slice(), in_table);
        }
    };
}

published!(
    connection_string, uri_options, auth, srv_seedlist, discovery_and_monitoring, sdam_monitoring,
    server_selection, max_staleness, connection_monitoring, discovery_and_monitoring_unified,
    server_selection_logging, connection_logging, run_command, retryable_reads, retryable_writes,
    crud, client_backpressure, command_monitoring, command_logging, read_write_concern,
    causal_consistency, sessions, versioned_api, collection_management, transactions,
    transactions_convenient_api, change_streams, csot_sessions, unified_test_format,
    unified_test_format_failures,
);

/// The proof in the README states what the table of suites expects.
#[test]
fn the_readme_tells_the_numbers_of_the_table() {
    let readme = include_str!("../../../README.md");
    let proof = readme.split_once("## Proof").expect("the README has its proof").1;
    let words: Vec<&str> = proof.split_whitespace().collect();
    let told: Vec<(&Suite, &str)> = words
        .windows(2)
        .filter(|pair| pair[1].starts_with(|c: char| c.is_ascii_digit()))
        .filter_map(|pair| Some((suite(pair[0])?, pair[1].trim_matches([',', ';']))))
        .collect();
    for (suite, number) in &told {
        let expected = match suite.judge {
            Judge::File(_) => format!("{0}/{0}", suite.files),
            Judge::Unified { passed, .. } => passed.to_string(),
        };
        assert_eq!(*number, expected, "{}", suite.name);
    }
    let unified = |suite: &&Suite| matches!(suite.judge, Judge::Unified { .. });
    let named = told.iter().filter(|(suite, _)| unified(suite)).count();
    let more = SUITES.iter().filter(unified).count() - named;
    assert!(named > 0 && proof.contains(&format!("and {more} more suites")), "{more} more suites");
}

//! Any text: it is read or refused, what is written reads back, and no password is shown.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_connection_string::{ConnectionString, Seeds, SrvTarget, Warning};

fuzz_target!(|text: &str| {
    let Ok(mut connection) = ConnectionString::parse(text) else { return };

    let written = connection.to_uri_with_secrets();
    // Escaping makes a text up to three times as long, so that it may be refused for its length.
    if let Ok(again) = ConnectionString::parse(&written) {
        // What is written has no mistakes, but may name as many hosts as the text did.
        let mut warnings = again.warnings().iter();
        let is_about_hosts = |warning: &Warning| matches!(warning, Warning::ManyHosts(_));
        assert!(warnings.all(is_about_hosts), "{:?} in {written}", again.warnings());
        assert_eq!(again.seeds(), connection.seeds());
        assert_eq!(again.credential(), connection.credential());
        assert_eq!(again.options(), connection.options());
        assert_eq!(again.default_database(), connection.default_database());
    } else {
        assert!(written.len() > quorate_connection_string::MAX_LENGTH, "{written}");
    }

    let shown = connection.to_string();
    for warning in connection.warnings() {
        assert!(!warning.to_string().is_empty());
    }
    if let Some(password) = connection.credential().and_then(|c| c.password.as_ref()) {
        let password = password.expose();
        // Short ones occur by chance, long ones that equal another part of the string by intent.
        let elsewhere = text.matches(password).count() > 1;
        if password.len() > 8 && !elsewhere && password.bytes().all(|b| b.is_ascii_alphanumeric()) {
            assert!(!shown.contains(password), "{shown}");
        }
    }

    // The same text as an answer of DNS.
    if matches!(connection.seeds(), Seeds::Srv(_)) {
        let record = text.split_once('?').map_or(text, |(_, options)| options);
        let before = connection.clone();
        if connection.apply_txt_records(&[vec![record]]).is_err() {
            assert_eq!(connection, before);
        }
        let target = SrvTarget { host: record.to_owned(), port: 27017 };
        let _ = connection.seed_list(&[target], text.len() as u64);
    }
});

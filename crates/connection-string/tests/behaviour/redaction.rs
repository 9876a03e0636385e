//! Secrets are shown on request alone.

use quorate_connection_string::ConnectionString;

use crate::parse;

const SECRETS: [&str; 4] = ["hunter-a", "hunter-b", "hunter-c", "hunter-d"];

const WITH_SECRETS: &str = "mongodb://ada:hunter-a@host/?authMechanism=MONGODB-AWS\
     &authMechanismProperties=AWS_SESSION_TOKEN:hunter-b\
     &proxyHost=proxy&proxyUsername=bob&proxyPassword=hunter-c\
     &tlsCertificateKeyFilePassword=hunter-d";

#[test]
fn neither_display_nor_debug_shows_a_secret() {
    let connection = parse(WITH_SECRETS);
    let shown = [
        connection.to_string(),
        format!("{connection:?}"),
        format!("{connection:#?}"),
        format!("{:?}", connection.options()),
        format!("{:?}", connection.credential()),
    ];
    for text in &shown {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
    assert!(shown[0].starts_with("mongodb://ada:***@host:27017/?"), "{}", shown[0]);
    assert!(shown[0].contains("AWS_SESSION_TOKEN:***&"), "{}", shown[0]);
    assert!(shown[0].contains("&proxyPassword=***&"), "{}", shown[0]);
}

#[test]
fn whoever_asks_by_name_gets_them() {
    let connection = parse(WITH_SECRETS);
    let text = connection.to_uri_with_secrets();
    for secret in SECRETS {
        assert!(text.contains(secret), "{secret} not in {text}");
    }
    assert_eq!(connection.credential().unwrap().password.as_ref().unwrap().expose(), "hunter-a");
}

#[test]
fn what_is_shown_can_be_read_again() {
    let shown = parse(WITH_SECRETS).to_string();
    assert_eq!(parse(&shown).to_string(), shown);
}

#[test]
fn errors_and_warnings_do_not_repeat_secrets() {
    for text in [
        "mongodb://ada:hunter-a/x@host/db",
        "mongodb://ada:hunter-a?x@host/db",
        "mongodb://ada:12?hunter-a@host/db",
        "mongodb://ada:hunter-a",
        "mongodb://ada:hunter-a:x",
        "mongodb://ada:hunter-a%2Fx",
        "mongodb://ada:hunter-a%4@host",
        "mongodb://ada:hunter-a:b@host",
        "mongodb://ada:hunter-a@x@host",
        "mongodb://ada:p@hunter-a/x@host",
        "mongodb://ada:hunter-a@ho st",
        "mongodb://ada:hunter-a@host/?authMechanism=MONGODB-X509",
        "mongodb://ada:hunter-a@host/?w",
    ] {
        let error = ConnectionString::parse(text).expect_err(text);
        for shown in [error.to_string(), format!("{error:?}")] {
            assert!(!shown.contains("hunter"), "{text}: {shown}");
        }
    }
    for options in [
        "authMechanismProperties=AWS_SESSION_TOKEN:hunter-a,hunter-b",
        "authMechanismProperties=hunter-a",
        "proxyPassword=",
    ] {
        let connection = parse(&format!("mongodb://host/?{options}"));
        assert_eq!(connection.warnings().len(), 1, "{options}");
        for warning in connection.warnings() {
            assert!(!format!("{warning} {warning:?}").contains("hunter"), "{warning}");
        }
    }
}

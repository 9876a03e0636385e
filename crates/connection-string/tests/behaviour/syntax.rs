//! The specification "Connection String", sections "Userinfo", "Host Information" and "Auth
//! Database".

use quorate_connection_string::{MAX_LENGTH, MAX_SEEDS, ParseError, Part, Seeds};

use crate::{parse, refusal};

#[test]
fn hosts_keep_their_order_and_get_the_default_port() {
    let connection = parse("mongodb://B,a:1,[FE80::1],%2Ftmp%2FX.sock,mongo.sock");
    let Seeds::Hosts(hosts) = connection.seeds() else { panic!("these are hosts") };
    let hosts: Vec<_> = hosts.iter().map(|host| host.as_str()).collect();
    assert_eq!(hosts, ["b:27017", "a:1", "[fe80::1]:27017", "/tmp/X.sock", "mongo.sock:27017"]);
}

#[test]
fn an_ipv6_zone_is_percent_encoded() {
    let connection = parse("mongodb://[fe80::1%25eth0]:5");
    assert!(matches!(connection.seeds(), Seeds::Hosts(hosts) if hosts[0].host() == "fe80::1%eth0"));
    assert_eq!(connection.to_string(), "mongodb://[fe80::1%25eth0]:5");
}

#[test]
fn options_may_follow_the_hosts_without_a_slash() {
    let connection = parse("mongodb://host?authSource=a/b");
    assert_eq!(connection.default_database(), None);
    assert_eq!(connection.options().auth_source.as_deref(), Some("a/b"));
}

#[test]
fn the_database_is_decoded_and_checked() {
    assert_eq!(parse("mongodb://host/a%3Fb.c?w=1").default_database(), Some("a?b.c"));
    assert_eq!(parse("mongodb://host/").default_database(), None);
    for (name, bad) in [("a%2Fb", '/'), ("a%5Cb", '\\'), ("a b", ' '), ("%22", '"'), ("$x", '$')] {
        assert_eq!(refusal(&format!("mongodb://host/{name}")), ParseError::BadDatabase(bad));
    }
}

#[test]
fn credentials_are_decoded_and_a_plus_stays_a_plus() {
    let connection = parse("mongodb://a%40b:c%3Ad+e@host");
    let credential = connection.credential().unwrap();
    assert_eq!(credential.user_name.as_deref(), Some("a@b"));
    assert_eq!(credential.password.as_ref().unwrap().expose(), "c:d+e");
}

#[test]
fn ambiguous_credentials_are_refused() {
    for text in [
        "mongodb://a@b:c@host", "mongodb://a:b:c@host", "mongodb://a:b c@host",
        "mongodb://a:p/q@host", "mongodb://a:1/q@host/db", "mongodb://a:p@q/r@host/db",
        "mongodb://a:p?q@host", "mongodb://a:1?q@host",
    ] {
        assert_eq!(refusal(text), ParseError::UserInfoNotEncoded, "{text}");
    }
    assert_eq!(refusal("mongodb://@host"), ParseError::EmptyUserName);
    assert_eq!(refusal("mongodb://:p@host"), ParseError::EmptyUserName);
}

#[test]
fn broken_escapes_name_the_part_they_are_in() {
    for (text, part) in [
        ("mongodb://a%4:b@host", Part::UserInfo),
        ("mongodb://ho%st", Part::Host),
        ("mongodb://host/d%b", Part::Database),
        ("mongodb://host/?appname=%", Part::Options),
    ] {
        assert_eq!(refusal(text), ParseError::BadEscape(part), "{text}");
    }
    assert_eq!(refusal("mongodb://host/%ff"), ParseError::NotUtf8(Part::Database));
}

#[test]
fn missing_hosts_are_refused() {
    for text in ["mongodb://", "mongodb:///db", "mongodb://a:b@", "mongodb://?w=1"] {
        assert_eq!(refusal(text), ParseError::MissingHost, "{text}");
    }
    for text in ["mongodb://a,", "mongodb://,a", "mongodb://a,,b"] {
        assert!(matches!(refusal(text), ParseError::BadHost(_)), "{text}");
    }
    for text in ["", "mongodb", "mongodb:/", "MONGODB://host", "http://host", " mongodb://host"] {
        assert_eq!(refusal(text), ParseError::BadScheme, "{text}");
    }
}

#[test]
fn names_for_dns_stand_alone() {
    assert_eq!(*parse("mongodb+srv://A.Example.com.").seeds(), Seeds::Srv("a.example.com".into()));
    assert_eq!(*parse("mongodb+srv://localhost").seeds(), Seeds::Srv("localhost".into()));
    assert_eq!(refusal("mongodb+srv://a.b.c:27017"), ParseError::SrvWithPort);
    assert_eq!(refusal("mongodb+srv://a.b.c,d.b.c"), ParseError::SrvWithSeveralHosts);
    for text in ["mongodb+srv://127.0.0.1", "mongodb+srv://[::1]", "mongodb+srv://%2Fa.sock"] {
        assert_eq!(refusal(text), ParseError::SrvNotAName, "{text}");
    }
    for text in ["mongodb+srv://a..b", "mongodb+srv://.a.b", "mongodb+srv://."] {
        assert!(matches!(refusal(text), ParseError::BadHost(_)), "{text}");
    }
}

#[test]
fn everything_has_a_bound() {
    let long = format!("mongodb://host/?appname={}", "a".repeat(MAX_LENGTH));
    assert_eq!(refusal(&long), ParseError::TooLong(long.len()));
    let at_limit = format!("mongodb://host/?foo={}", "a".repeat(MAX_LENGTH - 20));
    assert_eq!(at_limit.len(), MAX_LENGTH);
    assert_eq!(parse(&at_limit).warnings().len(), 1);

    let hosts = vec!["h"; MAX_SEEDS].join(",");
    parse(&format!("mongodb://{hosts}"));
    assert_eq!(refusal(&format!("mongodb://{hosts},h")), ParseError::TooManyHosts(MAX_SEEDS + 1));
}

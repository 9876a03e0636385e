//! The specification "Initial DNS Seedlist Discovery", its prose tests among them.

use quorate_connection_string::{
    ConnectionString, MAX_SEEDS, MAX_TXT_LENGTH, ParseError, SeedListError, SrvTarget, TxtError,
    Warning,
};

use crate::{parse, refusal};

fn target(host: &str) -> SrvTarget {
    SrvTarget { host: host.to_owned(), port: 27017 }
}

fn with_txt(uri: &str, record: &str) -> Result<ConnectionString, TxtError> {
    let mut connection = parse(uri);
    connection.apply_txt_records(&[vec![record]])?;
    Ok(connection)
}

#[test]
fn the_question_names_service_and_host() {
    let name = |uri: &str| parse(uri).srv_query_name();
    assert_eq!(name("mongodb+srv://A.b.c").as_deref(), Some("_mongodb._tcp.a.b.c"));
    assert_eq!(name("mongodb+srv://a.b.c/?srvServiceName=x").as_deref(), Some("_x._tcp.a.b.c"));
    assert_eq!(name("mongodb://a.b.c"), None);
}

#[test]
fn hosts_must_be_below_the_domain() {
    for (uri, good) in [
        ("mongodb+srv://blogs.mongodb.com", "cluster.mongodb.com"),
        ("mongodb+srv://blogs.mongodb.com", "A.B.MongoDB.com."),
        ("mongodb+srv://blogs.mongodb.com", "blogs.mongodb.com"),
        ("mongodb+srv://localhost", "one.localhost"),
        ("mongodb+srv://mongo.local", "one.mongo.local"),
    ] {
        let host = parse(uri).check_srv_target(&target(good)).unwrap();
        assert_eq!(host.host(), good.trim_end_matches('.').to_lowercase(), "{uri}");
    }
    for (uri, bad) in [
        // Prose test 2
        ("mongodb+srv://localhost", "localhost.mongodb"),
        ("mongodb+srv://mongo.local", "test_1.evil.local"),
        ("mongodb+srv://blogs.mongodb.com", "blogs.evil.com"),
        // Prose test 3
        ("mongodb+srv://localhost", "localhost"),
        ("mongodb+srv://mongo.local", "mongo.local"),
        // Prose test 4
        ("mongodb+srv://localhost", "test_1.cluster_1localhost"),
        ("mongodb+srv://mongo.local", "test_1.my_hostmongo.local"),
        ("mongodb+srv://blogs.mongodb.com", "cluster.testmongodb.com"),
        // The domain itself, and no host at all
        ("mongodb+srv://blogs.mongodb.com", "mongodb.com"),
        ("mongodb+srv://blogs.mongodb.com", ".mongodb.com"),
        ("mongodb+srv://blogs.mongodb.com", ""),
    ] {
        let error = parse(uri).check_srv_target(&target(bad)).unwrap_err();
        assert!(matches!(error, SeedListError::ForeignHost { .. }), "{uri} {bad}: {error}");
    }
}

#[test]
fn one_foreign_host_spoils_the_answer() {
    let connection = parse("mongodb+srv://a.example.com");
    let answer = [target("b.example.com"), target("b.evil.com")];
    assert!(matches!(connection.seed_list(&answer, 0), Err(SeedListError::ForeignHost { .. })));
    let unusable = SrvTarget { host: "b.example.com".into(), port: 0 };
    assert!(matches!(connection.seed_list(&[unusable], 0), Err(SeedListError::BadTarget(..))));
}

#[test]
fn answers_are_bounded_on_both_sides() {
    let connection = parse("mongodb+srv://a.example.com");
    assert_eq!(
        connection.seed_list(&[], 0),
        Err(SeedListError::NoRecords("_mongodb._tcp.a.example.com".into()))
    );
    let many = vec![target("b.example.com"); MAX_SEEDS + 1];
    assert_eq!(connection.seed_list(&many, 0), Err(SeedListError::TooManyRecords(MAX_SEEDS + 1)));
    assert_eq!(connection.seed_list(&many[..2], 0).unwrap().len(), 1);
    assert_eq!(parse("mongodb://a").seed_list(&many, 0), Err(SeedListError::NotSrv));
}

#[test]
fn a_limit_chooses_evenly_and_repeatably() {
    let names = ["a", "b", "c", "d", "e"];
    let answer: Vec<_> = names.iter().map(|name| target(&format!("{name}.example.com"))).collect();
    let limited = parse("mongodb+srv://x.example.com/?srvMaxHosts=2");
    let mut times_chosen = [0_u32; 5];
    for seed in 0..1000 {
        let chosen = limited.seed_list(&answer, seed).unwrap();
        assert_eq!(chosen, limited.seed_list(&answer, seed).unwrap());
        assert_eq!(chosen.len(), 2);
        assert_ne!(chosen[0], chosen[1]);
        for host in chosen {
            let position = names.iter().position(|name| host.host().starts_with(name)).unwrap();
            times_chosen[position] += 1;
        }
    }
    // 400 each on average; four standard deviations are 62.
    assert!(times_chosen.iter().all(|times| (338..=462).contains(times)), "{times_chosen:?}");

    for uri in
        ["mongodb+srv://x.example.com/?srvMaxHosts=0", "mongodb+srv://x.example.com/?srvMaxHosts=5"]
    {
        let all = parse(uri).seed_list(&answer, 1).unwrap();
        assert!(all.iter().map(|host| host.host().split('.').next().unwrap()).eq(names));
    }
}

#[test]
fn a_load_balancer_is_one_host() {
    let connection = parse("mongodb+srv://a.example.com/?loadBalanced=true");
    let answer = [target("b.example.com"), target("c.example.com")];
    assert_eq!(connection.seed_list(&answer, 0), Err(SeedListError::SeveralLoadBalancers(2)));
    assert_eq!(connection.seed_list(&answer[..1], 0).unwrap().len(), 1);
}

#[test]
fn a_suffix_replaces_the_domain_rule() {
    let check = |suffix: &str, host: &str| {
        parse(&format!("mongodb+srv://x.test.example.com/?srvAllowedHostsSuffix={suffix}"))
            .check_srv_target(&target(host))
            .is_ok()
    };
    for suffix in [".example.com", "example.com", ".EXAMPLE.com.", "example.com."] {
        assert!(check(suffix, "host.example.com"), "{suffix}");
        assert!(!check(suffix, "hostexample.com"), "{suffix}");
        assert!(!check(suffix, "example.com"), "{suffix}");
    }
    assert!(!check("xample.com", "host.example.com"));
    assert!(check("internal", "host.internal"));
    for suffix in [".", "", "com", ".COM", "a..b"] {
        let refused = refusal(&format!("mongodb+srv://a.b.c/?srvAllowedHostsSuffix={suffix}"));
        assert!(matches!(refused, ParseError::BadAllowedSuffix(_)), "{suffix}: {refused}");
    }
}

#[test]
fn txt_records_add_what_the_string_leaves_open() {
    let record = "authSource=thisDB&replicaSet=repl0&loadBalanced=false";
    let connection = with_txt("mongodb+srv://u:p@a.b.c", record).unwrap();
    assert_eq!(connection.options().auth_source.as_deref(), Some("thisDB"));
    assert_eq!(connection.options().replica_set.as_deref(), Some("repl0"));
    assert_eq!(connection.options().load_balanced, Some(false));
    assert_eq!(connection.credential().unwrap().source, "thisDB");

    let uri = "mongodb+srv://u:p@a.b.c/?authSource=mine&replicaSet=rs1&loadBalanced=false";
    let connection = with_txt(uri, "authSource=x&replicaSet=y&loadBalanced=true").unwrap();
    assert_eq!(connection.to_uri_with_secrets(), parse(uri).to_uri_with_secrets());
    assert_eq!(connection.credential().unwrap().source, "mine");
}

#[test]
fn the_strings_of_a_record_are_joined() {
    let mut connection = parse("mongodb+srv://a.b.c");
    connection.apply_txt_records(&[vec!["replicaS", "et=rep", "l0"]]).unwrap();
    assert_eq!(connection.options().replica_set.as_deref(), Some("repl0"));
    connection.apply_txt_records::<&str>(&[]).unwrap();
}

#[test]
fn a_refused_record_changes_nothing() {
    let uri = "mongodb+srv://a.b.c/?srvMaxHosts=1";
    for record in [
        "replicaSet=rs0", "loadBalanced=true", "ssl=false", "tls=false", "socketTimeoutMS=500",
        "unknown=1", "authSource", "authSource=", "authSource=%zz",
    ] {
        let mut connection = parse(uri);
        assert!(connection.apply_txt_records(&[vec![record]]).is_err(), "{record}");
        assert_eq!(connection, parse(uri), "{record}");
    }
    let mut connection = parse(uri);
    assert_eq!(
        connection.apply_txt_records(&[vec!["a=b"], vec!["c=d"]]),
        Err(TxtError::SeveralRecords(2))
    );
    let long = "x".repeat(MAX_TXT_LENGTH + 1);
    assert_eq!(
        connection.apply_txt_records(&[vec![&long]]),
        Err(TxtError::TooLong(MAX_TXT_LENGTH + 1))
    );
    assert_eq!(
        parse("mongodb://a").apply_txt_records(&[vec!["replicaSet=rs0"]]),
        Err(TxtError::NotSrv)
    );
}

#[test]
fn bad_values_in_a_record_warn_like_those_in_a_string() {
    let connection = with_txt("mongodb+srv://a.b.c", "loadBalanced=maybe").unwrap();
    assert_eq!(connection.options().load_balanced, None);
    assert!(matches!(connection.warnings(), [Warning::InvalidValue { .. }]));
    let connection = with_txt("mongodb+srv://a.b.c", "replicaSet=a&replicaSet=b").unwrap();
    assert_eq!(connection.warnings(), [Warning::RepeatedOption("replicaSet")]);
}

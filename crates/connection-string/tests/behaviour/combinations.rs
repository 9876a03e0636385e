//! Options that must not stand together, each refusal with its counterpart that is accepted.

use quorate_connection_string::ParseError;

use crate::{parse, refusal};

fn assert_conflict(text: &str) {
    assert!(matches!(refusal(text), ParseError::Conflict(..)), "{text}: {:?}", refusal(text));
}

#[test]
fn a_direct_connection_has_one_host_and_no_dns() {
    assert_conflict("mongodb://a,b/?directConnection=true");
    assert_conflict("mongodb+srv://a.b.c/?directConnection=true");
    parse("mongodb://a,b/?directConnection=false");
    parse("mongodb+srv://a.b.c/?directConnection=false");
    parse("mongodb://a/?directConnection=true&replicaSet=rs0");
}

#[test]
fn a_load_balancer_stands_alone() {
    assert_conflict("mongodb://a,b/?loadBalanced=true");
    assert_conflict("mongodb://a/?loadBalanced=true&replicaSet=rs0");
    assert_conflict("mongodb://a/?loadBalanced=true&directConnection=true");
    assert_conflict("mongodb+srv://a.b.c/?loadBalanced=true&srvMaxHosts=1");
    assert_conflict("mongodb+srv://a.b.c/?loadBalanced=true&replicaSet=rs0");
    parse("mongodb://a,b/?loadBalanced=false&replicaSet=rs0");
    parse("mongodb+srv://a.b.c/?loadBalanced=true&srvMaxHosts=0");
}

#[test]
fn srv_options_need_dns_even_if_their_values_are_bad() {
    for option in [
        "srvMaxHosts=0",
        "srvMaxHosts=2",
        "srvMaxHosts=-1",
        "srvServiceName=x",
        "srvServiceName=-",
        "srvAllowedHostsSuffix=.example.com",
    ] {
        let refused = refusal(&format!("mongodb://a/?{option}"));
        assert!(matches!(refused, ParseError::OnlyWithSrv(_)), "{option}: {refused}");
        parse(&format!("mongodb+srv://a.b.c/?{option}"));
    }
    assert_conflict("mongodb+srv://a.b.c/?srvMaxHosts=1&replicaSet=rs0");
    parse("mongodb+srv://a.b.c/?srvMaxHosts=0&replicaSet=rs0");
}

#[test]
fn tls_options_contradict_each_other_by_appearing() {
    let exclusive = [
        "tlsInsecure",
        "tlsAllowInvalidCertificates",
        "tlsDisableOCSPEndpointCheck",
        "tlsDisableCertificateRevocationCheck",
    ];
    for one in exclusive {
        for other in exclusive.into_iter().filter(|other| *other != one) {
            assert_conflict(&format!("mongodb://a/?{one}=false&{other}=false"));
            assert_conflict(&format!("mongodb://a/?{one}=true&{other}=nonsense"));
        }
    }
    assert_conflict("mongodb://a/?tlsInsecure=true&tlsAllowInvalidHostnames=true");
    parse("mongodb://a/?tlsAllowInvalidHostnames=true&tlsAllowInvalidCertificates=true");
    parse("mongodb://a/?tlsAllowInvalidHostnames=true&tlsDisableOCSPEndpointCheck=true");
}

#[test]
fn tls_and_ssl_must_agree() {
    for text in ["tls=true&ssl=false", "ssl=false&tls=true", "tls=true&tls=false", "ssl=1&tls=0"] {
        assert_eq!(refusal(&format!("mongodb://a/?{text}")), ParseError::ContradictoryTls);
    }
}

#[test]
fn tls_is_on_when_asked_for_or_implied() {
    for (text, on) in [
        ("mongodb://a", false),
        ("mongodb://a/?tls=true", true),
        ("mongodb://a/?ssl=true", true),
        ("mongodb+srv://a.b.c", true),
        ("mongodb+srv://a.b.c/?tls=false", false),
        ("mongodb://a/?tlsCAFile=ca.pem", true),
        ("mongodb://a/?tlsCAFile=ca.pem&tls=false", false),
        ("mongodb://a/?tlsInsecure=true", true),
        ("mongodb://a/?tlsInsecure=false", false),
    ] {
        assert_eq!(parse(text).tls_enabled(), on, "{text}");
    }
}

#[test]
fn proxy_options_need_each_other() {
    for (options, missing) in [
        ("proxyPort=1", "proxyHost"),
        ("proxyUsername=u&proxyPassword=p", "proxyHost"),
        ("proxyHost=h&proxyUsername=u", "proxyPassword"),
        ("proxyHost=h&proxyPassword=p", "proxyUsername"),
    ] {
        let refused = refusal(&format!("mongodb://a/?{options}"));
        assert!(matches!(refused, ParseError::Requires(_, needed) if needed == missing));
    }
    parse("mongodb://a/?proxyHost=h&proxyPort=1&proxyUsername=u&proxyPassword=p");
    // Empty ones are ignored, as the specification demands, and then ask for nothing.
    let ignored = parse("mongodb://a/?proxyHost=h&proxyUsername=&proxyPassword=");
    assert_eq!(ignored.warnings().len(), 2);
}

#[test]
fn the_primary_is_neither_tagged_nor_stale() {
    assert_conflict("mongodb://a/?readPreferenceTags=dc:ny");
    assert_conflict("mongodb://a/?maxStalenessSeconds=120");
    assert_conflict("mongodb://a/?readPreference=primary&maxStalenessSeconds=120");
    parse("mongodb://a/?readPreferenceTags=");
    parse("mongodb://a/?maxStalenessSeconds=-1");
    parse("mongodb://a/?readPreference=secondary&maxStalenessSeconds=120&readPreferenceTags=a:b");
}

#[test]
fn what_is_not_acknowledged_can_not_be_journaled() {
    assert_conflict("mongodb://a/?w=0&journal=true");
    assert_conflict("mongodb://a/?w=0&j=true");
    parse("mongodb://a/?w=0&journal=false");
    parse("mongodb://a/?w=1&journal=true");
}

#[test]
fn pools_are_not_larger_than_they_may_be() {
    let refused = refusal("mongodb://a/?minPoolSize=6&maxPoolSize=5");
    assert_eq!(refused, ParseError::PoolBounds { min: 6, max: 5 });
    parse("mongodb://a/?minPoolSize=5&maxPoolSize=5");
    parse("mongodb://a/?minPoolSize=5&maxPoolSize=0");
}

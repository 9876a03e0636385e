//! The specification "URI Options": accepted values, their meaning, and the warnings of the
//! specification "Connection String".

use std::num::NonZeroU32;
use std::time::Duration;

use quorate_connection_string::{
    Compressor, Limit, Options, ParseError, Warning, WriteAcknowledgement,
};
use quorate_protocol::{ReadPreferenceMode, ServerMonitoringMode};

use crate::{parse, refusal, warnings};

fn options(text: &str) -> Options {
    let connection = parse(&format!("mongodb://host/?{text}"));
    assert_eq!(connection.warnings(), [], "{text}");
    connection.options().clone()
}

#[test]
fn zero_switches_bounds_off_where_the_table_says_so() {
    let off = options(
        "connectTimeoutMS=0&maxIdleTimeMS=0&maxPoolSize=0&socketTimeoutMS=0&timeoutMS=0&wTimeoutMS=0",
    );
    assert_eq!(off.connect_timeout, Some(Limit::Unlimited));
    assert_eq!(off.max_idle_time, Some(Limit::Unlimited));
    assert_eq!(off.max_pool_size, Some(Limit::Unlimited));
    assert_eq!(off.socket_timeout, Some(Limit::Unlimited));
    assert_eq!(off.timeout, Some(Limit::Unlimited));
    assert_eq!(off.w_timeout, Some(Limit::Unlimited));

    let on = options("connectTimeoutMS=1&maxPoolSize=7");
    assert_eq!(on.connect_timeout, Some(Limit::AtMost(Duration::from_millis(1))));
    assert_eq!(on.max_pool_size.unwrap().bound(), NonZeroU32::new(7));

    let zero = options("localThresholdMS=0&serverSelectionTimeoutMS=0&minPoolSize=0");
    assert_eq!(zero.local_threshold, Some(Duration::ZERO));
    assert_eq!(zero.server_selection_timeout, Some(Duration::ZERO));
    assert_eq!(zero.min_pool_size, Some(0));
}

#[test]
fn integers_have_32_bits_except_the_write_timeout() {
    assert_eq!(
        options("timeoutMS=2147483647").timeout,
        Some(Limit::AtMost(Duration::from_millis(2_147_483_647)))
    );
    assert_eq!(
        options("wTimeoutMS=2147483648").w_timeout,
        Some(Limit::AtMost(Duration::from_millis(2_147_483_648)))
    );
    for bad in ["2147483648", "+1", " 1", "1.5", "0x1", "-0x1", "", "99999999999999999999"] {
        let warnings = warnings(&format!("timeoutMS={bad}"));
        assert!(
            matches!(warnings.as_slice(), [Warning::InvalidValue { option: "timeoutMS", .. }]),
            "{bad}: {warnings:?}"
        );
    }
}

#[test]
fn values_outside_their_range_are_ignored_with_a_warning() {
    for (option, bad) in [
        ("heartbeatFrequencyMS", "499"),
        ("maxStalenessSeconds", "89"),
        ("maxStalenessSeconds", "0"),
        ("maxConnecting", "0"),
        ("waitQueueTimeoutMS", "0"),
        ("proxyPort", "0"),
        ("proxyPort", "65536"),
        ("zlibCompressionLevel", "10"),
        ("w", "-1"),
        ("w", ""),
        ("w", "2147483648"),
        ("readPreference", "Primary"),
        ("serverMonitoringMode", "push"),
        ("replicaSet", ""),
        ("appname", ""),
        ("tls", "TRUE"),
    ] {
        let connection = parse(&format!("mongodb://host/?{option}={bad}"));
        assert_eq!(*connection.options(), Options::default(), "{option}={bad}");
        let [Warning::InvalidValue { option: named, value, expected }] = connection.warnings()
        else {
            panic!("{option}={bad}: {:?}", connection.warnings())
        };
        assert_eq!((*named, value.as_deref()), (option, Some(bad)));
        let text = connection.warnings()[0].to_string();
        assert!(text.contains(option) && text.contains(expected), "{text}");
    }
    assert_eq!(options("heartbeatFrequencyMS=500").heartbeat_frequency.unwrap().as_millis(), 500);
}

#[test]
fn application_names_have_at_most_128_bytes() {
    assert!(options(&format!("appname={}", "a".repeat(128))).app_name.is_some());
    assert_eq!(warnings(&format!("appname={}", "a".repeat(129))).len(), 1);
    // 43 characters of three bytes each.
    assert_eq!(warnings(&format!("appname={}", "%E2%82%AC".repeat(43))).len(), 1);
}

#[test]
fn service_names_follow_rfc_6335_but_may_be_longer() {
    let srv = |name: &str| parse(&format!("mongodb+srv://a.b.c/?srvServiceName={name}"));
    for good in ["mongodb", "a", "custom-name", "1a", &"a".repeat(62)] {
        assert_eq!(srv(good).options().srv_service_name.as_deref(), Some(good));
    }
    for bad in ["", "-a", "a-", "a--b", "123", "a_b", "a.b", &"a".repeat(63)] {
        assert_eq!(srv(bad).options().srv_service_name, None, "{bad}");
        assert_eq!(srv(bad).warnings().len(), 1, "{bad}");
    }
}

#[test]
fn choices_are_read_by_name() {
    for mode in ReadPreferenceMode::ALL {
        let read = options(&format!("readPreference={}", mode.name())).read_preference;
        assert_eq!(read, Some(mode));
    }
    for mode in ServerMonitoringMode::ALL {
        let read = options(&format!("serverMonitoringMode={}", mode.name())).server_monitoring_mode;
        assert_eq!(read, Some(mode));
    }
    assert_eq!(options("w=0").w, Some(WriteAcknowledgement::Members(0)));
    assert_eq!(options("w=majority").w, Some(WriteAcknowledgement::Majority));
    assert_eq!(options("w=two-sites").w, Some(WriteAcknowledgement::Custom("two-sites".into())));
    assert_eq!(options("zlibCompressionLevel=-1").zlib_compression_level, Some(-1));
}

#[test]
fn staleness_of_minus_one_means_no_limit() {
    assert_eq!(options("maxStalenessSeconds=-1").max_staleness, Some(Limit::Unlimited));
    assert_eq!(
        options("readPreference=nearest&maxStalenessSeconds=90").max_staleness,
        Some(Limit::AtMost(Duration::from_secs(90)))
    );
}

#[test]
fn tag_sets_keep_their_order_and_may_be_empty() {
    let tags =
        options("readPreference=nearest&readPreferenceTags=dc:ny,url:a:b&readPreferenceTags=")
            .read_preference_tags;
    assert_eq!(tags.len(), 2);
    assert_eq!((tags[0].get("dc"), tags[0].get("url")), (Some("ny"), Some("a:b")));
    assert!(tags[1].is_empty());
    for bad in ["dc", "dc:ny,", ":ny", "dc:ny,dc:sf"] {
        assert_eq!(warnings(&format!("readPreferenceTags={bad}")).len(), 1, "{bad}");
    }
}

#[test]
fn unknown_compressors_are_left_out_one_by_one() {
    let connection = parse("mongodb://host/?compressors=zstd,lzo,snappy,zstd");
    assert_eq!(
        connection.options().compressors.as_deref(),
        Some([Compressor::Zstd, Compressor::Snappy].as_slice())
    );
    assert_eq!(connection.warnings(), [Warning::UnknownCompressor("lzo".into())]);
    assert_eq!(parse("mongodb://host/?compressors=lzo").options().compressors, None);
}

#[test]
fn names_of_options_ignore_case() {
    assert_eq!(options("REPLICASET=rs0").replica_set.as_deref(), Some("rs0"));
    assert_eq!(options("appName=a").app_name.as_deref(), Some("a"));
}

#[test]
fn deprecated_booleans_are_understood_and_warned_about() {
    for (text, meaning) in
        [("1", true), ("yes", true), ("y", true), ("t", true), ("-1", false), ("n", false)]
    {
        let connection = parse(&format!("mongodb://host/?retryReads={text}"));
        assert_eq!(connection.options().retry_reads, Some(meaning));
        let expected =
            Warning::DeprecatedBoolean { option: "retryReads", value: text.into(), meaning };
        assert_eq!(connection.warnings(), [expected]);
    }
}

#[test]
fn deprecated_names_yield_to_their_replacements() {
    let old = parse("mongodb://host/?j=true&wtimeout=5");
    assert_eq!(old.options().journal, Some(true));
    assert_eq!(old.options().w_timeout, Some(Limit::AtMost(Duration::from_millis(5))));
    assert!(matches!(
        old.warnings(),
        [Warning::DeprecatedOption { option: "j", .. }, Warning::DeprecatedOption { .. }]
    ));

    for text in ["wtimeout=5&wtimeoutMS=10", "wtimeoutMS=10&wtimeout=5"] {
        let both = parse(&format!("mongodb://host/?{text}"));
        assert_eq!(both.options().w_timeout, Some(Limit::AtMost(Duration::from_millis(10))));
        assert_eq!(
            both.warnings(),
            [Warning::ReplacedOption { option: "wtimeout", replacement: "wTimeoutMS" }]
        );
    }
}

#[test]
fn the_last_valid_of_repeated_values_counts() {
    let connection = parse("mongodb://host/?w=1&w=2&w=-3");
    assert_eq!(connection.options().w, Some(WriteAcknowledgement::Members(2)));
    let repeated = Warning::RepeatedOption("w");
    assert_eq!(connection.warnings().iter().filter(|warning| **warning == repeated).count(), 2);
    // The same option under its two names is no repetition.
    assert_eq!(warnings("ssl=true&tls=true"), []);
    assert_eq!(warnings("tls=true&tls=true"), [Warning::RepeatedOption("tls")]);
    assert_eq!(warnings("ssl=true&ssl=true"), [Warning::RepeatedOption("ssl")]);
}

#[test]
fn more_hosts_than_a_set_can_have_are_worth_a_warning() {
    let listed = |count: usize| {
        let hosts: Vec<String> = (0..count).map(|number| format!("h{number}")).collect();
        format!("mongodb://{}/", hosts.join(","))
    };
    assert_eq!(parse(&listed(50)).warnings(), []);
    assert_eq!(parse(&listed(51)).warnings(), [Warning::ManyHosts(51)]);
    assert!(parse(&listed(51)).warnings()[0].to_string().contains("at most 50"));
}

#[test]
fn options_are_pairs() {
    assert_eq!(refusal("mongodb://host/?w"), ParseError::IncompleteOption("w".into()));
    assert_eq!(refusal("mongodb://host/?=1"), ParseError::IncompleteOption("=1".into()));
    assert_eq!(warnings("w=1&&journal=true&"), [Warning::EmptyOption, Warning::EmptyOption]);
    assert_eq!(parse("mongodb://host/?").warnings(), []);
    // Only the first equals sign divides.
    assert_eq!(options("appname=a=b").app_name.as_deref(), Some("a=b"));
    assert_eq!(warnings("foo=bar"), [Warning::UnknownOption("foo".into())]);
}

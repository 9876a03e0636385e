//! What holds for every text: reading never panics, and what is written reads back.

use proptest::prelude::*;
use quorate_connection_string::ConnectionString;
use quorate_protocol::MAX_HOST_LENGTH;

use crate::parse;

/// Writes a string and reads it again; the values must be the same and nothing left to warn about.
fn assert_reads_back(text: &str) -> Result<(), TestCaseError> {
    let Ok(connection) = ConnectionString::parse(text) else { return Ok(()) };
    let written = connection.to_uri_with_secrets();
    let again = ConnectionString::parse(&written)
        .map_err(|error| TestCaseError::fail(format!("{written}: {error}")))?;
    prop_assert_eq!(again.warnings(), []);
    prop_assert_eq!(again.seeds(), connection.seeds());
    prop_assert_eq!(again.credential(), connection.credential());
    prop_assert_eq!(again.default_database(), connection.default_database());
    prop_assert_eq!(again.options(), connection.options());
    prop_assert_eq!(again.to_uri_with_secrets(), written);
    let shown = connection.to_string();
    prop_assert!(ConnectionString::parse(&shown).is_ok(), "{}", shown);
    Ok(())
}

#[test]
fn every_option_reads_back() {
    let text = "mongodb://ada%3A:p%40ss%20w%C3%B6rd@a,[::1]:5,%2Ftmp%2Fa%20b.sock/my%3Fdb?\
        replicaSet=rs%260&directConnection=false&loadBalanced=false&appname=x%20y\
        &authMechanism=GSSAPI&authSource=$external\
        &authMechanismProperties=SERVICE_NAME:a:b,SERVICE_REALM:c\
        &compressors=zstd,zlib&connectTimeoutMS=0&enableOverloadRetargeting=true\
        &heartbeatFrequencyMS=500&journal=true&localThresholdMS=15&maxAdaptiveRetries=3\
        &maxConnecting=2&maxIdleTimeMS=1&maxPoolSize=0&maxStalenessSeconds=120&minPoolSize=1\
        &proxyHost=p&proxyPort=1080&proxyUsername=u&proxyPassword=p%26q\
        &readConcernLevel=majority&readPreference=nearest&readPreferenceTags=dc:ny,rack:1\
        &readPreferenceTags=&retryReads=false&retryWrites=false&serverMonitoringMode=poll\
        &serverSelectionTimeoutMS=1&serverSelectionTryOnce=true&socketTimeoutMS=5&timeoutMS=0\
        &tls=true&tlsAllowInvalidCertificates=true&tlsAllowInvalidHostnames=true\
        &tlsCAFile=a/b.pem&tlsCertificateKeyFile=c.pem&tlsCertificateKeyFilePassword=d\
        &w=custom%20rule&wTimeoutMS=9999999999&waitQueueTimeoutMS=1&zlibCompressionLevel=-1";
    let connection = parse(text);
    assert_eq!(connection.warnings(), []);
    assert_reads_back(text).unwrap();
    // Every option of the text is in what is written, under its own name.
    let written = connection.to_uri_with_secrets();
    for option in text.split_once('?').unwrap().1.split('&') {
        let name = option.split('=').next().unwrap();
        assert!(written.contains(&format!("{name}=")), "{name} is missing in {written}");
    }
    for text in [
        "mongodb+srv://a.b.c/?srvMaxHosts=3&srvServiceName=x&srvAllowedHostsSuffix=.b.c",
        "mongodb://a/?tlsInsecure=true",
        "mongodb://a/?tlsDisableCertificateRevocationCheck=true",
        "mongodb://a/?tlsDisableOCSPEndpointCheck=false",
    ] {
        assert_reads_back(text).unwrap();
        let name = text.rsplit_once(['?', '&']).unwrap().1.split('=').next().unwrap();
        assert!(parse(text).to_string().contains(name), "{text}");
    }
}

/// Found by fuzzing: with the default port added, the longest host was too long to be read again.
#[test]
fn the_longest_host_reads_back() {
    let longest = "h".repeat(MAX_HOST_LENGTH - ":27017".len());
    parse(&format!("mongodb://{longest}"));
    assert_reads_back(&format!("mongodb://{longest}")).unwrap();
    assert!(ConnectionString::parse(&format!("mongodb://{longest}h")).is_err());
}

/// Pieces that strings are made of, so that many of the random ones get past the first checks.
fn fragment() -> impl Strategy<Value = String> {
    let known = [
        "host", "a.b.c", "[::1]", ":27017", ",", "/", "?", "&", "=", "@", ":", "%", "%2F", "%40",
        ".sock", "user", "pass", "db", "w=1", "w=majority", "replicaSet=", "tls=true", "ssl=false",
        "readPreference=nearest", "readPreferenceTags=a:b,c:d", "readPreferenceTags=",
        "authMechanism=PLAIN", "authSource=x", "authMechanismProperties=A:b", "srvMaxHosts=2",
        "timeoutMS=0", "compressors=zlib,x", "loadBalanced=true", "directConnection=true",
        "maxStalenessSeconds=90", "wtimeout=3", "j=1", "appname=é€😀", "$external", "\\", "\"",
        " ", "proxyHost=h", "proxyPassword=s", "minPoolSize=3", "maxPoolSize=2", "\u{0}", "%00",
        "%C3%A9",
    ];
    prop_oneof![
        8 => prop::sample::select(known.to_vec()).prop_map(str::to_owned),
        1 => "\\PC{0,8}",
    ]
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}") {
        let _ = ConnectionString::parse(&text);
        let _ = ConnectionString::parse(&format!("mongodb://{text}"));
    }

    #[test]
    fn whatever_is_accepted_reads_back(
        srv in any::<bool>(),
        fragments in prop::collection::vec(fragment(), 0..12),
    ) {
        let scheme = if srv { "mongodb+srv://" } else { "mongodb://" };
        assert_reads_back(&format!("{scheme}{}", fragments.concat()))?;
    }

    #[test]
    fn strings_with_options_read_back(
        user in "[^\\s:@]{1,6}",
        options in prop::collection::vec(fragment(), 0..8),
    ) {
        let user: String = user.bytes().map(|byte| format!("%{byte:02x}")).collect();
        assert_reads_back(&format!("mongodb://{user}:{user}@host/{user}?{}", options.join("&")))?;
    }
}

//! Judges cases of the form "this connection string means that", which two suites share.
//!
//! The format is described beside the published files (`connection-string/tests/README`): a null
//! asks for nothing, everything else must be as stated.

use std::fmt;
use std::net::Ipv4Addr;
use std::time::Duration;

use quorate_connection_string::{ConnectionString, Limit, Options, Seeds, WriteAcknowledgement};
use quorate_protocol::ServerAddress;
use serde_json::{Map, Value, json};

use crate::{Result, ScenarioFile, ensure};

/// Judges every case of a file.
pub(crate) fn check(file: &ScenarioFile) -> Result<()> {
    check_cases(file, check_case)
}

/// Checks the cases under `tests` one by one and collects their failures.
pub(crate) fn check_cases(file: &ScenarioFile, check_case: fn(&Value) -> Result<()>) -> Result<()> {
    let cases = file.json["tests"].as_array().ok_or("there is no array \"tests\"")?;
    if cases.is_empty() {
        bail!("there are no cases");
    }
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let description = case["description"].as_str().unwrap_or("a case without a name");
            check_case(case).err().map(|reason| format!("{description}: {reason}"))
        })
        .collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}

/// What the string of a case is read as; `None` if it is refused, as it should be.
pub(crate) fn read_case<T, E: fmt::Display>(
    case: &Value,
    read: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>> {
    let uri = case["uri"].as_str().ok_or("the case has no uri")?;
    let valid = case["valid"].as_bool().ok_or("the case does not say whether it is valid")?;
    match (read(uri), valid) {
        (Err(_), false) => Ok(None),
        (Ok(_), false) => bail!("accepted, although it is invalid"),
        (Err(error), true) => bail!("refused: {error}"),
        (Ok(read), true) => Ok(Some(read)),
    }
}

fn check_case(case: &Value) -> Result<()> {
    let Some(connection) = read_case(case, ConnectionString::parse)? else { return Ok(()) };
    if let Some(expected) = case["warning"].as_bool()
        && expected == connection.warnings().is_empty()
    {
        let warnings: Vec<String> = connection.warnings().iter().map(ToString::to_string).collect();
        bail!("expected a warning: {expected}; got {warnings:?}");
    }
    if let Some(hosts) = case["hosts"].as_array() {
        check_hosts(&connection, hosts)?;
    }
    if let Some(auth) = case["auth"].as_object() {
        check_auth(&connection, auth)?;
    }
    for (name, expected) in case["options"].as_object().into_iter().flatten() {
        check_option(&connection, name, expected)?;
    }
    Ok(())
}

fn check_hosts(connection: &ConnectionString, expected: &[Value]) -> Result<()> {
    let Seeds::Hosts(hosts) = connection.seeds() else {
        bail!("expected hosts, got a name for DNS");
    };
    if hosts.len() != expected.len() {
        bail!("expected {} hosts, got {hosts:?}", expected.len());
    }
    for (host, expected) in hosts.iter().zip(expected) {
        require("host", &expected["host"], &json!(host.host()))?;
        require("port", &expected["port"], &json!(host.port()))?;
        require("type", &expected["type"], &json!(host_type(host)))?;
    }
    Ok(())
}

fn host_type(host: &ServerAddress) -> &'static str {
    if host.is_unix() {
        "unix"
    } else if host.host().contains(':') {
        "ip_literal"
    } else if host.host().parse::<Ipv4Addr>().is_ok() {
        "ipv4"
    } else {
        "hostname"
    }
}

fn check_auth(connection: &ConnectionString, expected: &Map<String, Value>) -> Result<()> {
    let credential = connection.credential();
    let user_name = credential.and_then(|credential| credential.user_name.as_deref());
    let password = credential.and_then(|credential| credential.password.as_ref());
    for (name, expected) in expected {
        let actual = match name.as_str() {
            "username" => json!(user_name),
            "password" => json!(password.map(|password| password.expose())),
            "db" => json!(connection.default_database()),
            unknown => bail!("the case asks for {unknown:?}, which we do not know"),
        };
        require(name, expected, &actual)?;
    }
    Ok(())
}

/// Whether one option is as the case says.
pub(crate) fn check_option(
    connection: &ConnectionString,
    name: &str,
    expected: &Value,
) -> Result<()> {
    let actual = option(connection.options(), &name.to_ascii_lowercase())
        .ok_or_else(|| format!("the case asks for {name:?}, which we do not know"))?;
    require(name, expected, &actual)
}

/// An option under its lower-case name as the published files would write it.
///
/// Spelt out instead of borrowed from the code under test, which would agree with itself.
fn option(options: &Options, name: &str) -> Option<Value> {
    Some(match name {
        "appname" => json!(options.app_name),
        "authmechanism" => json!(options.auth_mechanism.map(|mechanism| mechanism.name())),
        "authmechanismproperties" => match &options.auth_mechanism_properties {
            Some(properties) => {
                properties.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect()
            }
            None => Value::Null,
        },
        "authsource" => json!(options.auth_source),
        "compressors" => json!(options.compressors.as_ref().map(|compressors| {
            compressors.iter().map(|compressor| compressor.name()).collect::<Vec<_>>()
        })),
        "directconnection" => json!(options.direct_connection),
        "enableoverloadretargeting" => json!(options.enable_overload_retargeting),
        "journal" => json!(options.journal),
        "loadbalanced" => json!(options.load_balanced),
        "readconcernlevel" => json!(options.read_concern_level),
        "readpreference" => json!(options.read_preference.map(|mode| mode.name())),
        "readpreferencetags" => options
            .read_preference_tags
            .iter()
            .map(|tags| tags.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect())
            .collect::<Vec<Value>>()
            .into(),
        "replicaset" => json!(options.replica_set),
        "retryreads" => json!(options.retry_reads),
        "retrywrites" => json!(options.retry_writes),
        "servermonitoringmode" => json!(options.server_monitoring_mode.map(|mode| mode.name())),
        "serverselectiontryonce" => json!(options.server_selection_try_once),
        "srvservicename" => json!(options.srv_service_name),
        "w" => match &options.w {
            Some(WriteAcknowledgement::Members(members)) => json!(members),
            Some(WriteAcknowledgement::Majority) => json!("majority"),
            Some(WriteAcknowledgement::Custom(rule)) => json!(rule),
            None => Value::Null,
        },
        _ => return tls_option(options, name).or_else(|| number_option(options, name)),
    })
}

fn tls_option(options: &Options, name: &str) -> Option<Value> {
    Some(match name {
        "tls" | "ssl" => json!(options.tls),
        "tlsallowinvalidcertificates" => json!(options.tls_allow_invalid_certificates),
        "tlsallowinvalidhostnames" => json!(options.tls_allow_invalid_hostnames),
        "tlscafile" => json!(options.tls_ca_file),
        "tlscertificatekeyfile" => json!(options.tls_certificate_key_file),
        "tlscertificatekeyfilepassword" => {
            let password = options.tls_certificate_key_file_password.as_ref();
            json!(password.map(|password| password.expose()))
        }
        "tlsdisablecertificaterevocationcheck" => {
            json!(options.tls_disable_certificate_revocation_check)
        }
        "tlsdisableocspendpointcheck" => json!(options.tls_disable_ocsp_endpoint_check),
        "tlsinsecure" => json!(options.tls_insecure),
        _ => return None,
    })
}

fn number_option(options: &Options, name: &str) -> Option<Value> {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let limit =
        |limit: Option<Limit<Duration>>| json!(limit.map(|limit| limit.bound().map_or(0, millis)));
    Some(match name {
        "connecttimeoutms" => limit(options.connect_timeout),
        "heartbeatfrequencyms" => json!(options.heartbeat_frequency.map(millis)),
        "localthresholdms" => json!(options.local_threshold.map(millis)),
        "maxadaptiveretries" => json!(options.max_adaptive_retries),
        "maxconnecting" => json!(options.max_connecting),
        "maxidletimems" => limit(options.max_idle_time),
        "maxpoolsize" => {
            json!(options.max_pool_size.map(|size| size.bound().map_or(0, |size| size.get())))
        }
        "maxstalenessseconds" => json!(
            options
                .max_staleness
                .map(|limit| limit.bound().map_or(-1, |bound| bound.as_secs() as i64))
        ),
        "minpoolsize" => json!(options.min_pool_size),
        "serverselectiontimeoutms" => json!(options.server_selection_timeout.map(millis)),
        "sockettimeoutms" => limit(options.socket_timeout),
        "srvmaxhosts" => {
            json!(options.srv_max_hosts.map(|hosts| hosts.bound().map_or(0, |hosts| hosts.get())))
        }
        "timeoutms" => limit(options.timeout),
        "waitqueuetimeoutms" => json!(options.wait_queue_timeout.map(millis)),
        "wtimeoutms" => limit(options.w_timeout),
        "zlibcompressionlevel" => json!(options.zlib_compression_level),
        _ => return None,
    })
}

/// Null asks for nothing.
pub(crate) fn require(what: &str, expected: &Value, actual: &Value) -> Result<()> {
    ensure(expected.is_null() || expected == actual, || {
        format!("{what} should be {expected}, is {actual}")
    })
}

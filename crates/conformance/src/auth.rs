//! The suite of the specification "Authentication" for connection strings: which credential a string
//! stands for.
//!
//! The cases speak of clients, which need a complete credential. A credential that is incomplete as
//! long as nothing is added to it therefore counts as refused.

use quorate_connection_string::{ConnectionString, Credential};
use serde_json::{Value, json};

use crate::uri::{check_cases, read_case};
use crate::{Result, ScenarioFile, ensure};

/// Judges one file.
pub(crate) fn check(file: &ScenarioFile) -> Result<()> {
    check_cases(file, check_case)
}

fn check_case(case: &Value) -> Result<()> {
    let Some(credential) = read_case(case, read)? else { return Ok(()) };
    let actual = credential.as_ref().map_or(Value::Null, describe);
    ensure(actual == case["credential"], || {
        format!("the credential should be {}, is {actual}", case["credential"])
    })
}

fn read(uri: &str) -> Result<Option<Credential>> {
    let connection = ConnectionString::parse(uri)?;
    if let Some(credential) = connection.credential() {
        credential.check_complete()?;
    }
    Ok(connection.credential().cloned())
}

fn describe(credential: &Credential) -> Value {
    let properties: Value = if credential.properties.is_empty() {
        Value::Null
    } else {
        credential.properties.iter().map(|(name, value)| (name.to_owned(), json!(value))).collect()
    };
    json!({
        "username": credential.user_name,
        "password": credential.password.as_ref().map(|password| password.expose()),
        "source": credential.source,
        "mechanism": credential.mechanism.map(|mechanism| mechanism.name()),
        "mechanism_properties": properties,
    })
}

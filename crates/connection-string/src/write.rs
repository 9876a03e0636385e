//! From values back to text. Reading the text again gives the same values.

use crate::definitions::DEFINITIONS;
use crate::percent;
use crate::secret::REDACTED;
use crate::{ConnectionString, Seeds};

/// Whether secrets are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrets {
    Shown,
    Redacted,
}

pub(crate) fn connection_string(value: &ConnectionString, secrets: Secrets) -> String {
    let mut text = String::from(match value.seeds() {
        Seeds::Hosts(_) => "mongodb://",
        Seeds::Srv(_) => "mongodb+srv://",
    });
    if let Some(info) = value.user_info() {
        text.push_str(&percent::encode(&info.user_name, ""));
        if let Some(password) = &info.password {
            text.push(':');
            match secrets {
                Secrets::Shown => text.push_str(&percent::encode(password.expose(), "")),
                Secrets::Redacted => text.push_str(REDACTED),
            }
        }
        text.push('@');
    }
    match value.seeds() {
        Seeds::Srv(hostname) => text.push_str(&percent::encode(hostname, "")),
        Seeds::Hosts(hosts) => {
            let hosts: Vec<String> =
                hosts.iter().map(|host| percent::encode(host.as_str(), "[]:")).collect();
            text.push_str(&hosts.join(","));
        }
    }
    let options = options(value, secrets);
    if value.default_database().is_some() || !options.is_empty() {
        text.push('/');
    }
    text.push_str(&percent::encode(value.default_database().unwrap_or_default(), ""));
    if !options.is_empty() {
        text.push('?');
        text.push_str(&options.join("&"));
    }
    text
}

fn options(value: &ConnectionString, secrets: Secrets) -> Vec<String> {
    let mut pairs = Vec::new();
    for definition in DEFINITIONS {
        for shown in (definition.write)(value.options()) {
            let properties = &value.options().auth_mechanism_properties;
            let text = match (secrets, properties) {
                (Secrets::Redacted, _) if definition.secret => REDACTED.to_owned(),
                (Secrets::Redacted, Some(properties))
                    if definition.name == "authMechanismProperties" =>
                {
                    properties.redacted()
                }
                _ => shown,
            };
            pairs.push(format!("{}={}", definition.name, percent::encode(&text, ":,/$@*")));
        }
    }
    pairs
}

//! From text to values: the steps of "Reference Implementation" in the specification "Connection
//! String".
//!
//! User information is taken more leniently than RFC 3986 would have it (the specification allows
//! that for the sake of strings already in use): only the characters that make a string ambiguous,
//! white space and control characters must be percent-encoded. Options are delimited by `&` alone;
//! the legacy `;` is an ordinary character.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use quorate_protocol::{AddressError, DEFAULT_PORT, MAX_HOST_LENGTH, ServerAddress};

use crate::codec::Notes;
use crate::conflicts::{self, SeedKind};
use crate::credential::{MechanismProperties, UserInfo};
use crate::definitions::{self, ALIASES, Definition, Rejection};
use crate::error::{MAX_SET_MEMBERS, ParseError, Part, Warning};
use crate::options::Options;
use crate::percent::{self, DecodeError};
use crate::secret::Secret;
use crate::{ConnectionString, MAX_LENGTH, MAX_SEEDS, Seeds};

const SCHEME: &str = "mongodb://";
const SRV_SCHEME: &str = "mongodb+srv://";

/// The deprecated spelling of the `SERVICE_NAME` property.
const GSSAPI_SERVICE_NAME: &str = "gssapiServiceName";

pub(crate) fn connection_string(text: &str) -> Result<ConnectionString, ParseError> {
    if text.len() > MAX_LENGTH {
        return Err(ParseError::TooLong(text.len()));
    }
    let (srv, rest) = match (text.strip_prefix(SCHEME), text.strip_prefix(SRV_SCHEME)) {
        (Some(rest), _) => (false, rest),
        (None, Some(rest)) => (true, rest),
        (None, None) => return Err(ParseError::BadScheme),
    };
    let (authority, after) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (database_text, options_text) = match after.split_once('?') {
        Some((database, options)) => (database, options),
        None => (after, ""),
    };
    let (user_info_text, hosts_text) = match authority.rsplit_once('@') {
        Some((user_info, hosts)) => (Some(user_info), hosts),
        None => (None, authority),
    };
    // An at-sign this late belongs to a password with a slash in it, or so it must be feared: the
    // text before it would otherwise be taken for a host, and shown or even resolved.
    if database_text.contains('@') {
        return Err(ParseError::UserInfoNotEncoded);
    }

    let user_info = user_info_text.map(user_info).transpose()?;
    let seeds = seeds(srv, hosts_text).map_err(|error| match error {
        // The same fear, for a question mark.
        ParseError::BadHost(_) | ParseError::BadPort(_) if after.contains('@') => {
            ParseError::UserInfoNotEncoded
        }
        error => error,
    })?;
    let default_database = database(database_text.strip_prefix('/').unwrap_or(database_text))?;

    let mut reader = OptionReader::default();
    reader.read(options_text)?;
    let kind = match &seeds {
        Seeds::Hosts(hosts) => SeedKind::Hosts(hosts.len()),
        Seeds::Srv(_) => SeedKind::Srv,
    };
    conflicts::check_presence(&reader.given, kind)?;
    let OptionReader { options, mut warnings, .. } = reader;
    if let SeedKind::Hosts(count) = kind
        && count > MAX_SET_MEMBERS
    {
        warnings.push(Warning::ManyHosts(count));
    }
    ConnectionString::assemble(seeds, user_info, default_database, options, warnings)
}

fn user_info(text: &str) -> Result<UserInfo, ParseError> {
    let (user_name, password) = match text.split_once(':') {
        Some((user_name, password)) => (user_name, Some(password)),
        None => (text, None),
    };
    let ambiguous = |c: char| matches!(c, '@' | ':') || c.is_whitespace() || c.is_control();
    if user_name.contains(ambiguous) || password.is_some_and(|text| text.contains(ambiguous)) {
        return Err(ParseError::UserInfoNotEncoded);
    }
    if user_name.is_empty() {
        return Err(ParseError::EmptyUserName);
    }
    Ok(UserInfo {
        user_name: decode(user_name, Part::UserInfo)?,
        password: password.map(|text| decode(text, Part::UserInfo).map(Secret::new)).transpose()?,
    })
}

fn seeds(srv: bool, text: &str) -> Result<Seeds, ParseError> {
    if text.is_empty() {
        return Err(ParseError::MissingHost);
    }
    let count = text.split(',').count();
    if srv {
        if count > 1 {
            return Err(ParseError::SrvWithSeveralHosts);
        }
        return Ok(Seeds::Srv(srv_hostname(&decode(text, Part::Host)?)?));
    }
    if count > MAX_SEEDS {
        return Err(ParseError::TooManyHosts(count));
    }
    text.split(',').map(host).collect::<Result<_, _>>().map(Seeds::Hosts)
}

fn host(text: &str) -> Result<ServerAddress, ParseError> {
    let host = decode(text, Part::Host)?;
    let address = if host.contains('/') {
        ServerAddress::unix(&host)
    } else if host.ends_with(".sock") {
        // Without a slash it is a name under the (imaginary) top-level domain "sock".
        ServerAddress::tcp(&host, DEFAULT_PORT)
    } else {
        host.parse()
    };
    // The default port makes a text longer, and what is written must be short enough to be read.
    let address = address.and_then(|address: ServerAddress| match address.as_str().len() {
        length if length > MAX_HOST_LENGTH => Err(AddressError::TooLong(length)),
        _ => Ok(address),
    });
    address.map_err(|error| match host.split_once(':') {
        Some((name, _)) if !name.is_empty() && !name.contains('[') => {
            ParseError::BadPort(name.to_owned())
        }
        _ => ParseError::BadHost(error),
    })
}

/// The name to ask DNS about: lower-case, without a dot at its end.
fn srv_hostname(host: &str) -> Result<String, ParseError> {
    let is_address = host.contains(['/', '[']) || host.parse::<Ipv4Addr>().is_ok();
    if is_address {
        return Err(ParseError::SrvNotAName);
    }
    if host.contains(':') {
        return Err(ParseError::SrvWithPort);
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    if name.split('.').any(str::is_empty) {
        return Err(ParseError::BadHost(AddressError::Empty));
    }
    Ok(ServerAddress::tcp(name, DEFAULT_PORT)?.host().to_owned())
}

fn database(text: &str) -> Result<Option<String>, ParseError> {
    if text.is_empty() {
        return Ok(None);
    }
    let name = decode(text, Part::Database)?;
    match name.chars().find(|c| matches!(c, '/' | '\\' | ' ' | '"' | '$' | '\0')) {
        Some(bad) => Err(ParseError::BadDatabase(bad)),
        None => Ok(Some(name)),
    }
}

/// Splits `name=value&name=value`. Values come out decoded, names as they are.
pub(crate) fn split_options(
    text: &str,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<(String, String)>, ParseError> {
    let mut pairs = Vec::new();
    if text.is_empty() {
        return Ok(pairs);
    }
    for pair in text.split('&') {
        if pair.is_empty() {
            warnings.push(Warning::EmptyOption);
            continue;
        }
        match pair.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                pairs.push((name.to_owned(), decode(value, Part::Options)?));
            }
            // Perhaps the end of a password with a question mark in it: not to be repeated.
            _ if pair.contains('@') => return Err(ParseError::UserInfoNotEncoded),
            _ => return Err(ParseError::IncompleteOption(pair.to_owned())),
        }
    }
    Ok(pairs)
}

/// Collects options one by one.
#[derive(Default)]
pub(crate) struct OptionReader {
    pub(crate) options: Options,
    pub(crate) warnings: Vec<Warning>,
    /// The options that appeared, valid or not, under their present names.
    given: BTreeSet<&'static str>,
}

impl OptionReader {
    fn read(&mut self, text: &str) -> Result<(), ParseError> {
        let pairs = split_options(text, &mut self.warnings)?;
        let names: BTreeSet<String> =
            pairs.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        let mut aliases_given = BTreeSet::new();
        let mut service_name = None;
        for (name, value) in &pairs {
            if let Some(definition) = definitions::find(name) {
                if !self.given.insert(definition.name) && !definition.list {
                    // `tls` after `ssl` is no repetition, the specification says.
                    let spelt_twice = !aliases_given.contains(definition.name);
                    if spelt_twice {
                        self.warnings.push(Warning::RepeatedOption(definition.name));
                    }
                }
                self.read_value(definition, value)?;
            } else if let Some(alias) =
                ALIASES.iter().find(|alias| alias.name.eq_ignore_ascii_case(name))
            {
                let (option, replacement) = (alias.name, alias.replacement);
                if alias.deprecated && names.contains(&replacement.to_ascii_lowercase()) {
                    self.warnings.push(Warning::ReplacedOption { option, replacement });
                    continue;
                }
                if alias.deprecated {
                    self.warnings.push(Warning::DeprecatedOption { option, replacement });
                }
                if !aliases_given.insert(replacement) {
                    self.warnings.push(Warning::RepeatedOption(option));
                }
                if let Some(definition) = definitions::find(replacement) {
                    self.given.insert(definition.name);
                    self.read_value(definition, value)?;
                }
            } else if GSSAPI_SERVICE_NAME.eq_ignore_ascii_case(name) {
                service_name = Some(value.as_str());
            } else {
                self.warnings.push(Warning::UnknownOption(name.clone()));
            }
        }
        if let Some(service_name) = service_name {
            self.add_service_name(service_name);
        }
        Ok(())
    }

    pub(crate) fn read_value(
        &mut self,
        definition: &'static Definition,
        value: &str,
    ) -> Result<(), ParseError> {
        let tls_before = self.options.tls;
        let mut notes = Notes { option: definition.name, warnings: &mut self.warnings };
        match (definition.read)(&mut self.options, value, &mut notes) {
            Ok(()) => {}
            Err(Rejection::Refuse(error)) => return Err(error),
            Err(Rejection::Ignore(expected)) => {
                // Properties may hold a session token.
                let hidden = definition.secret || definition.name == "authMechanismProperties";
                self.warnings.push(Warning::InvalidValue {
                    option: definition.name,
                    value: (!hidden).then(|| value.to_owned()),
                    expected,
                });
            }
        }
        if tls_before.is_some() && tls_before != self.options.tls {
            return Err(ParseError::ContradictoryTls);
        }
        Ok(())
    }

    fn add_service_name(&mut self, service_name: &str) {
        const PROPERTY: &str = "SERVICE_NAME";
        let (option, replacement) = (GSSAPI_SERVICE_NAME, "authMechanismProperties=SERVICE_NAME:…");
        let properties =
            self.options.auth_mechanism_properties.get_or_insert_with(MechanismProperties::default);
        if properties.get(PROPERTY).is_some() {
            self.warnings.push(Warning::ReplacedOption { option, replacement });
        } else {
            properties.set_default(PROPERTY, service_name);
            self.warnings.push(Warning::DeprecatedOption { option, replacement });
        }
    }
}

fn decode(text: &str, part: Part) -> Result<String, ParseError> {
    percent::decode(text).map_err(|error| match (error, part) {
        (DecodeError::BadEscape, part) => ParseError::BadEscape(part),
        (DecodeError::NotUtf8, part) => ParseError::NotUtf8(part),
    })
}

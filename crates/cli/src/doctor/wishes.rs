//! Findings about what the connection string asks for and the deployment cannot give: a placeholder
//! in place of a password, more acknowledgements than members, a rule that no configuration has.

use quorate_connection_string::{ConnectionString, WriteAcknowledgement};
use quorate_protocol::Counted;
use quorate_server_discovery::TopologyType;

use super::examination::Examination;
use super::inside::Inside;
use crate::finding::{Finding, Stops};
use crate::words::{Foreign, listed};

/// A part of a template that was not filled in.
pub(super) fn placeholder(uri: &ConnectionString) -> Option<Finding> {
    let credential = uri.credential()?;
    let is_template = |text: &str| text.len() > 2 && text.starts_with('<') && text.ends_with('>');
    let password = credential.password.as_ref().is_some_and(|secret| is_template(secret.expose()));
    let user = credential.user_name.as_deref().is_some_and(is_template);
    let what = match (user, password) {
        (false, false) => return None,
        (true, true) => "the user and the password are",
        (true, false) => "the user is",
        (false, true) => "the password is",
    };
    Some(
        finding!(problem "placeholder", "{what} still the <…> of a template")
            .because("the login fails with it; the angle brackets are part of the template as well")
            .fix("write the real one in its place, without < and >; @ : / % are percent-encoded")
            .stopping(Stops::Everything),
    )
}

/// Everything that is wished and cannot be had.
pub(super) fn findings(seen: &Examination, inside: Option<&Inside>) -> Vec<Finding> {
    write_concern(seen, inside).into_iter().collect()
}

fn write_concern(seen: &Examination, inside: Option<&Inside>) -> Option<Finding> {
    let is_set = matches!(
        seen.topology.topology_type(),
        TopologyType::ReplicaSetWithPrimary | TopologyType::ReplicaSetNoPrimary
    );
    match seen.uri.options().w.as_ref()? {
        WriteAcknowledgement::Members(wanted) if is_set => {
            let data = data_members(seen, inside)?;
            (*wanted as usize > data).then(|| too_many(*wanted, data))
        }
        WriteAcknowledgement::Custom(name) if is_set => {
            let known = inside?.write_modes.as_ref()?;
            (!known.contains(name)).then(|| unknown_mode(name, known))
        }
        _ => None,
    }
}

/// How many members hold data, hidden ones included where the configuration could be read.
fn data_members(seen: &Examination, inside: Option<&Inside>) -> Option<usize> {
    let configured = inside.and_then(|inside| inside.settings.as_ref());
    if let Some(settings) = configured {
        return Some(settings.members.values().filter(|member| !member.arbiter_only).count());
    }
    let lists = seen.answers().map(|(_, answer)| &answer.reply);
    lists.map(|reply| reply.hosts.len() + reply.passives.len()).max().filter(|count| *count > 0)
}

fn too_many(wanted: u32, data: usize) -> Finding {
    finding!(problem "write_concern_too_high",
        "w={wanted} is wanted, and {} hold data", Counted(data, "member"))
    .because("every write is made and never acknowledged: it fails or waits for wTimeoutMS")
    .fix("write w=majority in the connection string, or leave w out")
    .stopping(Stops::Writes)
}

fn unknown_mode(name: &str, known: &[String]) -> Finding {
    let known = match known.is_empty() {
        true => "it has none".to_owned(),
        false => format!("it has {}", listed(known.iter().map(Foreign))),
    };
    finding!(problem "write_concern_unknown",
        "w={} is wanted, and the configuration has no such rule; {known}", Foreign(name))
    .because("every write fails with UnknownReplWriteConcern (79)")
    .fix("write w=majority in the connection string, or leave w out")
    .fix("add the rule to settings.getLastErrorModes of the configuration")
    .stopping(Stops::Writes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_recognised_and_a_strange_password_is_not() {
        let of = |text: &str| placeholder(&ConnectionString::parse(text).unwrap());
        for text in [
            "mongodb://ada:%3Cpassword%3E@h/",
            "mongodb://ada:<db_password>@h/",
            "mongodb://%3Cuser%3E:x@h/",
        ] {
            assert!(of(text).is_some(), "{text}");
        }
        for text in ["mongodb://h/", "mongodb://ada:p%3C@h/", "mongodb://ada:%3C%3E@h/"] {
            assert!(of(text).is_none(), "{text}");
        }
    }
}

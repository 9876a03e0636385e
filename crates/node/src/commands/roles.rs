//! `rolesInfo`, and the details that `usersInfo` shares with it.

use bson::{Bson, Document, doc};

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::{Fields, whole_number};
use crate::users::{Role, privileges};

pub(super) fn roles_info(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let fields = Fields::new(&command.body, "rolesInfo");
    let one = |value: &Bson| Role::asked(value, request.database);
    let asked = match command.body.get("rolesInfo") {
        Some(Bson::Array(several)) => several.iter().map(one).collect(),
        Some(number) if whole_number(number) == Some(1) => {
            // There are none but the built-in ones.
            let built_in = fields.flag("showBuiltinRoles")?;
            Some(if built_in { Role::built_in(request.database) } else { Vec::new() })
        }
        Some(single) => one(single).map(|role| vec![role]),
        None => None,
    };
    let asked: Vec<Role> = asked.ok_or_else(|| {
        fail!(
            BAD_VALUE,
            "rolesInfo takes a name, {{role, db}} without other fields, a list of them, or 1"
        )
    })?;
    let details = Details::read(&fields)?;
    let shown = asked.into_iter().filter(Role::exists).map(|role| {
        let mut shown = role.to_document();
        // None of them gets its rights from another.
        shown.extend(doc! { "isBuiltin": true, "roles": [], "inheritedRoles": [] });
        if details.privileges {
            shown.insert("privileges", privileges(std::slice::from_ref(&role)));
        }
        if details.restrictions {
            shown.insert("authenticationRestrictions", Bson::Array(Vec::new()));
        }
        details.append(&mut shown, std::slice::from_ref(&role));
        Bson::from(shown)
    });
    reply(&doc! { "roles": shown.collect::<Vec<_>>(), "ok": 1.0 })
}

/// What is told of a role or a user besides its name. There are no restrictions of authentication.
pub(super) struct Details {
    privileges: bool,
    restrictions: bool,
}

impl Details {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self {
            privileges: fields.flag("showPrivileges")?,
            restrictions: fields.flag("showAuthenticationRestrictions")?,
        })
    }

    /// Whether anything is.
    pub(super) fn any(&self) -> bool {
        self.privileges || self.restrictions
    }

    /// Adds what comes from these roles.
    pub(super) fn append(&self, shown: &mut Document, roles: &[Role]) {
        if self.privileges {
            shown.insert("inheritedPrivileges", privileges(roles));
        }
        if self.any() {
            shown.insert("inheritedAuthenticationRestrictions", Bson::Array(Vec::new()));
        }
    }
}

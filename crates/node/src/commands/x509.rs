//! `authenticate`: logging in with the certificate that the connection has shown already.
//!
//! Specification: `auth/auth.md` under "MONGODB-X509". The user is one of `$external`, named like the
//! subject of its certificate, unless the certificate is that of another member of the set.

use bson::{Document, doc};

use super::common::reply;
use crate::context::{Command, Outcome};
use crate::dispatch::Request;
use crate::error::Result;
use crate::fields::Fields;
use crate::users::{EXTERNAL, LoggedIn, failed, find_user};

const MECHANISM: &str = "MONGODB-X509";

pub(super) fn authenticate(request: &Request<'_>, command: Command) -> Result<Outcome> {
    let mut answer = log_in(request, &command.body.to_document(), request.database)?;
    answer.insert("ok", 1.0);
    reply(&answer)
}

/// Logs the connection in as the holder of its certificate.
pub(super) fn log_in(request: &Request<'_>, body: &Document, database: &str) -> Result<Document> {
    let fields = Fields::new(body, "authenticate");
    let mechanism = fields.required_string("mechanism")?;
    refuse_if!(mechanism != MECHANISM => MECHANISM_UNAVAILABLE,
        "authenticate takes {MECHANISM} only, not '{mechanism}'; use saslStart");
    refuse_if!(database != EXTERNAL => PROTOCOL_ERROR,
        "{MECHANISM} is always used with the {EXTERNAL} database");
    let client = &request.context.client;
    let Some(certificate) = &client.certificate else {
        refuse!(
            AUTHENTICATION_FAILED,
            "the connection has shown no certificate that is trusted here; give the client one \
             with tlsCertificateKeyFile, and the server its authority with --tls-ca"
        );
    };
    let subject = certificate.subject.as_str();
    refuse_if!(fields.string("user")?.is_some_and(|user| user != subject) => AUTHENTICATION_FAILED,
        "the user must be the subject of the certificate, {subject}");
    let (who, id) = if certificate.is_member {
        (LoggedIn::member(), None)
    } else {
        let user = find_user(request.node, EXTERNAL, subject)?.ok_or_else(failed)?;
        (LoggedIn { name: subject.to_owned(), database: EXTERNAL.to_owned() }, user.id())
    };
    client.login.state().complete(who, id);
    Ok(doc! { "dbname": EXTERNAL, "user": subject })
}

//! How a server knows whom it talks to: TLS for everybody, and what makes another server a member.

use std::sync::Arc;

use quorate_certificates::Subject;
use quorate_node::Certificate;

use crate::tls::Tls;

/// What connections in both directions are secured with.
#[derive(Default)]
pub(crate) struct Security {
    pub(crate) tls: Option<Arc<Tls>>,
    /// Whether a certificate of the own organisation makes its holder a member.
    pub(crate) members_by_certificate: bool,
}

impl Security {
    /// What a client's certificate, which was vouched for, means here.
    pub(crate) fn certificate(&self, subject: &Subject) -> Certificate {
        let own = self.tls.as_ref().filter(|_| self.members_by_certificate);
        let is_member = own.is_some_and(|tls| tls.subject().is_of_same_organisation(subject));
        Certificate { subject: subject.to_string(), is_member }
    }
}

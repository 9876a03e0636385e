//! One replica set of the fleet, as its hellos show it.

use std::sync::Arc;

use quorate_protocol::{
    ElectionId, HelloReply, ObjectId, ServerAddress, SetVersion, TopologyVersion, WireVersionRange,
};

pub(crate) const MEMBERS: usize = 3;

/// The members of one deployment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deployment {
    number: u32,
    pub(crate) is_up: [bool; MEMBERS],
    /// Rises with everything that a member says anew.
    pub(crate) counter: [i64; MEMBERS],
    pub(crate) primary: Option<usize>,
    term: i64,
}

pub(crate) fn address_of(deployment: u32, member: usize) -> ServerAddress {
    format!("m{member}.d{deployment}.example:27017").parse().unwrap()
}

/// The place of a member in its deployment.
pub(crate) fn member_at(address: &ServerAddress) -> Option<usize> {
    let digit = address.host().as_bytes().get(1)?;
    Some(usize::from(digit - b'0'))
}

impl Deployment {
    pub(crate) fn new(number: u32) -> Self {
        // The primaries are spread over the three sites.
        let primary = Some(number as usize % MEMBERS);
        Self { number, is_up: [true; MEMBERS], counter: [1; MEMBERS], primary, term: 1 }
    }

    /// A member ends.
    pub(crate) fn end(&mut self, member: usize) {
        self.is_up[member] = false;
        if self.primary == Some(member) {
            self.primary = None;
        }
    }

    /// The next member that runs leads.
    pub(crate) fn elect(&mut self) {
        self.term += 1;
        self.primary = (0..MEMBERS).find(|member| self.is_up[*member]);
        for counter in &mut self.counter {
            *counter += 1;
        }
    }

    pub(crate) fn reply(&self, member: usize) -> Arc<HelloReply> {
        let leads = self.primary == Some(member);
        let mut process = [0; 12];
        process[..4].copy_from_slice(&self.number.to_be_bytes());
        process[11] = member as u8;
        let version = TopologyVersion {
            process_id: ObjectId::from_bytes(process),
            counter: self.counter[member],
        };
        Arc::new(HelloReply {
            ok: true,
            hello_ok: true,
            is_writable_primary: leads,
            secondary: !leads,
            set_name: Some(format!("d{}", self.number)),
            set_version: Some(SetVersion(1)),
            election_id: leads.then(|| ElectionId::from_term(self.term)),
            hosts: (0..MEMBERS).map(|member| address_of(self.number, member)).collect(),
            primary: self.primary.map(|primary| address_of(self.number, primary)),
            me: Some(address_of(self.number, member)),
            wire_versions: WireVersionRange { min: 0, max: 21 },
            logical_session_timeout_minutes: Some(30),
            topology_version: Some(version),
            ..HelloReply::default()
        })
    }
}

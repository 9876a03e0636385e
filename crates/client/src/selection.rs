//! Choosing the server of an operation, and waiting for one.
//!
//! Follows "Multi-threaded or asynchronous server selection" in the Server Selection specification
//! and its log messages. Which servers are suitable is decided by the discovery core.

use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{ReadPreference, ServerAddress};
use quorate_server_discovery::{
    Input, SelectionFailure, SelectionRequest, ServerType, TopologyDescription,
};
use tokio::time::{Instant, timeout_at};

use crate::client::Inner;
use crate::command_event::OperationId;
use crate::discovery::Selected;
use crate::error::{Error, ErrorKind};
use crate::logging::{self, SelectionStep};
use crate::operation::{Operation, Target};

/// The least `maxWireVersion` (MongoDB 5.0) whose secondaries run pipelines that write.
const WRITING_SECONDARY_WIRE_VERSION: i32 = 13;

static PRIMARY: ReadPreference = ReadPreference::PRIMARY;

impl Inner {
    /// Selects a server, waiting for one for `serverSelectionTimeoutMS`. A transaction that is pinned
    /// to a router goes there.
    pub(crate) async fn select(
        &self,
        operation: &Operation<'_>,
        id: OperationId,
        deprioritized: &[ServerAddress],
        pinned: Option<ServerAddress>,
    ) -> Result<Selected, Error> {
        if let Some(router) = pinned {
            return self.find(&router);
        }
        if let Target::Server(address) = &operation.target {
            return self.find(address);
        }
        let mut told = Choice { client: self, operation, id, begun: None };
        told.log(SelectionStep::Started);
        let mut revisions = None;
        loop {
            let view = self.discovery.view();
            let description = view.description();
            let request =
                SelectionRequest { deprioritized, ..request(&operation.target, description) };
            let counts = |address: &ServerAddress| self.discovery.operation_count(address);
            let server = description
                .select_with(&request, || self.random_bits(), counts)
                .map_err(|error| told.failed(Error::new(ErrorKind::ImpossibleSelection(error))))?;
            if let Some(server) = server
                && let Some(selected) = self.discovery.selected(&view, server)
            {
                told.log(SelectionStep::Succeeded(server.address()));
                let waited = told.begun.map(|begun| begun.elapsed());
                self.discovery.counters().selection_ended(waited, true);
                return Ok(selected);
            }
            if self.discovery.is_closed() {
                return Err(told.failed(Error::new(ErrorKind::Closed)));
            }
            let Some(revisions) = &mut revisions else {
                // Once more with the subscription in place: nothing is missed in between.
                revisions = Some(self.discovery.subscribe());
                continue;
            };
            let limit = self.options.server_selection_timeout;
            if told.begun.is_none() {
                told.log(SelectionStep::Waiting(limit));
            }
            let begun = *told.begun.get_or_insert_with(Instant::now);
            self.discovery.handle(Input::CheckWanted);
            if !matches!(timeout_at(begun + limit, revisions.changed()).await, Ok(Ok(()))) {
                let now = self.discovery.clock().now();
                let failure =
                    SelectionFailure::new(Arc::clone(description), &request, now, begun.elapsed());
                return Err(told.failed(Error::new(ErrorKind::Selection(failure))));
            }
        }
    }

    /// The server that holds a cursor, whatever it is now: no other server can go on.
    fn find(&self, address: &ServerAddress) -> Result<Selected, Error> {
        let view = self.discovery.view();
        let server = view.description().server(address);
        server
            .and_then(|server| self.discovery.selected(&view, server))
            .ok_or_else(|| Error::new(ErrorKind::ServerGone(address.clone())))
    }
}

fn request<'a>(target: &'a Target, description: &TopologyDescription) -> SelectionRequest<'a> {
    match target {
        Target::Read(preference) => SelectionRequest::read(preference),
        Target::WritingPipeline(preference) if secondaries_write(description) => {
            SelectionRequest::read(preference)
        }
        Target::WritingPipeline(_) => SelectionRequest::read(&PRIMARY),
        Target::Write | Target::Server(_) => SelectionRequest::WRITE,
    }
}

/// Whether every server that is known can be sent a pipeline that writes.
fn secondaries_write(description: &TopologyDescription) -> bool {
    let known = |kind| !matches!(kind, ServerType::Unknown | ServerType::PossiblePrimary);
    let mut servers = description.servers().iter().filter(|server| known(server.server_type()));
    servers.all(|server| server.wire_versions().max >= WRITING_SECONDARY_WIRE_VERSION)
}

/// What the messages about one choice have in common.
struct Choice<'a> {
    client: &'a Inner,
    operation: &'a Operation<'a>,
    id: OperationId,
    /// When it found that it has to wait: most choices read no clock.
    begun: Option<Instant>,
}

impl Choice<'_> {
    fn log(&self, step: SelectionStep<'_>) {
        let Self { client, operation, id, .. } = self;
        logging::selection(&client.discovery, operation, *id, step);
    }

    fn waited(&self) -> Duration {
        self.begun.map(|begun| begun.elapsed()).unwrap_or_default()
    }

    fn failed(&self, error: Error) -> Error {
        self.log(SelectionStep::Failed(&error));
        self.client.discovery.counters().selection_ended(Some(self.waited()), false);
        error
    }
}

//! Choosing the server of an operation, and waiting for one.
//!
//! Follows "Multi-threaded or asynchronous server selection" in the Server Selection specification
//! and its log messages. Which servers are suitable is decided by the discovery core.

use std::sync::Arc;
use std::time::Duration;

use quorate_protocol::{ReadPreference, ReadPreferenceMode, ServerAddress};
use quorate_server_discovery::{
    Input, SelectionFailure, SelectionRequest, ServerType, TopologyDescription,
};
use tokio::time::{Instant, timeout_at};

use crate::client::Inner;
use crate::command_event::OperationId;
use crate::discovery::{Selected, View, Way};
use crate::error::{Error, ErrorKind};
use crate::logging::{self, SelectionStep};
use crate::operation::{Operation, Target};

/// The least `maxWireVersion` (MongoDB 5.0) whose secondaries run pipelines that write.
const WRITING_SECONDARY_WIRE_VERSION: i32 = 13;

static PRIMARY: ReadPreference = ReadPreference::PRIMARY;

/// What the first look at the deployment found.
pub(crate) enum Chosen<'a> {
    /// The server.
    Server(Selected),
    /// Nothing suitable yet.
    None(Choice<'a>),
}

impl Inner {
    /// Selects a server if one is suitable now. A transaction that is pinned to a router goes there.
    pub(crate) fn select_at_once<'a>(
        &'a self,
        operation: &'a Operation<'a>,
        id: OperationId,
        deprioritized: &[ServerAddress],
        pinned: Option<ServerAddress>,
    ) -> Result<Chosen<'a>, Error> {
        if let Some(router) = pinned {
            return self.find(&router).map(Chosen::Server);
        }
        if let Target::Server(address) = &operation.target {
            return self.find(address).map(Chosen::Server);
        }
        let choice = Choice { client: self, operation, id, begun: None };
        choice.log(SelectionStep::Started);
        Ok(match choice.look(self.discovery.view(), deprioritized)? {
            Ok(selected) => Chosen::Server(selected),
            Err(_) => Chosen::None(choice),
        })
    }

    /// The server that holds a cursor, whatever it is now: no other server can go on.
    fn find(&self, address: &ServerAddress) -> Result<Selected, Error> {
        let gone = || Error::new(ErrorKind::ServerGone(address.clone()));
        let view = self.discovery.view();
        let server = view.description().server(address).ok_or_else(gone)?;
        let way = self.discovery.way_to(&view, server).ok_or_else(gone)?;
        Ok(Selected::new(view, way))
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

/// Whether an operation goes to the primary and nowhere else.
fn wants_primary(target: &Target) -> bool {
    match target {
        Target::Write => true,
        Target::Read(preference) | Target::WritingPipeline(preference) => {
            preference.mode == ReadPreferenceMode::Primary
                && preference.tag_sets.is_empty()
                && preference.max_staleness.is_none()
        }
        Target::Server(_) => false,
    }
}

/// Whether every server that is known can be sent a pipeline that writes.
fn secondaries_write(description: &TopologyDescription) -> bool {
    let known = |kind| !matches!(kind, ServerType::Unknown | ServerType::PossiblePrimary);
    let mut servers = description.servers().iter().filter(|server| known(server.server_type()));
    servers.all(|server| server.wire_versions().max >= WRITING_SECONDARY_WIRE_VERSION)
}

/// One choice, and what the messages about it have in common.
pub(crate) struct Choice<'a> {
    client: &'a Inner,
    operation: &'a Operation<'a>,
    id: OperationId,
    /// When it found that it has to wait: most choices read no clock.
    begun: Option<Instant>,
}

impl Choice<'_> {
    /// A suitable server of this view, or the view again.
    fn look(
        &self,
        view: Arc<View>,
        deprioritized: &[ServerAddress],
    ) -> Result<Result<Selected, Arc<View>>, Error> {
        let Self { client, operation, .. } = self;
        // Most operations go to the only server that takes writes, which was chosen when the view was published.
        if wants_primary(&operation.target)
            && deprioritized.is_empty()
            && let Some(server) = view.writable()
        {
            self.found(server.address());
            return Ok(Ok(Selected::new(view, Way::Writable)));
        }
        let description = view.description();
        let request = SelectionRequest { deprioritized, ..request(&operation.target, description) };
        let counts = |address: &ServerAddress| client.discovery.operation_count(address);
        let server = description
            .select_with(&request, || client.random_bits(), counts)
            .map_err(|error| self.failed(Error::new(ErrorKind::ImpossibleSelection(error))))?;
        let Some(server) = server else { return Ok(Err(view)) };
        let Some(way) = client.discovery.way_to(&view, server) else { return Ok(Err(view)) };
        self.found(server.address());
        Ok(Ok(Selected::new(view, way)))
    }

    fn found(&self, server: &ServerAddress) {
        self.log(SelectionStep::Succeeded(server));
        let waited = self.begun.map(|begun| begun.elapsed());
        self.client.discovery.counters().selection_ended(waited, true);
    }

    /// Waits for a suitable server for `serverSelectionTimeoutMS`.
    pub(crate) async fn wait(mut self, deprioritized: &[ServerAddress]) -> Result<Selected, Error> {
        let Self { client, operation, .. } = self;
        // Before the next look: nothing is missed in between.
        let mut revisions = client.discovery.subscribe();
        loop {
            let view = match self.look(client.discovery.view(), deprioritized)? {
                Ok(selected) => return Ok(selected),
                Err(view) => view,
            };
            if client.discovery.is_closed() {
                return Err(self.failed(Error::new(ErrorKind::Closed)));
            }
            let limit = client.options.server_selection_timeout;
            if self.begun.is_none() {
                self.log(SelectionStep::Waiting(limit));
            }
            let begun = *self.begun.get_or_insert_with(Instant::now);
            client.discovery.handle(Input::CheckWanted);
            if !matches!(timeout_at(begun + limit, revisions.changed()).await, Ok(Ok(()))) {
                let now = client.discovery.clock().now();
                let description = view.description();
                let request =
                    SelectionRequest { deprioritized, ..request(&operation.target, description) };
                let failure =
                    SelectionFailure::new(Arc::clone(description), &request, now, begun.elapsed());
                return Err(self.failed(Error::new(ErrorKind::Selection(failure))));
            }
        }
    }

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

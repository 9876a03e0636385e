//! Our own servers, started for the tests and stopped after them.
//!
//! Everything runs in this process, in memory, on ports that the system chooses.

use std::io::Write;
use std::net::Ipv4Addr;
use std::time::Duration;

use bson::{Bson, Document, doc};
use quorate_client::Client;
use quorate_server::{Membership, Place, Running, Server, StartOptions};
use tempfile::NamedTempFile;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::{Context, Result};

/// How long a set may take until it takes writes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The fail points that tests set.
const FAIL_POINTS: [&str; 3] =
    ["failCommand", "failGetMoreAfterCursorCheckout", "onPrimaryTransactionalWrite"];

const SET_NAME: &str = "rs0";
const KEY: &str = "members of a test know each other";
const USER: &str = "tester";
const PASSWORD: &str = "secret";

/// The kind of deployment to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// The word of the test format.
    pub(super) topology: &'static str,
    members: usize,
    /// Whether users must log in.
    pub(super) authentication: bool,
}

impl Shape {
    /// A set with users has one member: what such tests look at is the login.
    pub(super) const ALL: [Self; 4] = [
        Self { topology: "single", members: 1, authentication: false },
        Self { topology: "replicaset", members: 3, authentication: false },
        Self { topology: "single", members: 1, authentication: true },
        Self { topology: "replicaset", members: 1, authentication: true },
    ];

    pub(super) fn name(&self) -> String {
        let login = if self.authentication { " with login" } else { "" };
        format!("{}{login}", self.topology)
    }
}

/// Servers that run, and a client for what tests need done beside them.
pub(super) struct Deployment {
    pub(super) shape: Shape,
    /// The internal client of the test format.
    pub(super) client: Client,
    pub(super) version: Version,
    /// The servers' parameters.
    pub(super) parameters: Document,
    /// A client for each server.
    direct: Vec<Client>,
    hosts: Vec<String>,
    servers: Vec<Running>,
}

/// A server version, as far as tests compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) [u32; 3]);

impl Version {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut parts = [0; 3];
        for (place, part) in text.split('.').enumerate().take(3) {
            parts[place] = part.parse().map_err(|_| format!("{text:?} is no version"))?;
        }
        Ok(Self(parts))
    }
}

impl Deployment {
    pub(super) async fn start(shape: Shape) -> Result<Self> {
        let mut servers = Vec::new();
        let key_file = key_file().context("the key file")?;
        for _ in 0..shape.members {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
            let mut options = StartOptions::new(Place::Memory);
            options.test_commands = true;
            options.replica_set = (shape.topology == "replicaset").then(|| SET_NAME.to_owned());
            options.authentication = shape.authentication;
            if shape.authentication && shape.topology == "replicaset" {
                options.membership = Membership::KeyFile(key_file.path().to_owned());
            }
            servers.push(Server::start(listener, options).await?);
        }
        let hosts: Vec<String> = servers.iter().map(|s| s.address().to_string()).collect();
        let prepared = timeout(PATIENCE, prepare(shape, &hosts)).await;
        prepared.map_err(|_| format!("the {} does not start", shape.name()))??;
        let uri = uri(shape, &hosts, "");
        let client = Client::with_uri(&uri)?;
        let version = timeout(PATIENCE, version(&client)).await;
        let version = version.map_err(|_| "the servers do not answer")??;
        let mut direct = Vec::new();
        for host in &hosts {
            let alone = Shape { topology: "single", ..shape };
            let uri = self::uri(alone, std::slice::from_ref(host), "directConnection=true");
            direct.push(Client::with_uri(&uri)?);
        }
        let parameters = administer(&client, doc! { "getParameter": "*" }).await?;
        Ok(Self { shape, client, version, parameters, direct, hosts, servers })
    }

    /// The connection string, with options such as `a=1&b=2`. One for a single server if the
    /// connection is to be direct.
    pub(super) fn uri(&self, options: &str) -> String {
        if options.contains("directConnection=true") {
            let alone = Shape { topology: "single", ..self.shape };
            return uri(alone, &self.hosts[..1], options);
        }
        uri(self.shape, &self.hosts, options)
    }

    /// Takes every fail point of every server back.
    pub(super) async fn lift_fail_points(&self) -> Result<()> {
        for client in &self.direct {
            for name in FAIL_POINTS {
                let off = doc! { "configureFailPoint": name, "mode": "off" };
                administer(client, off).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn stop(self) -> Result<()> {
        self.client.close().await;
        for client in self.direct {
            client.close().await;
        }
        for server in self.servers {
            server.stop().await?;
        }
        Ok(())
    }
}

/// The secret by which members know each other. They read it once, when they start.
fn key_file() -> std::io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    file.write_all(KEY.as_bytes())?;
    file.flush()?;
    Ok(file)
}

fn uri(shape: Shape, hosts: &[String], options: &str) -> String {
    let login = match shape.authentication {
        true => format!("{USER}:{PASSWORD}@"),
        false => String::new(),
    };
    let set = match shape.topology {
        "replicaset" => format!("replicaSet={SET_NAME}&"),
        _ => String::new(),
    };
    let source = if shape.authentication { "authSource=admin&" } else { "" };
    let hosts = hosts.join(",");
    let all = format!("mongodb://{login}{hosts}/?{set}{source}{options}");
    all.trim_end_matches('&').to_owned()
}

async fn prepare(shape: Shape, hosts: &[String]) -> Result<()> {
    let first = format!("mongodb://{}/?directConnection=true", hosts[0]);
    let client = Client::with_uri(&first)?;
    if shape.topology == "replicaset" {
        let members = hosts
            .iter()
            .enumerate()
            .map(|(id, host)| Bson::from(doc! { "_id": id as i64, "host": host.as_str() }));
        let members: Vec<Bson> = members.collect();
        let config = doc! { "_id": SET_NAME, "version": 1, "members": members };
        administer(&client, doc! { "replSetInitiate": config }).await?;
        wait_for_primary(&client).await?;
    }
    if shape.authentication {
        let user = doc! { "createUser": USER, "pwd": PASSWORD, "roles": ["root"] };
        administer(&client, user).await?;
    }
    client.close().await;
    Ok(())
}

async fn wait_for_primary(client: &Client) -> Result<()> {
    loop {
        let hello = administer(client, doc! { "hello": 1 }).await?;
        if hello.get_bool("isWritablePrimary").unwrap_or(false) || hello.get_str("primary").is_ok()
        {
            return Ok(());
        }
        tokio::task::yield_now().await;
    }
}

async fn version(client: &Client) -> Result<Version> {
    let reply = administer(client, doc! { "buildInfo": 1 }).await?;
    Version::parse(reply.get_str("version")?)
}

/// Runs a command that must succeed.
async fn administer(client: &Client, command: Document) -> Result<Document> {
    let name = command.keys().next().cloned().unwrap_or_default();
    Ok(client.database("admin").run_command(command).await.context(name)?.try_into()?)
}

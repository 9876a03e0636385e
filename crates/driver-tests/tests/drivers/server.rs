//! Servers on port 0, in this process: by itself, with logins, or as the only member of a set.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bson::doc;
use mongodb::Client;
use quorate_server::{Place, Running, Server, StartOptions, TlsMode, TlsOptions};
use quorate_test_support::Authority;
use tempfile::TempDir;
use tokio::net::TcpListener;

const SET_NAME: &str = "rs0";
/// How long a member may take to become primary.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    set_name: Option<&'static str>,
    running: Running,
    _directory: TempDir,
}

impl TestServer {
    pub(crate) async fn standalone() -> Self {
        Self::start(None, |_| ()).await
    }

    /// A server that speaks TLS only.
    pub(crate) async fn encrypted(authority: &Authority) -> Self {
        Self::start(None, |options| options.tls = Some(server_options(authority))).await
    }

    /// A server that speaks TLS only and whose clients must log in.
    pub(crate) async fn encrypted_and_guarded(authority: &Authority) -> Self {
        Self::start(None, |options| {
            let tls = server_options(authority);
            options.tls = Some(TlsOptions { authority: Some(authority.ca()), ..tls });
            options.authentication = true;
        })
        .await
    }

    /// Makes a user who logs in with a certificate of this subject and may write to `clients`.
    pub(crate) async fn add_user_with_certificate(&self, authority: &Authority, subject: &str) {
        let (address, ca) = (self.address, authority.ca());
        let options = format!("tls=true&tlsCAFile={}", ca.display());
        let first = Client::with_uri_str(format!("mongodb://{address}/?{options}")).await.unwrap();
        let root = doc! { "createUser": "root", "pwd": "secret", "roles": ["root"] };
        first.database("admin").run_command(root).await.unwrap();
        let root = format!("mongodb://root:secret@{address}/?{options}");
        let role = doc! { "role": "readWrite", "db": "clients" };
        let user = doc! { "createUser": subject, "roles": [role] };
        let root = Client::with_uri_str(root).await.unwrap();
        root.database("$external").run_command(user).await.unwrap();
    }

    /// A server whose clients must log in, without any user yet.
    pub(crate) async fn guarded() -> Self {
        Self::start(None, |options| options.authentication = true).await
    }

    /// The only member of a set, and its primary.
    pub(crate) async fn member() -> Self {
        let server = Self::start(Some(SET_NAME), |_| ()).await;
        let direct = format!("mongodb://{}/?directConnection=true", server.address);
        let admin = Client::with_uri_str(direct).await.unwrap().database("admin");
        let members = vec![doc! { "_id": 0, "host": server.address.to_string() }];
        let config = doc! { "_id": SET_NAME, "version": 1, "members": members };
        admin.run_command(doc! { "replSetInitiate": config }).await.unwrap();
        let is_primary = async || {
            let reply = admin.run_command(doc! { "hello": 1 }).await.unwrap();
            reply.get_bool("isWritablePrimary").unwrap()
        };
        let election = async {
            while !is_primary().await {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        tokio::time::timeout(PATIENCE, election).await.expect("no primary was elected");
        server
    }

    async fn start(set_name: Option<&'static str>, change: impl FnOnce(&mut StartOptions)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut options = StartOptions::new(Place::Directory(directory.path().to_owned()));
        options.test_commands = true;
        options.replica_set = set_name.map(str::to_owned);
        change(&mut options);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let running = Server::start(listener, options).await.unwrap();
        Self { address: running.address(), set_name, running, _directory: directory }
    }

    pub(crate) fn uri(&self) -> String {
        let option = self.set_name.map_or(String::new(), |name| format!("?replicaSet={name}"));
        format!("mongodb://{}/{option}", self.address)
    }

    pub(crate) async fn stop(self) {
        self.running.stop().await.unwrap();
    }
}

/// The server's certificate, by this authority.
fn server_options(authority: &Authority) -> TlsOptions {
    let path = authority.issue("server", "Quorate");
    TlsOptions {
        certificate: path.clone(),
        key: path,
        authority: None,
        mode: TlsMode::Require,
        require_client_certificate: false,
    }
}

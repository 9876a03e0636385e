//! Logins and TLS of the blocking client, against a server that knows one user and may want TLS.

// The server is test code too, but the lint does not know that of functions outside a test. It has a
// thread and sockets, so that the client needs none of the former.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::disallowed_types)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::spec::BinarySubtype;
use bson::{Binary, rawdoc};
use quorate_authentication::ScramMechanism;
use quorate_authentication::scram::{ClientFirst, ServerConversation, StoredCredentials};
use quorate_blocking_client::{
    AuthenticationCause, Client, ClientOptions, OperationError, StartError,
};
use quorate_tls_config::rustls::crypto::ring;
use quorate_tls_config::rustls::server::WebPkiClientVerifier;
use quorate_tls_config::rustls::{ServerConfig, ServerConnection, StreamOwned};
use quorate_tls_config::{read_authorities, read_certificates, read_key};
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

/// Serves one connection after the other, until the test ends.
struct Server {
    port: u16,
    seen: Arc<Mutex<Vec<RawDocumentBuf>>>,
}

impl Server {
    fn start(tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let journal = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                let mut peer = Peer::new(secured(stream, tls.as_ref()), Arc::clone(&journal));
                // A client that hangs up, or distrusts us, is no reason to end.
                let _ = peer.serve();
            }
        });
        Self { port, seen }
    }

    /// The names of the commands received, without hello and ping.
    fn commands(&self) -> Vec<String> {
        let names = self.seen.lock().unwrap().iter().map(|body| name_of(body)).collect::<Vec<_>>();
        names.into_iter().filter(|name| name != "isMaster" && name != "hello").collect()
    }

    fn uri(&self, user: &str, options: &str) -> String {
        format!("mongodb://{user}localhost:{}/?{options}", self.port)
    }
}

fn secured(stream: TcpStream, tls: Option<&Arc<ServerConfig>>) -> Box<dyn Duplex> {
    match tls {
        None => Box::new(stream),
        Some(config) => {
            let connection = ServerConnection::new(Arc::clone(config)).unwrap();
            Box::new(StreamOwned::new(connection, stream))
        }
    }
}

fn name_of(body: &RawDocument) -> String {
    body.iter_elements().next().unwrap().unwrap().key().as_str().to_owned()
}

struct Peer {
    stream: Box<dyn Duplex>,
    seen: Arc<Mutex<Vec<RawDocumentBuf>>>,
    conversation: Option<ServerConversation>,
    logged_in: bool,
}

impl Peer {
    fn new(stream: Box<dyn Duplex>, seen: Arc<Mutex<Vec<RawDocumentBuf>>>) -> Self {
        Self { stream, seen, conversation: None, logged_in: false }
    }

    fn serve(&mut self) -> std::io::Result<()> {
        let mut decoder = Decoder::new();
        let mut chunk = [0; 4096];
        loop {
            let read = self.stream.read(&mut chunk)?;
            if read == 0 {
                return Ok(());
            }
            decoder.input().extend_from_slice(&chunk[..read]);
            while let Some(message) = decoder.next_message().unwrap() {
                let Payload::Msg(request) = message.payload else { panic!("{message:?}") };
                let reply = self.answer(request.body());
                let mut out = Vec::new();
                let id = message.header.request_id;
                MsgWriter::new(&mut out, RequestId(1), id, MsgFlags::NONE, &reply)
                    .finish(None)
                    .unwrap();
                self.stream.write_all(&out)?;
                self.stream.flush()?;
            }
        }
    }

    fn answer(&mut self, body: &RawDocument) -> RawDocumentBuf {
        self.seen.lock().unwrap().push(body.to_owned());
        let refusal = rawdoc! { "ok": 0, "code": 18, "errmsg": "Authentication failed." };
        match name_of(body).as_str() {
            "isMaster" | "hello" => {
                let mut hello = rawdoc! {
                    "ok": 1, "isWritablePrimary": true, "helloOk": true,
                    "minWireVersion": 0, "maxWireVersion": 21,
                };
                if body.get("saslSupportedMechs").unwrap().is_some() {
                    let names = rawdoc! { "a": ["SCRAM-SHA-256"] };
                    let names = names.get_array("a").unwrap().to_owned();
                    hello.append(bson::raw::cstr!("saslSupportedMechs"), names);
                }
                hello
            }
            "saslStart" => {
                let mechanism = ScramMechanism::from_name(body.get_str("mechanism").unwrap());
                let payload = body.get_binary("payload").unwrap().bytes;
                let first = ClientFirst::parse(payload).unwrap();
                let stored = StoredCredentials::derive_with(
                    mechanism.unwrap(),
                    "ann",
                    "secret",
                    vec![3; 16],
                    4096,
                );
                let (conversation, answer) =
                    ServerConversation::start(first, stored.unwrap(), &[4; 24]);
                self.conversation = Some(conversation);
                step(&answer, false)
            }
            "saslContinue" => {
                let payload = body.get_binary("payload").unwrap().bytes;
                match self.conversation.take().unwrap().finish(payload) {
                    Ok(own) => {
                        self.logged_in = true;
                        step(&own, true)
                    }
                    Err(_) => refusal,
                }
            }
            "authenticate" => {
                self.logged_in = true;
                rawdoc! { "ok": 1 }
            }
            _ if self.logged_in => rawdoc! { "ok": 1, "n": 1 },
            _ => rawdoc! { "ok": 0, "code": 13, "errmsg": "command requires authentication" },
        }
    }
}

fn step(payload: &str, done: bool) -> RawDocumentBuf {
    let payload = Binary { subtype: BinarySubtype::Generic, bytes: payload.as_bytes().to_vec() };
    rawdoc! { "ok": 1, "conversationId": 1, "done": done, "payload": payload }
}

/// A certificate for `localhost` that signs itself, with its key, in one file.
fn certificate(directory: &tempfile::TempDir) -> PathBuf {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let path = directory.path().join("both.pem");
    std::fs::write(&path, format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem()))
        .unwrap();
    path
}

fn tls_server(directory: &tempfile::TempDir, wants_certificate: bool) -> (Server, PathBuf) {
    let path = certificate(directory);
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap();
    let authorities = Arc::new(read_authorities(&path).unwrap());
    let verifier = match wants_certificate {
        true => WebPkiClientVerifier::builder_with_provider(authorities, provider).build().unwrap(),
        false => WebPkiClientVerifier::no_client_auth(),
    };
    let config = builder
        .with_client_cert_verifier(verifier)
        .with_single_cert(read_certificates(&path).unwrap(), read_key(&path).unwrap())
        .unwrap();
    (Server::start(Some(Arc::new(config))), path)
}

fn drop_database(client: &mut Client) -> Result<RawDocumentBuf, OperationError> {
    client.run_command("shop", &rawdoc! { "dropDatabase": 1 }, None)
}

#[test]
fn a_user_logs_in_once_for_each_connection_by_every_mechanism() {
    for (option, mechanism) in [
        ("", "SCRAM-SHA-256"),
        ("authMechanism=SCRAM-SHA-256", "SCRAM-SHA-256"),
        ("authMechanism=SCRAM-SHA-1", "SCRAM-SHA-1"),
    ] {
        let server = Server::start(None);
        let mut client = Client::for_uri(&server.uri("ann:secret@", option)).unwrap();
        drop_database(&mut client).unwrap();
        drop_database(&mut client).unwrap();
        let expected = ["saslStart", "saslContinue", "dropDatabase", "dropDatabase"];
        assert_eq!(server.commands(), expected);
        let seen = server.seen.lock().unwrap();
        let start = seen.iter().find(|body| name_of(body) == "saslStart").unwrap();
        assert_eq!(start.get_str("mechanism").unwrap(), mechanism);
    }
}

#[test]
fn a_wrong_password_is_told_for_whom_and_where_and_is_not_told_itself() {
    let server = Server::start(None);
    let mut client = Client::for_uri(&server.uri("ann:guess@", "")).unwrap();
    let error = drop_database(&mut client).unwrap_err();
    let OperationError::Authentication(failed) = &error else { panic!("{error}") };
    assert!(matches!(failed.cause, AuthenticationCause::Conversation(_)), "{failed:?}");
    let text = error.to_string();
    assert!(text.contains("user \"ann\" (SCRAM-SHA-256, database admin) at localhost:"), "{text}");
    assert!(!text.contains("guess"), "{text}");
    assert_eq!(client.connection_count(), 0);
}

#[test]
fn operations_run_under_tls_and_strangers_are_not_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let (server, path) = tls_server(&directory, false);
    let trusting = format!("tls=true&tlsCAFile={}", path.display());
    let mut client = Client::for_uri(&server.uri("ann:secret@", &trusting)).unwrap();
    drop_database(&mut client).unwrap();
    client.close();

    let mut careful = Client::for_uri(&server.uri("ann:secret@", "tls=true")).unwrap();
    let text = drop_database(&mut careful).unwrap_err().to_string();
    assert!(text.contains("the TLS handshake with localhost:"), "{text}");
    careful.close();

    let insecure = server.uri("ann:secret@", "tls=true&tlsInsecure=true");
    drop_database(&mut Client::for_uri(&insecure).unwrap()).unwrap();
}

#[test]
fn a_certificate_logs_in_by_x509() {
    let directory = tempfile::tempdir().unwrap();
    let (server, path) = tls_server(&directory, true);
    let options = format!(
        "tls=true&tlsCAFile={0}&tlsCertificateKeyFile={0}&authMechanism=MONGODB-X509",
        path.display()
    );
    let mut client = Client::for_uri(&server.uri("", &options)).unwrap();
    drop_database(&mut client).unwrap();
    assert_eq!(server.commands(), ["authenticate", "dropDatabase"]);
}

#[test]
fn a_server_without_tls_is_told_so() {
    let server = Server::start(None);
    let options = "tls=true&tlsInsecure=true&connectTimeoutMS=200";
    let mut client = Client::for_uri(&server.uri("", options)).unwrap();
    let text = drop_database(&mut client).unwrap_err().to_string();
    assert!(text.contains("does the server speak TLS?"), "{text}");
}

#[test]
fn what_is_not_spoken_is_refused_at_the_start() {
    let refused = |uri: &str| Client::for_uri(uri).unwrap_err();
    let error = refused("mongodb://ann:x@a/?authMechanism=PLAIN");
    assert!(matches!(error, StartError::Mechanism(_)), "{error}");
    let error = refused("mongodb://a/?tls=true&tlsCAFile=/does/not/exist");
    assert!(error.to_string().contains("/does/not/exist"), "{error}");
    assert!(matches!(refused("mongodb+srv://a.b.c"), StartError::UnresolvedSrv));
    let string = "mongodb://ann:secret@a/?tls=true".parse().unwrap();
    let options = ClientOptions::from_connection_string(&string).unwrap();
    assert!(options.credential.is_some() && options.tls.is_some());
}

/// Without the feature, the way to it is named; with it, DNS is asked, which knows no such name.
#[test]
fn seeds_from_dns_need_a_feature() {
    let error = Client::connect("mongodb+srv://cluster.does-not-exist.invalid").unwrap_err();
    match cfg!(feature = "srv") {
        true => assert!(error.to_string().contains("does-not-exist.invalid"), "{error}"),
        false => assert!(error.to_string().contains("the feature srv"), "{error}"),
    }
}

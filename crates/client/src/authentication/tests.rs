//! Whole conversations with a server that knows one user.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use quorate_connection_string::ConnectionString;
use quorate_wire::{Decoder, MsgFlags, MsgWriter, Payload, RequestId};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;

/// Knows the user `ann`, and answers for her password.
struct Server {
    stream: DuplexStream,
    decoder: Decoder,
    password: &'static str,
    iterations: u32,
    /// Whether it ends the conversation one message early when asked to.
    skips_empty_exchange: bool,
    /// Whether it signs as one who knows the password.
    genuine: bool,
    conversation: Option<(ServerFirst, ScramKeys)>,
    seen: Vec<String>,
}

impl Server {
    async fn serve(mut self) -> Vec<String> {
        while let Some((id, body)) = self.receive().await {
            let reply = self.answer(&body);
            let mut out = Vec::new();
            MsgWriter::new(&mut out, RequestId(1), id, MsgFlags::NONE, &reply)
                .finish(None)
                .unwrap();
            self.stream.write_all(&out).await.unwrap();
        }
        self.seen
    }

    async fn receive(&mut self) -> Option<(RequestId, RawDocumentBuf)> {
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                let Payload::Msg(msg) = message.payload else { panic!("{message:?}") };
                return Some((message.header.request_id, msg.body().to_owned()));
            }
            if self.stream.read_buf(self.decoder.input()).await.unwrap() == 0 {
                return None;
            }
        }
    }

    fn answer(&mut self, command: &RawDocument) -> RawDocumentBuf {
        let name = command.iter_elements().next().unwrap().unwrap().key().as_str().to_owned();
        self.seen.push(name.clone());
        if name == "authenticate" {
            return rawdoc! { "ok": 1, "dbname": "$external", "user": "CN=ann" };
        }
        let payload = command.get_binary("payload").unwrap();
        let payload = std::str::from_utf8(payload.bytes).unwrap();
        if name == "saslStart" {
            return self.start(command.get_str("mechanism").unwrap(), payload);
        }
        if payload.is_empty() {
            return rawdoc! { "ok": 1, "conversationId": 5, "done": true, "payload": binary("") };
        }
        let (first, keys) = self.conversation.take().unwrap();
        let (expected, signature) = first.final_message(&keys);
        if payload != expected {
            return rawdoc! { "ok": 0, "code": 18, "errmsg": "Authentication failed." };
        }
        let mut signature = signature.0;
        if !self.genuine {
            signature[0] ^= 1;
        }
        let message = format!("v={}", BASE64.encode(signature));
        let done = self.skips_empty_exchange;
        rawdoc! { "ok": 1, "conversationId": 5, "done": done, "payload": binary(&message) }
    }

    fn start(&mut self, mechanism: &str, client_first: &str) -> RawDocumentBuf {
        let hash = match mechanism {
            "SCRAM-SHA-1" => ScramHash::Sha1,
            _ => ScramHash::Sha256,
        };
        let nonce = client_first.strip_prefix("n,,n=ann,r=").unwrap();
        let message = format!("r={nonce}server,s=c2FsdA==,i={}", self.iterations);
        let client = ScramClient::with_nonce(hash, "ann", nonce.to_owned());
        if let Ok(first) = client.on_server_first(&message) {
            let keys = first.compute_keys("ann", self.password, &KeyCache::default()).unwrap();
            self.conversation = Some((first, keys));
        }
        rawdoc! { "ok": 1, "conversationId": 5, "done": false, "payload": binary(&message) }
    }
}

async fn authenticate(
    uri: &str,
    change: impl FnOnce(&mut Server),
    mechanisms: Option<&[String]>,
) -> (Result<(), AuthenticationError>, Vec<String>) {
    let string = ConnectionString::parse(uri).unwrap();
    let authenticator = Authenticator::new(string.credential().unwrap().clone()).unwrap();
    let (client, stream) = tokio::io::duplex(1 << 16);
    let mut server = Server {
        stream,
        decoder: Decoder::new(),
        password: "secret",
        iterations: 4096,
        skips_empty_exchange: true,
        genuine: true,
        conversation: None,
        seen: Vec::new(),
    };
    change(&mut server);
    let prove = async {
        let mut connection = Connection::new(client);
        let address = "a:1".parse().unwrap();
        let attempt = authenticator.begin().unwrap();
        authenticator.finish(&mut connection, &address, attempt, None, mechanisms).await
    };
    tokio::join!(prove, server.serve())
}

#[tokio::test]
async fn the_right_password_is_accepted_by_both_mechanisms() {
    for mechanism in ["SCRAM-SHA-1", "SCRAM-SHA-256"] {
        let uri = format!("mongodb://ann:secret@a/?authMechanism={mechanism}");
        let (result, seen) = authenticate(&uri, |_| (), None).await;
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(seen, ["saslStart", "saslContinue"]);
    }
}

#[tokio::test]
async fn servers_that_want_an_empty_exchange_get_it() {
    let uri = "mongodb://ann:secret@a/?authMechanism=SCRAM-SHA-256";
    let (result, seen) =
        authenticate(uri, |server| server.skips_empty_exchange = false, None).await;
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(seen, ["saslStart", "saslContinue", "saslContinue"]);
}

#[tokio::test]
async fn the_wrong_password_is_refused_for_ann_by_name() {
    let uri = "mongodb://ann:wrong@a/?authMechanism=SCRAM-SHA-256";
    let (result, _) = authenticate(uri, |_| (), None).await;
    let text = result.unwrap_err().to_string();
    assert!(text.contains("user \"ann\" (SCRAM-SHA-256, database admin) at a:1"), "{text}");
    assert!(!text.contains("wrong"), "{text}");
}

#[tokio::test]
async fn an_impostor_is_found_out() {
    let uri = "mongodb://ann:secret@a/?authMechanism=SCRAM-SHA-256";
    let (result, _) = authenticate(uri, |server| server.genuine = false, None).await;
    let cause = result.unwrap_err().cause;
    assert!(matches!(cause, AuthenticationCause::Scram(ScramError::WrongSignature)), "{cause:?}");
}

/// "Minimum iteration count" in the specification's test plan.
#[tokio::test]
async fn too_few_iterations_are_refused_before_the_password_is_used() {
    let uri = "mongodb://ann:secret@a/?authMechanism=SCRAM-SHA-1";
    let (result, seen) = authenticate(uri, |server| server.iterations = 4095, None).await;
    let cause = result.unwrap_err().cause;
    assert!(matches!(cause, AuthenticationCause::Scram(ScramError::Iterations(4095))));
    assert_eq!(seen, ["saslStart"]);
}

#[tokio::test]
async fn the_users_mechanisms_decide_where_none_was_named() {
    let sha256 = ["SCRAM-SHA-1".to_owned(), "SCRAM-SHA-256".to_owned(), "NEW".to_owned()];
    let (result, _) = authenticate("mongodb://ann:secret@a", |_| (), Some(&sha256)).await;
    assert!(result.is_ok());
    let (result, _) = authenticate("mongodb://ann:secret@a", |_| (), None).await;
    assert!(result.is_ok());
}

#[test]
fn mechanisms_that_are_not_spoken_are_refused_at_the_start() {
    let string = ConnectionString::parse("mongodb://ann:x@a/?authMechanism=PLAIN").unwrap();
    let refused = Authenticator::new(string.credential().unwrap().clone()).unwrap_err();
    assert!(refused.to_string().contains("authMechanism=PLAIN"));
}

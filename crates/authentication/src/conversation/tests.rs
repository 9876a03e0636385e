//! Whole conversations with a server that knows one user.

use quorate_connection_string::ConnectionString;

use super::*;
use crate::scram::{ClientFirst, MIN_ITERATIONS, ServerConversation, StoredCredentials};

/// Knows the user `ann` and her password.
struct Server {
    password: &'static str,
    iterations: u32,
    /// Whether it ends the conversation one message early when asked to.
    skips_empty_exchange: bool,
    /// Whether it ever ends the conversation.
    ends: bool,
    /// Whether it signs as one who knows the password.
    genuine: bool,
    conversation: Option<ServerConversation>,
    seen: Vec<RawDocumentBuf>,
}

impl Server {
    fn answer(&mut self, command: &RawDocument) -> RawDocumentBuf {
        self.seen.push(command.to_owned());
        if command.get("authenticate").unwrap().is_some() {
            return rawdoc! { "ok": 1, "dbname": "$external", "user": "CN=ann" };
        }
        let payload = command.get_binary("payload").unwrap().bytes;
        if let Ok(name) = command.get_str("mechanism") {
            return self.start(ScramMechanism::from_name(name).unwrap(), payload);
        }
        if payload.is_empty() {
            return step("", self.ends);
        }
        match self.conversation.take().unwrap().finish(payload) {
            Err(_) => rawdoc! { "ok": 0, "code": 18, "errmsg": "Authentication failed." },
            Ok(own) if self.genuine => step(&own, self.skips_empty_exchange && self.ends),
            Ok(_) => step("v=AAAA", true),
        }
    }

    fn start(&mut self, mechanism: ScramMechanism, payload: &[u8]) -> RawDocumentBuf {
        let first = ClientFirst::parse(payload).unwrap();
        let stored = StoredCredentials::derive_with(
            mechanism,
            "ann",
            self.password,
            b"salt".to_vec(),
            self.iterations,
        );
        let (conversation, answer) = ServerConversation::start(first, stored.unwrap(), &[9; 8]);
        self.conversation = Some(conversation);
        step(&answer, false)
    }
}

fn step(payload: &str, done: bool) -> RawDocumentBuf {
    rawdoc! { "ok": 1, "conversationId": 5, "done": done, "payload": binary(payload) }
}

fn authenticator(uri: &str) -> Authenticator {
    let string = ConnectionString::parse(uri).unwrap();
    Authenticator::new(string.credential().unwrap().clone()).unwrap()
}

fn carry_on(conversation: &mut Conversation, server: &mut Server) -> Result<(), ConversationError> {
    loop {
        match conversation.next_action() {
            Action::Send(command) => {
                let reply = server.answer(&command);
                conversation.on_reply(&reply)?;
            }
            Action::Derive(derivation) => conversation.on_keys(&derivation.run()?),
            Action::Done => return Ok(()),
        }
    }
}

fn server() -> Server {
    Server {
        password: "secret",
        iterations: MIN_ITERATIONS,
        skips_empty_exchange: true,
        ends: true,
        genuine: true,
        conversation: None,
        seen: Vec::new(),
    }
}

fn authenticate(
    uri: &str,
    change: impl FnOnce(&mut Server),
    mechanisms: Option<&[String]>,
) -> (Result<(), ConversationError>, Vec<RawDocumentBuf>) {
    let authenticator = authenticator(uri);
    let mut server = server();
    change(&mut server);
    let attempt = authenticator.begin(&Randomness([7; RANDOMNESS_LENGTH]));
    let mut conversation = authenticator.converse(attempt, None, mechanisms).unwrap();
    let result = carry_on(&mut conversation, &mut server);
    (result, server.seen)
}

fn names(seen: &[RawDocumentBuf]) -> Vec<&str> {
    let first = |command: &'static str, document: &RawDocumentBuf| {
        document.get(command).unwrap().is_some().then_some(command)
    };
    let commands = ["saslStart", "saslContinue", "authenticate"];
    seen.iter().filter_map(|seen| commands.iter().find_map(|name| first(name, seen))).collect()
}

#[test]
fn the_right_password_is_accepted_by_both_mechanisms() {
    for mechanism in ["SCRAM-SHA-1", "SCRAM-SHA-256"] {
        let uri = format!("mongodb://ann:secret@a/?authMechanism={mechanism}&authSource=users");
        let (result, seen) = authenticate(&uri, |_| (), None);
        assert!(result.is_ok(), "{result:?}");
        assert_eq!(names(&seen), ["saslStart", "saslContinue"]);
        assert!(seen.iter().all(|command| command.get_str("$db").unwrap() == "users"));
    }
}

#[test]
fn servers_that_want_an_empty_exchange_get_it() {
    let uri = "mongodb://ann:secret@a/?authMechanism=SCRAM-SHA-256";
    let (result, seen) = authenticate(uri, |server| server.skips_empty_exchange = false, None);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(names(&seen), ["saslStart", "saslContinue", "saslContinue"]);
}

#[test]
fn servers_that_never_end_are_left() {
    let uri = "mongodb://ann:secret@a/?authMechanism=SCRAM-SHA-256";
    let (result, seen) = authenticate(uri, |server| server.ends = false, None);
    assert!(matches!(result, Err(ConversationError::Endless)), "{result:?}");
    assert_eq!(seen.len(), 1 + MAX_SASL_STEPS);
}

#[test]
fn the_wrong_password_is_refused_for_ann_by_name_and_not_told() {
    let uri = "mongodb://ann:wrong@a/?authMechanism=SCRAM-SHA-256";
    let (result, _) = authenticate(uri, |_| (), None);
    let cause = AuthenticationCause::<ConversationError>::Conversation(result.unwrap_err());
    let error = authenticator(uri).error(&"a:1".parse().unwrap(), "SCRAM-SHA-256", cause);
    let text = error.to_string();
    assert!(text.contains("user \"ann\" (SCRAM-SHA-256, database admin) at a:1"), "{text}");
    assert!(!text.contains("wrong"), "{text}");
}

#[test]
fn an_impostor_is_found_out() {
    let uri = "mongodb://ann:secret@a/?authMechanism=SCRAM-SHA-256";
    let (result, _) = authenticate(uri, |server| server.genuine = false, None);
    let error = result.unwrap_err();
    assert!(matches!(error, ConversationError::Scram(ScramError::WrongSignature)), "{error:?}");
}

/// "Minimum iteration count" in the specification's test plan.
#[test]
fn too_few_iterations_are_refused_before_the_password_is_used() {
    let uri = "mongodb://ann:secret@a/?authMechanism=SCRAM-SHA-1";
    let (result, seen) = authenticate(uri, |server| server.iterations = 4095, None);
    assert!(matches!(result, Err(ConversationError::Scram(ScramError::Iterations(4095)))));
    assert_eq!(names(&seen), ["saslStart"]);
}

#[test]
fn the_users_mechanisms_decide_where_none_was_named() {
    let sha256 = ["SCRAM-SHA-1".to_owned(), "SCRAM-SHA-256".to_owned(), "NEW".to_owned()];
    for (mechanisms, chosen) in [(Some(&sha256[..]), "SCRAM-SHA-256"), (None, "SCRAM-SHA-1")] {
        let (result, seen) = authenticate("mongodb://ann:secret@a", |_| (), mechanisms);
        assert!(result.is_ok());
        assert_eq!(seen[0].get_str("mechanism").unwrap(), chosen);
    }
}

#[test]
fn the_first_step_may_ride_on_the_handshake_and_its_nonce_is_not_used_again() {
    let authenticator = authenticator("mongodb://ann:secret@a");
    let attempt = authenticator.begin(&Randomness([7; RANDOMNESS_LENGTH]));
    let command = authenticator.speculative_command(&attempt);
    assert_eq!(command.get_str("db").unwrap(), "admin");
    let mut server = server();
    let reply = server.answer(&command);
    let mut conversation = authenticator.converse(attempt, Some(&reply), None).unwrap();
    assert!(matches!(conversation.next_action(), Action::Derive(_)));
    carry_on(&mut conversation, &mut server).unwrap();
    assert_eq!(names(&server.seen), ["saslStart", "saslContinue"]);

    let mut random = [7; RANDOMNESS_LENGTH];
    random[NONCE_LENGTH..].fill(8);
    let attempt = authenticator.begin(&Randomness(random));
    let speculative = authenticator.speculative_command(&attempt);
    let sha256 = ["SCRAM-SHA-256".to_owned()];
    let conversation = authenticator.converse(attempt, None, Some(&sha256)).unwrap();
    let Action::Send(first) = conversation.next_action() else {
        panic!("{:?}", conversation.next_action())
    };
    let payload = |command: &RawDocument| command.get_binary("payload").unwrap().bytes.to_vec();
    assert_ne!(payload(&first), payload(&speculative));
}

#[test]
fn remembered_keys_are_not_computed_again() {
    let authenticator = authenticator("mongodb://ann:secret@a/?authMechanism=SCRAM-SHA-256");
    for derivations in [1, 0] {
        let mut server = server();
        let attempt = authenticator.begin(&Randomness([7; RANDOMNESS_LENGTH]));
        let mut conversation = authenticator.converse(attempt, None, None).unwrap();
        let Action::Send(command) = conversation.next_action() else { panic!() };
        conversation.on_reply(&server.answer(&command)).unwrap();
        let derives = matches!(conversation.next_action(), Action::Derive(_));
        assert_eq!(derives, derivations == 1);
        carry_on(&mut conversation, &mut server).unwrap();
    }
}

#[test]
fn x509_takes_one_step() {
    let (result, seen) =
        authenticate("mongodb://a/?authMechanism=MONGODB-X509&tls=true", |_| (), None);
    assert!(result.is_ok());
    assert_eq!(names(&seen), ["authenticate"]);
    assert_eq!(seen[0].get_str("$db").unwrap(), "$external");
    assert!(seen[0].get("user").unwrap().is_none());
}

#[test]
fn mechanisms_that_are_not_spoken_are_refused_at_the_start() {
    let string = ConnectionString::parse("mongodb://ann:x@a/?authMechanism=PLAIN").unwrap();
    let refused = Authenticator::new(string.credential().unwrap().clone()).unwrap_err();
    assert!(refused.to_string().contains("authMechanism=PLAIN"));
}

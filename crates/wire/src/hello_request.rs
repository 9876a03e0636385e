//! Writing `hello`: the first command on a connection, and the checks that follow.
//!
//! Follows "Connection handshake" in the MongoDB Handshake specification: `helloOk: true` always, what the
//! client says of itself in the first command alone. Both clients write theirs here; who they say they are
//! and what they add to every command is theirs. `handshake` reads the reply.

use bson::raw::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_protocol::HelloCommand;

use crate::compression::CompressorId;
use crate::raw_fields::AppendSome;

/// What the first command on a connection says, in the order in which it is written.
#[derive(Clone, Debug, Default)]
pub struct FirstHello<'a> {
    /// `backpressure`: the version of the client back-pressure specification that is followed.
    pub backpressure: Option<&'a str>,
    /// `client`: the metadata.
    pub client: Option<&'a RawDocument>,
    /// `compression`: the compressors, the preferred one first.
    pub compressors: Option<&'a [CompressorId]>,
    /// `loadBalanced`.
    pub load_balanced: bool,
    /// `saslSupportedMechs`: the user whose mechanisms are asked for.
    pub mechanisms_of: Option<&'a str>,
    /// `speculativeAuthenticate`: the first step of authentication.
    pub speculative: Option<&'a RawDocument>,
}

impl FirstHello<'_> {
    /// The command. `declare` adds what the client adds to every command.
    pub fn command(
        &self,
        command: HelloCommand,
        declare: impl FnOnce(&mut RawDocumentBuf),
    ) -> RawDocumentBuf {
        let mut hello = begin(command);
        hello.append_some(cstr!("backpressure"), self.backpressure);
        hello.append_some(cstr!("client"), self.client);
        if let Some(compressors) = self.compressors {
            let names = compressors.iter().map(|id| id.name());
            hello.append(cstr!("compression"), RawArrayBuf::from_iter(names));
        }
        if self.load_balanced {
            hello.append(cstr!("loadBalanced"), true);
        }
        hello.append_some(cstr!("saslSupportedMechs"), self.mechanisms_of);
        hello.append_some(cstr!("speculativeAuthenticate"), self.speculative);
        end(hello, declare)
    }
}

/// A check on a connection that has shaken hands.
pub fn later_hello(
    command: HelloCommand,
    declare: impl FnOnce(&mut RawDocumentBuf),
) -> RawDocumentBuf {
    end(begin(command), declare)
}

fn begin(command: HelloCommand) -> RawDocumentBuf {
    match command {
        HelloCommand::Hello => rawdoc! { "hello": 1, "helloOk": true },
        HelloCommand::Legacy => rawdoc! { "isMaster": 1, "helloOk": true },
    }
}

fn end(mut hello: RawDocumentBuf, declare: impl FnOnce(&mut RawDocumentBuf)) -> RawDocumentBuf {
    declare(&mut hello);
    hello.append(cstr!("$db"), "admin");
    hello
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(document: &RawDocument) -> Vec<&str> {
        document.iter().map(|element| element.unwrap().0.as_str()).collect()
    }

    /// "`hello` and legacy hello commands issued after the initial connection handshake MUST NOT
    /// contain handshake arguments."
    #[test]
    fn only_the_first_command_says_who_we_are() {
        let client = rawdoc! { "driver": { "name": "d", "version": "1" } };
        let first = FirstHello {
            backpressure: Some("2"),
            client: Some(&client),
            compressors: Some(&[CompressorId::Zstd]),
            load_balanced: true,
            mechanisms_of: Some("admin.ann"),
            speculative: Some(&client),
        };
        let declare = |hello: &mut RawDocumentBuf| hello.append(cstr!("apiVersion"), "1");
        let all = [
            "hello", "helloOk", "backpressure", "client", "compression", "loadBalanced",
            "saslSupportedMechs", "speculativeAuthenticate", "apiVersion", "$db",
        ];
        assert_eq!(keys(&first.command(HelloCommand::Hello, declare)), all);
        let later = later_hello(HelloCommand::Legacy, declare);
        assert_eq!(keys(&later), ["isMaster", "helloOk", "apiVersion", "$db"]);
    }

    #[test]
    fn what_is_not_configured_is_not_sent() {
        let bare = FirstHello::default().command(HelloCommand::Legacy, |_| {});
        assert_eq!(keys(&bare), ["isMaster", "helloOk", "$db"]);
    }
}

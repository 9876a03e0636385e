//! The commands that ask a server about itself, and who we say we are.
//!
//! `quorate-wire` writes the command; here is what this client puts into it: OP_MSG throughout, legacy hello
//! first, as a stable API version cannot be requested. Left out: `client.env`, and `backpressure`, which
//! would promise retries with pauses that this client does not make.

use bson::raw::{RawDocumentBuf, cstr};
use bson::rawdoc;
use quorate_protocol::HelloCommand;
use quorate_wire::{AppendSome, CompressorId, FirstHello};

/// The name that servers write into their logs.
const DRIVER_NAME: &str = "quorate-blocking";

/// The first command on a connection: legacy hello, whatever the server knew on an earlier one.
///
/// `user` is whose mechanisms are asked for.
pub(crate) fn first_hello(
    app_name: Option<&str>,
    compressors: &[CompressorId],
    user: Option<&str>,
) -> RawDocumentBuf {
    let client = client_metadata(app_name);
    let first = FirstHello {
        client: Some(&client),
        compressors: Some(compressors).filter(|compressors| !compressors.is_empty()),
        mechanisms_of: user,
        ..FirstHello::default()
    };
    first.command(HelloCommand::Legacy, |_| {})
}

/// Any later check on it.
pub(crate) fn later_hello(command: HelloCommand) -> RawDocumentBuf {
    quorate_wire::later_hello(command, |_| {})
}

/// Well below the 512 bytes that servers take: the name of the application has at most 128.
fn client_metadata(app_name: Option<&str>) -> RawDocumentBuf {
    let mut metadata = RawDocumentBuf::new();
    metadata.append_some(cstr!("application"), app_name.map(|name| rawdoc! { "name": name }));
    let driver = rawdoc! { "name": DRIVER_NAME, "version": env!("CARGO_PKG_VERSION") };
    metadata.append(cstr!("driver"), driver);
    let os = rawdoc! { "type": os_type(), "architecture": std::env::consts::ARCH };
    metadata.append(cstr!("os"), os);
    metadata.append(cstr!("platform"), "Rust");
    metadata
}

/// As `uname -s` would say it.
fn os_type() -> &'static str {
    match std::env::consts::OS {
        "linux" | "android" => "Linux",
        "macos" | "ios" => "Darwin",
        "windows" => "Windows",
        "freebsd" | "netbsd" | "openbsd" | "dragonfly" => "BSD",
        _ if cfg!(unix) => "Unix",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "`hello` and legacy hello commands issued after the initial connection handshake MUST NOT
    /// contain handshake arguments."
    #[test]
    fn only_the_first_command_says_who_we_are() {
        let compressors = [CompressorId::Zstd, CompressorId::Zlib];
        let first = first_hello(Some("shop"), &compressors, Some("admin.ann"));
        assert_eq!(first.get_i32("isMaster").unwrap(), 1);
        assert!(first.get_bool("helloOk").unwrap());
        let client = first.get_document("client").unwrap();
        assert_eq!(client.get_document("application").unwrap().get_str("name").unwrap(), "shop");
        assert_eq!(client.get_document("driver").unwrap().get_str("name").unwrap(), DRIVER_NAME);
        assert!(!client.get_document("os").unwrap().get_str("type").unwrap().is_empty());
        let names = first.get_array("compression").unwrap();
        assert_eq!(names.get_str(0).unwrap(), "zstd");
        assert_eq!(first.get_str("saslSupportedMechs").unwrap(), "admin.ann");
        assert_eq!(first.get_str("$db").unwrap(), "admin");

        let later = later_hello(HelloCommand::Hello);
        assert_eq!(later.get_i32("hello").unwrap(), 1);
        assert!(later.get("client").unwrap().is_none());
        assert!(later.get("compression").unwrap().is_none());
    }

    #[test]
    fn what_is_not_configured_is_not_sent() {
        let first = first_hello(None, &[], None);
        assert!(first.get("compression").unwrap().is_none());
        assert!(first.get("saslSupportedMechs").unwrap().is_none());
        assert!(first.get_document("client").unwrap().get("application").unwrap().is_none());
    }

    #[test]
    fn metadata_stays_below_the_limit_of_servers() {
        let longest = "n".repeat(128);
        assert!(client_metadata(Some(&longest)).as_bytes().len() <= 512);
    }
}

//! What a client tells servers about itself in the handshake: the `client` document.
//!
//! Follows "Hello Command" and "Limitations" in the MongoDB Handshake specification: at most 512
//! bytes, shortened in the specified order.

use bson::raw::{RawDocumentBuf, cstr};
use quorate_server_discovery::FunctionPlatform;
use quorate_wire::AppendSome;

/// The longest `client` document, in bytes.
pub(crate) const MAX_METADATA_LENGTH: usize = 512;

const DRIVER_NAME: &str = "quorate";

/// A library that wraps this client and wants to be known.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DriverInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: Option<String>,
    /// What it runs on.
    pub platform: Option<String>,
}

/// Where the client runs, as far as the environment tells.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Environment {
    platform: Option<FunctionPlatform>,
    timeout_sec: Option<i32>,
    memory_mb: Option<i32>,
    region: Option<String>,
    docker: bool,
    kubernetes: bool,
}

impl Environment {
    /// Reads the variables of this process, and whether it is in a container.
    pub fn of_this_process() -> Self {
        let docker = std::path::Path::new("/.dockerenv").exists();
        Self::read(|name| std::env::var(name).ok(), docker)
    }

    fn read(variable: impl Fn(&str) -> Option<String>, docker: bool) -> Self {
        let platform = FunctionPlatform::detect(&variable);
        let text = |name: &str| variable(name).filter(|value| !value.is_empty());
        // A value that is no number is left out, without a word.
        let number = |name: &str| text(name).and_then(|value| value.parse().ok());
        let (timeout_sec, memory_mb, region) = match platform {
            Some(FunctionPlatform::AwsLambda) => {
                (None, number("AWS_LAMBDA_FUNCTION_MEMORY_SIZE"), text("AWS_REGION"))
            }
            Some(FunctionPlatform::GcpFunctions) => (
                number("FUNCTION_TIMEOUT_SEC"),
                number("FUNCTION_MEMORY_MB"),
                text("FUNCTION_REGION"),
            ),
            Some(FunctionPlatform::Vercel) => (None, None, text("VERCEL_REGION")),
            Some(FunctionPlatform::AzureFunctions) | None => (None, None, None),
        };
        let kubernetes = text("KUBERNETES_SERVICE_HOST").is_some();
        Self { platform, timeout_sec, memory_mb, region, docker, kubernetes }
    }

    /// The platform, which decides whether monitors stream.
    pub fn function_platform(&self) -> Option<FunctionPlatform> {
        self.platform
    }

    fn document(&self, only_name: bool) -> Option<RawDocumentBuf> {
        let mut env = RawDocumentBuf::new();
        env.append_some(cstr!("name"), self.platform.map(|platform| platform.name()));
        if !only_name {
            env.append_some(cstr!("timeout_sec"), self.timeout_sec);
            env.append_some(cstr!("memory_mb"), self.memory_mb);
            env.append_some(cstr!("region"), self.region.as_deref());
            let mut container = RawDocumentBuf::new();
            container.append_some(cstr!("runtime"), self.docker.then_some("docker"));
            let orchestrator = self.kubernetes.then_some("kubernetes");
            container.append_some(cstr!("orchestrator"), orchestrator);
            if !container.is_empty() {
                env.append(cstr!("container"), container);
            }
        }
        (!env.is_empty()).then_some(env)
    }
}

/// How much of the document is left out. Each step includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Shortening {
    Nothing,
    EnvButName,
    OsButType,
    Env,
}

/// The `client` document.
///
/// `app_name` is at most 128 bytes long; connection strings see to that.
pub(crate) fn client_metadata(
    app_name: Option<&str>,
    wrappers: &[DriverInfo],
    environment: &Environment,
) -> RawDocumentBuf {
    let platform = platform_text(wrappers);
    let build = |shortening, platform: Option<&str>| {
        document(app_name, wrappers, environment, shortening, platform)
    };
    let steps =
        [Shortening::Nothing, Shortening::EnvButName, Shortening::OsButType, Shortening::Env];
    for shortening in steps {
        let document = build(shortening, Some(&platform));
        if document.as_bytes().len() <= MAX_METADATA_LENGTH {
            return document;
        }
    }
    let whole = build(Shortening::Env, Some(&platform)).as_bytes().len();
    let keep = platform.len().saturating_sub(whole - MAX_METADATA_LENGTH);
    let cut = (0..=keep).rev().find(|&end| platform.is_char_boundary(end)).unwrap_or(0);
    let document = build(Shortening::Env, (cut > 0).then_some(&platform[..cut]));
    if document.as_bytes().len() <= MAX_METADATA_LENGTH {
        return document;
    }
    // Only wrappers can have made it so long; a server would refuse the handshake.
    self::document(app_name, &[], environment, Shortening::Env, None)
}

fn document(
    app_name: Option<&str>,
    wrappers: &[DriverInfo],
    environment: &Environment,
    shortening: Shortening,
    platform: Option<&str>,
) -> RawDocumentBuf {
    let mut client = RawDocumentBuf::new();
    client.append_some(cstr!("application"), app_name.map(|name| bson::rawdoc! { "name": name }));
    let joined = |own: &str, others: &mut dyn Iterator<Item = &str>| {
        others.fold(own.to_owned(), |all, one| format!("{all}|{one}"))
    };
    let name = joined(DRIVER_NAME, &mut wrappers.iter().map(|wrapper| &*wrapper.name));
    let versions = &mut wrappers.iter().filter_map(|wrapper| wrapper.version.as_deref());
    let version = joined(env!("CARGO_PKG_VERSION"), versions);
    client.append(cstr!("driver"), bson::rawdoc! { "name": name, "version": version });
    client.append(cstr!("os"), operating_system(shortening >= Shortening::OsButType));
    client.append_some(cstr!("platform"), platform);
    if shortening < Shortening::Env
        && let Some(env) = environment.document(shortening >= Shortening::EnvButName)
    {
        client.append(cstr!("env"), env);
    }
    client
}

fn operating_system(only_type: bool) -> RawDocumentBuf {
    let kind = match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "Darwin",
        "windows" => "Windows",
        other => other,
    };
    let mut os = bson::rawdoc! { "type": kind };
    if !only_type {
        os.append(cstr!("name"), std::env::consts::OS);
        os.append(cstr!("architecture"), std::env::consts::ARCH);
    }
    os
}

fn platform_text(wrappers: &[DriverInfo]) -> String {
    let platforms = wrappers.iter().filter_map(|wrapper| wrapper.platform.as_deref());
    platforms.fold("Rust/tokio".to_owned(), |all, one| format!("{all}|{one}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)], docker: bool) -> Environment {
        let find = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        Environment::read(find, docker)
    }

    fn env_of(variables: &[(&str, &str)], docker: bool) -> Option<RawDocumentBuf> {
        environment(variables, docker).document(false)
    }

    /// The prose tests of the specification, one by one.
    #[test]
    fn function_platforms_are_described_as_specified() {
        let lambda = env_of(
            &[
                ("AWS_EXECUTION_ENV", "AWS_Lambda_java8"),
                ("AWS_REGION", "us-east-2"),
                ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "1024"),
            ],
            false,
        );
        let expected =
            bson::rawdoc! { "name": "aws.lambda", "memory_mb": 1024, "region": "us-east-2" };
        assert_eq!(lambda, Some(expected));
        let gcp = env_of(
            &[
                ("K_SERVICE", "servicename"),
                ("FUNCTION_MEMORY_MB", "1024"),
                ("FUNCTION_TIMEOUT_SEC", "60"),
                ("FUNCTION_REGION", "us-central1"),
            ],
            false,
        );
        let expected = bson::rawdoc! {
            "name": "gcp.func", "timeout_sec": 60, "memory_mb": 1024, "region": "us-central1"
        };
        assert_eq!(gcp, Some(expected));
        let several = [("AWS_EXECUTION_ENV", "AWS_Lambda_java8"), ("K_SERVICE", "x")];
        assert_eq!(env_of(&several, false), None);
        let no_number =
            [("AWS_EXECUTION_ENV", "AWS_Lambda_java8"), ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "big")];
        assert_eq!(env_of(&no_number, false), Some(bson::rawdoc! { "name": "aws.lambda" }));
        assert_eq!(env_of(&[("AWS_EXECUTION_ENV", "EC2")], false), None);
        let contained = env_of(&[("KUBERNETES_SERVICE_HOST", "1")], true);
        let container = bson::rawdoc! { "runtime": "docker", "orchestrator": "kubernetes" };
        assert_eq!(contained, Some(bson::rawdoc! { "container": container }));
    }

    #[test]
    fn nothing_of_the_environment_means_no_env() {
        let metadata = client_metadata(Some("app"), &[], &Environment::default());
        assert_eq!(metadata.get_document("application").unwrap().get_str("name").unwrap(), "app");
        assert!(metadata.get("env").unwrap().is_none());
        assert!(metadata.get_document("driver").unwrap().get_str("version").is_ok());
    }

    #[test]
    fn what_is_too_long_is_left_out_in_the_specified_order() {
        let long_region = "r".repeat(512);
        let variables =
            [("AWS_EXECUTION_ENV", "AWS_Lambda_java8"), ("AWS_REGION", long_region.as_str())];
        let metadata = client_metadata(None, &[], &environment(&variables, false));
        assert!(metadata.as_bytes().len() <= MAX_METADATA_LENGTH);
        let env = metadata.get_document("env").unwrap();
        assert_eq!(env, &*bson::rawdoc! { "name": "aws.lambda" });
        assert!(metadata.get_document("os").unwrap().get_str("architecture").is_ok());

        let platform = |length| DriverInfo {
            name: "w".to_owned(),
            version: None,
            platform: Some("é".repeat(length)),
        };
        let metadata = client_metadata(None, &[platform(400)], &environment(&variables, true));
        assert!(metadata.as_bytes().len() <= MAX_METADATA_LENGTH);
        assert!(metadata.get("env").unwrap().is_none());
        assert!(metadata.get_document("os").unwrap().get("architecture").unwrap().is_none());
        assert!(metadata.get_str("platform").unwrap().starts_with("Rust/tokio|é"));

        let absurd = DriverInfo { name: "n".repeat(600), ..DriverInfo::default() };
        let metadata = client_metadata(Some("app"), &[absurd], &Environment::default());
        assert!(metadata.as_bytes().len() <= MAX_METADATA_LENGTH);
    }

    #[test]
    fn wrappers_are_appended() {
        let wrapper = DriverInfo {
            name: "framework".to_owned(),
            version: Some("2.0".to_owned()),
            platform: None,
        };
        let metadata = client_metadata(None, &[wrapper], &Environment::default());
        let driver = metadata.get_document("driver").unwrap();
        assert_eq!(driver.get_str("name").unwrap(), "quorate|framework");
        assert!(driver.get_str("version").unwrap().ends_with("|2.0"));
    }
}

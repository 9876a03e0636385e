//! The deployment that one test file runs against, in processes of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::Topology;
use crate::Failure;

/// A server or a set that ends when this is dropped.
pub(super) struct Deployment {
    process: Child,
    host: String,
    port: String,
}

impl Deployment {
    /// Starts it in memory on ports that are free, and waits until it is ready. The folder of the
    /// tests has the certificates that they trust.
    pub(super) fn start(program: &Path, topology: Topology, tests: &Path) -> Result<Self, Failure> {
        let certificate = |name: &str| tests.join("certificates").join(name);
        let mut command = Command::new(program);
        match topology {
            Topology::Standalone => command.args(["serve", "--enable-test-commands"]),
            Topology::Guarded => command.args(["serve", "--enable-test-commands", "--auth"]),
            Topology::Encrypted => command
                .args(["serve", "--enable-test-commands", "--auth", "--tls-cert"])
                .arg(certificate("server.pem"))
                .arg("--tls-ca")
                .arg(certificate("ca.pem")),
            Topology::ReplicaSet => command.args(["up", "--members", "3"]),
        };
        command.args(["--memory", "--port", "0"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let failed = |why: String| fail!("{} could not be started: {why}", topology.name());
        let mut process = command.spawn().map_err(|error| failed(error.to_string()))?;
        let stdout = process.stdout.take().ok_or_else(|| failed("it has no output".to_owned()))?;
        // The connection string is printed once it is ready.
        let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
        let uri = lines.find_map(|line| line.split_whitespace().find_map(seed_of));
        match uri {
            // By the name that its certificate is for.
            Some((_, port)) if topology == Topology::Encrypted => {
                Ok(Self { process, host: "localhost".to_owned(), port })
            }
            Some((host, port)) => Ok(Self { process, host, port }),
            None => {
                let _ = process.wait();
                Err(failed("it ended without saying where it listens".to_owned()))
            }
        }
    }

    /// The host and port of one member.
    pub(super) fn seed(&self) -> (&str, &str) {
        (&self.host, &self.port)
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        // Asked kindly, it ends its members too.
        let asked = Command::new("kill").arg(self.process.id().to_string()).status();
        if !asked.is_ok_and(|status| status.success()) {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

/// The first host and port of a connection string.
fn seed_of(word: &str) -> Option<(String, String)> {
    let hosts = word.strip_prefix("mongodb://")?.split('/').next()?;
    let (host, port) = hosts.split(',').next()?.split_once(':')?;
    Some((host.to_owned(), port.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_seed_is_taken() {
        let seed = |host: &str, port: &str| Some((host.to_owned(), port.to_owned()));
        assert_eq!(seed_of("mongodb://127.0.0.1:5/"), seed("127.0.0.1", "5"));
        assert_eq!(seed_of("mongodb://a:1,b:2/?replicaSet=rs0"), seed("a", "1"));
        assert_eq!(seed_of("ready"), None);
    }
}

//! The judge: a real driver. Installs pymongo and runs the scripts in `tests/pymongo` against a
//! server on port 0.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use std::path::Path;
use std::process::Command;

use support::TestServer;

const PYMONGO: &str = "pymongo[snappy,zstd]==4.19.0";

fn succeed(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} failed\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

async fn run_script(name: &str) {
    run_script_on(TestServer::start().await, name).await;
}

async fn run_script_on(server: TestServer, name: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pymongo").join(name);
    let port = server.address.port().to_string();
    tokio::task::spawn_blocking(move || {
        let python = quorate_provision::python(&[PYMONGO]).unwrap();
        succeed(Command::new(python).arg(script).arg(port));
    })
    .await
    .unwrap();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_cursors_and_indexes() {
    run_script("crud.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_sessions_and_compression() {
    run_script("connections.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn profiles_locks_and_figures() {
    run_script("administration.py").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn users_roles_and_logins() {
    run_script_on(TestServer::start_guarded().await, "authentication.py").await;
}

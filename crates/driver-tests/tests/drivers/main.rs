//! Real clients from their registries against our server: pymongo, the Node driver, mongosh, the
//! Rust driver, libmongoc and Mongoose.
//!
//! Each does the same things, in parts: `documents` (connecting, CRUD, cursors, indexes,
//! aggregation, bulk writes), `retries` (after an injected failure), `login` (by password),
//! `certificate` (by the certificate of the connection), `transactions`, `watch` (change streams), and
//! `round-trip`, which is run with each compressor and over TLS. Mongoose has `transactions` and `watch` only:
//! the rest is the Node driver's. The scripts are in `tests/scripts`; they end with the number of checks they made, so that one which checks nothing does not pass. What a client shows on the wire is judged here:
//! see `witness`. `docs/conformance.md` has the table of clients and topics.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod clients;
mod examples;
mod judge;
mod rust_driver;
mod server;
mod witness;

use clients::Client;

/// The tests of one client.
macro_rules! judge {
    ($name:ident, $client:expr) => {
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn works_standalone() {
                judge::works_standalone($client).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn works_in_a_set() {
                judge::works_in_a_set($client).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn logs_in() {
                judge::logs_in($client).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn logs_in_by_certificate() {
                judge::logs_in_by_certificate($client).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn compresses() {
                judge::compresses($client).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn encrypts() {
                judge::encrypts($client).await;
            }
        }
    };
}

/// Transactions and change streams, by each client.
macro_rules! judge_set {
    ($name:ident, $client:expr) => {
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn transacts() {
                judge::transacts($client).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn watches() {
                judge::watches($client).await;
            }
        }
    };
}

mod in_a_set {
    use super::*;

    judge_set!(pymongo, Client::Pymongo);
    judge_set!(node, Client::Node);
    judge_set!(mongosh, Client::Mongosh);
    judge_set!(rust, Client::Rust);
    judge_set!(libmongoc, Client::Libmongoc);
    judge_set!(mongoose, Client::Mongoose);
}

judge!(pymongo, Client::Pymongo);
judge!(node, Client::Node);
judge!(mongosh, Client::Mongosh);
judge!(rust, Client::Rust);
judge!(libmongoc, Client::Libmongoc);

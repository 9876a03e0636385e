#![doc = include_str!("../README.md")]
//!
//! Both clients use [`client_config`]; the streams are theirs. Both ends of TLS read their files with
//! [`read_certificates`], [`read_key`] and [`read_authorities`]; the X.509 login takes a user's name
//! from [`Subject`]. The crypto provider is ring. Follows the URI options specification:
//! `tlsInsecure` is `tlsAllowInvalidCertificates` and `tlsAllowInvalidHostnames` together.

mod certificates;
mod client;
mod lenient;
mod subject;

pub use certificates::{FileError, read_authorities, read_certificates, read_key};
pub use client::{TlsError, TlsOptions, client_config, server_name};
pub use rustls;
pub use subject::{Subject, SubjectError};

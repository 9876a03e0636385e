//! TLS for clients: the `tls*` options of a connection string in, a configuration of rustls out.
//!
//! Both clients use [`client_config`]; the streams are theirs. Files are read by
//! `quorate-certificates`. The crypto provider is ring. Follows the URI options specification:
//! `tlsInsecure` is `tlsAllowInvalidCertificates` and `tlsAllowInvalidHostnames` together.

mod client;
mod lenient;

pub use client::{TlsError, TlsOptions, client_config, server_name};
pub use rustls;

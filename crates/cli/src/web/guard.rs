//! Which requests may look and which may act.
//!
//! The page listens on loopback, which every program and every web page in a browser on this machine
//! can reach. So three things are checked:
//!
//! - `Host` must be a name of loopback with our port. A page elsewhere whose name was made to lead
//!   here (DNS rebinding) sends its own name.
//! - `Origin`, where a browser sends it, must be ourselves, and so must `Sec-Fetch-Site`.
//! - A request that acts must carry the token that was drawn for this run and is written into the page, which
//!   other origins cannot read.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq as _;

use super::Site;

/// The header that carries the token.
const TOKEN_HEADER: &str = "x-quorate-token";

/// How many random bytes the token has.
const TOKEN_BYTES: usize = 32;

/// The headers of every reply: nothing from elsewhere, nothing inline, no frames, nothing kept.
const HEADERS: [(header::HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// A secret of this run.
pub(super) struct Token(String);

impl Token {
    /// A new one.
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; TOKEN_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(hex::encode(bytes)))
    }

    /// Its text, for the page.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares in a time that tells nothing about where the difference is.
    fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

/// The rules for one address.
pub(super) struct Guard {
    /// The hosts that are ourselves, with the port.
    hosts: Vec<String>,
    token: Token,
}

impl Guard {
    pub(super) fn new(address: SocketAddr, token: Token) -> Self {
        let port = address.port();
        let mut hosts: Vec<String> =
            ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("{host}:{port}")).to_vec();
        // Any address of 127.0.0.0/8 may have been asked for.
        hosts.push(address.to_string());
        if port == 80 {
            // Browsers leave it out.
            hosts.extend(["127.0.0.1", "localhost", "[::1]"].map(str::to_owned));
        }
        Self { hosts, token }
    }

    pub(super) fn token(&self) -> &Token {
        &self.token
    }

    /// Whether the token was sent.
    pub(super) fn knows(&self, headers: &HeaderMap) -> bool {
        headers.get(TOKEN_HEADER).is_some_and(|given| self.token.is(given.as_bytes()))
    }

    /// Why a request is refused; none if it is not.
    fn objection(&self, headers: &HeaderMap) -> Option<&'static str> {
        let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_ascii_lowercase();
        let host = headers.get(header::HOST).map(text).unwrap_or_default();
        if headers.get_all(header::HOST).iter().count() > 1 || !self.hosts.contains(&host) {
            return Some("open this page as http://127.0.0.1 or http://localhost, with its port\n");
        }
        let is_ours = |origin: &HeaderValue| {
            let origin = text(origin);
            origin.strip_prefix("http://").is_some_and(|host| self.hosts.iter().any(|h| h == host))
        };
        if !headers.get_all(header::ORIGIN).iter().all(is_ours) {
            return Some("requests of other pages are refused; open this page itself\n");
        }
        None
    }

    /// Whether a browser says that another site asked. A link from elsewhere may lead to the page.
    fn is_cross_site(headers: &HeaderMap, method: &Method, path: &str) -> bool {
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let is_link = method == Method::GET && path == "/";
        !matches!(site, None | Some(b"same-origin" | b"none")) && !is_link
    }
}

/// Lets a request pass, or refuses it; and adds what every reply carries.
pub(super) async fn check(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let cross_site =
        Guard::is_cross_site(request.headers(), request.method(), request.uri().path());
    let objection = site.guard.objection(request.headers()).or_else(|| {
        cross_site.then_some("requests of other sites are refused; open this page itself\n")
    });
    let mut reply = match objection {
        Some(objection) => (StatusCode::FORBIDDEN, objection).into_response(),
        None => next.run(request).await,
    };
    for (name, value) in HEADERS {
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        Guard::new("127.0.0.1:8080".parse().unwrap(), Token("0123".to_owned()))
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn only_names_of_loopback_with_our_port_are_served() {
        for host in ["127.0.0.1:8080", "localhost:8080", "LOCALHOST:8080", "[::1]:8080"] {
            assert_eq!(guard().objection(&headers(&[("host", host)])), None, "{host}");
        }
        for host in [
            "", "localhost", "127.0.0.1", "localhost:80", "evil.example:8080",
            "127.0.0.1.evil:8080", "localhost:8080.evil", "127.0.0.1:8080,evil", "10.0.0.1:8080",
            "user@127.0.0.1:8080",
        ] {
            assert!(guard().objection(&headers(&[("host", host)])).is_some(), "{host}");
        }
        assert!(guard().objection(&HeaderMap::new()).is_some());
        let two = headers(&[("host", "localhost:8080"), ("host", "evil.example")]);
        assert!(guard().objection(&two).is_some());
    }

    #[test]
    fn an_origin_must_be_ourselves() {
        let with = |origin| headers(&[("host", "localhost:8080"), ("origin", origin)]);
        for origin in ["http://localhost:8080", "http://127.0.0.1:8080"] {
            assert_eq!(guard().objection(&with(origin)), None, "{origin}");
        }
        for origin in
            ["null", "", "http://evil.example", "https://localhost:8080", "http://localhost:8081"]
        {
            assert!(guard().objection(&with(origin)).is_some(), "{origin}");
        }
    }

    #[test]
    fn another_site_may_link_and_no_more() {
        let asked = |site, method: &Method, path| {
            Guard::is_cross_site(&headers(&[("sec-fetch-site", site)]), method, path)
        };
        assert!(!asked("cross-site", &Method::GET, "/"), "a link");
        assert!(asked("cross-site", &Method::GET, "/view"));
        assert!(asked("same-site", &Method::POST, "/actions"));
        assert!(!asked("same-origin", &Method::POST, "/actions"));
        assert!(!Guard::is_cross_site(&HeaderMap::new(), &Method::POST, "/actions"), "no browser");
    }

    #[test]
    fn the_token_is_known_as_a_whole() {
        let knows = |given| guard().knows(&headers(&[("x-quorate-token", given)]));
        assert!(knows("0123"));
        for wrong in ["", "012", "01234", "0124", "1123"] {
            assert!(!knows(wrong), "{wrong}");
        }
        assert!(!guard().knows(&HeaderMap::new()));
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(one.as_str().len(), 2 * TOKEN_BYTES);
        assert_ne!(one.as_str(), other.as_str());
    }
}

//! Rules about TLS and authentication. Their faults often look like timeouts.

use super::Context;
use super::rules::{Evidence, Rank, Rule, at, servers_of, word_of};
use crate::finding::Finding;
use crate::remedy;
use crate::words::Foreign;

pub(super) const RULES: &[Rule] = &[
    Rule::plain(
        "tls_against_plain",
        &[
            r"(?i)wrong[ _]version[ _]number",
            r"first record does not look like a TLS handshake",
            r"Unsupported or unrecognized SSL message",
            r"InvalidContentType",
            r"(?i)packet length too long",
            r"SSL handshake received but server is started without SSL support",
            r"SSL enabled, but the server is not accepting SSL connections",
        ],
        "the client speaks TLS, the server answers in plain text{at}",
        "the first bytes of the answer are no TLS record: the server was started without TLS, or \
         another program listens on that port",
        &[
            remedy::SPEAK_PLAIN,
            remedy::SERVE_TLS,
        ],
    ),
    Rule::plain(
        "tls_required",
        &[
            r"server is configured to only allow SSL connections",
            r"(?i)server requires (?:TLS|SSL)",
            r"this server speaks TLS only",
        ],
        "the server takes TLS only{at}",
        "plain connections are closed, which drivers report as a timeout or a closed connection",
        &[
            remedy::SPEAK_TLS,
        ],
    ),
    Rule::cause(
        "certificate_expired",
        &[
            r"(?i)certificate has expired",
            r"CERT_HAS_EXPIRED",
            r"invalid peer certificate: Expired",
            r"CertificateExpiredException",
        ],
        certificate_expired,
    ),
    Rule::cause(
        "certificate_name",
        &[
            r"certificate is valid for (?P<found>[^,]+(?:, [\w.*-]+)*), not (?P<host>[\w.-]+)",
            r"Host: (?P<host>[\w.-]+)\. is not in the cert's altnames: (?P<found>[^\n\r\x22']+)",
            r"IP: (?P<host>[\w.:]+) is not in the cert's list: ?(?P<found>[^\n\r\x22']*)",
            r"certificate is not valid for '(?P<host>[^']+)'",
            r"hostname '(?P<host>[^']+)' doesn't match",
            r"No (?:subject alternative|name matching) .{0,40}?(?P<host>[\w-]+\.[\w.-]+) found",
            r"NotValidForName|ERR_TLS_CERT_ALTNAME_INVALID|(?i:hostname verification failed)",
            r"remote certificate (?:is invalid|was rejected)[^\n]{0,80}?RemoteCertificateNameMismatch",
        ],
        certificate_name,
    ),
    Rule::plain(
        "certificate_untrusted",
        &[
            r"unable to verify the first certificate|UNABLE_TO_VERIFY_LEAF_SIGNATURE",
            r"(?i)self[- ]signed certificate|DEPTH_ZERO_SELF_SIGNED_CERT",
            r"unable to get (?:local )?issuer certificate",
            r"PKIX path building failed",
            r"certificate signed by unknown authority",
            r"UnknownIssuer",
            r"SSL routines::certificate verify failed",
            r"remote certificate (?:is invalid|was rejected)[^\n]{0,80}?(?:RemoteCertificateChainErrors|UntrustedRoot|PartialChain)",
            r"remote certificate (?:is invalid according to the validation procedure|was rejected)",
        ],
        "the server's certificate comes from an authority that is not trusted here{at}",
        "it is self-signed or signed by an authority of your own, or the server does not send \
         the intermediate certificates",
        &[
            remedy::TRUST_AUTHORITY,
            "let the server send the whole chain: put the intermediate certificates into its \
             certificateKeyFile",
        ],
    ),
    Rule::plain(
        "tls_handshake",
        &[
            r"(?:SSL|TLS) handshake failed: (?P<host>[\w.-]+):(?P<port>\d+)",
            r"TLS handshake failed: Connection timed out calling \w+ on '(?P<host>[^':]+):(?P<port>\d+)'",
            r"socket disconnected before secure TLS connection was established",
            r"(?:SSL|TLS) handshake failed|SSLHandshakeException|SSL connection failed for",
            r"remote party has closed the transport stream",
        ],
        "a TLS handshake failed{at}",
        "the text does not say why: a certificate, a protocol version, or no TLS at all",
        &[
            remedy::doctor_which!("tries plain and TLS and tells which one is answered"),
            "paste the whole message with its causes",
        ],
    )
    .ranked(Rank::Symptom),
    Rule::cause(
        "authentication_failed",
        &[
            r"MongoCredential\{mechanism=(?P<mechanism>[\w-]+), userName='(?P<user>[^']*)', source='(?P<database>[^']*)'",
            r"unable to authenticate using mechanism \x22(?P<mechanism>[^\x22]+)\x22",
            r"Unable to authenticate using sasl protocol mechanism (?P<mechanism>[\w-]+)",
            r"Could not find user \x22?(?P<user>[^\x22@\s]+)",
            r"(?P<mechanism>SCRAM-SHA-\d+) (?:authentication failed|failure)",
            r"(?i)authentication ?failed(?P<detail> because the remote party|, see inner exception)?",
            r"(?i)bad auth\b|storedKey mismatch",
        ],
        authentication_failed,
    )
    // .NET calls the handshake of TLS so too.
    .only(|evidence| evidence.word("detail").is_none()),
    Rule::cause(
        "not_authorized",
        &[
            r"not authorized on (?P<database>[\w-]+) to execute command",
            r"[Cc]ommand (?P<detail>\w+) requires authentication",
            r"there are no users authenticated",
            r"not allowed to do action \[\w+\] on \[(?P<database>[\w-]+)",
        ],
        not_authorized,
    ),
];

fn certificate_expired(evidence: &[Evidence], _: &Context) -> Finding {
    let host = servers_of(evidence).into_iter().next();
    let host = host.unwrap_or_else(|| "HOST:27017".to_owned());
    finding!(problem "certificate_expired", "a certificate is past its last day{}", at(evidence))
        .because(
            "TLS refuses it, and the driver reports a server that cannot be selected; a wrong \
              clock on this machine looks the same",
        )
        .fix(format!(
            "see the dates: openssl s_client -connect {host} </dev/null | openssl x509 \
                  -noout -dates"
        ))
        .fix(remedy::RENEW_CERTIFICATE)
}

fn certificate_name(evidence: &[Evidence], _: &Context) -> Finding {
    let host = evidence.iter().find_map(|evidence| evidence.host.clone());
    let found = word_of(evidence, "found").map(str::trim).filter(|found| !found.is_empty());
    let seen = match (&host, found) {
        (Some(host), Some(found)) => {
            format!("the certificate is for {}, and {host} was dialled", Foreign(found))
        }
        (Some(host), None) => format!("the certificate does not name {host}, which was dialled"),
        (None, _) => "the certificate does not name the host that was dialled".to_owned(),
    };
    Finding::problem("certificate_name", seen)
        .because(
            "drivers check the name they dial, which in a replica set is the one the set \
                  advertises",
        )
        .fix("issue the certificate with every advertised name as a subject alternative name")
        .fix("advertise the names that the certificates carry (rs.reconfig)")
        .fix(
            "to see whether this is all: tlsAllowInvalidHostnames=true (gives up protection, not \
              for production)",
        )
}

fn authentication_failed(evidence: &[Evidence], context: &Context) -> Finding {
    let credential = context.uri.as_ref().and_then(|uri| uri.credential());
    let from_uri = credential.and_then(|credential| credential.user_name.clone());
    let user = word_of(evidence, "user").map(str::to_owned).or(from_uri);
    let mut details = Vec::new();
    if let Some(mechanism) = word_of(evidence, "mechanism") {
        details.push(format!("mechanism {mechanism}"));
    }
    if let Some(database) = word_of(evidence, "database") {
        details.push(format!("database {database}"));
    }
    let details =
        if details.is_empty() { String::new() } else { format!(" ({})", details.join(", ")) };
    let who = user.as_ref().map_or_else(String::new, |user| format!(" for user {}", Foreign(user)));
    let name = user.unwrap_or_else(|| "USER".to_owned());
    finding!(problem "authentication_failed",
        "authentication failed{who}{details}{}; the network is fine", at(evidence))
    .because(
        "the server was reached and refused the user: wrong password, unknown user, or a \
              user of another database",
    )
    .fix(remedy::NAME_AUTH_SOURCE)
    .fix(remedy::ENCODE_PASSWORD)
    .fix(format!(
        "look the user up as an administrator: db.getSiblingDB(\"admin\").getUser({:?})",
        Foreign(&name).to_string()
    ))
}

fn not_authorized(evidence: &[Evidence], _: &Context) -> Finding {
    let database = word_of(evidence, "database").unwrap_or("DATABASE");
    let seen = match word_of(evidence, "detail") {
        Some(command) => format!("the server wants a login before {command}, and none was made"),
        None => format!("the user may not do this on the database {database}"),
    };
    Finding::problem("not_authorized", seen)
        .because("the connection works; what lacks is a login or a role")
        .fix(
            "put the user into the connection string: \
              mongodb://USER:PASSWORD@HOST/?authSource=admin",
        )
        .fix(format!(
            "grant the role as an administrator: \
                      db.getSiblingDB(\"admin\").grantRolesToUser(\"USER\", [{{role: \
                      \"readWrite\", db: \"{database}\"}}])"
        ))
}

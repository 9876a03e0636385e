//! The configuration file of mongod, as options of `quorate serve`.
//!
//! Reads the part of YAML that such files use: keys below keys, and one value on a line. A key
//! without a counterpart here is left out and listed. A key that protects the data is never left out: it has a
//! counterpart, or the file is refused.

/// The content of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    /// Names of options and their values.
    pub(super) options: Vec<(&'static str, String)>,
    /// Keys without a counterpart here, with the reason where that is no loss.
    pub(super) ignored: Vec<String>,
}

/// Keys without which the data would be less protected than the file asks.
const PROTECTING: [&str; 5] =
    ["security.", "net.tls.", "net.ssl.", "auditLog.", "net.unixDomainSocket.filePermissions"];

/// Whether a file is of this kind, by its name.
pub(super) fn is_wanted(path: &std::path::Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    ["yml", "yaml", "conf"].contains(&ending)
}

/// Reads a file. Fails if it is not understood, or asks for a protection that is not offered.
pub(super) fn read(text: &str) -> Result<Read, String> {
    let mut found = Read::default();
    for (line, key, value) in entries(text)? {
        translate(&key, &value, &mut found).map_err(|why| format!("line {line}: {key}: {why}"))?;
    }
    Ok(found)
}

fn translate(key: &str, value: &str, found: &mut Read) -> Result<(), String> {
    let is_on = matches!(value, "true" | "enabled" | "1" | "yes" | "on");
    let option = match key {
        "net.port" => ("port", value.to_owned()),
        "net.bindIp" => ("bind", value.replace(' ', "")),
        "net.bindIpAll" if is_on => ("bind", "*".to_owned()),
        "net.maxIncomingConnections" => ("max-connections", value.to_owned()),
        "net.tls.mode" => {
            let modes = [
                ("disabled", "disabled"),
                ("allowTLS", "allow"),
                ("preferTLS", "prefer"),
                ("requireTLS", "require"),
            ];
            let mode = modes.iter().find(|(theirs, _)| *theirs == value);
            let mode = mode.ok_or_else(|| format!("{value} is no mode; write requireTLS"))?;
            ("tls-mode", mode.1.to_owned())
        }
        "net.tls.certificateKeyFile" => ("tls-cert", value.to_owned()),
        "net.tls.CAFile" => ("tls-ca", value.to_owned()),
        "net.tls.allowConnectionsWithoutCertificates" => {
            ("tls-require-client-certificate", (!is_on).to_string())
        }
        "storage.dbPath" => ("data", value.to_owned()),
        "replication.replSetName" | "replication.replSet" => ("replset", value.to_owned()),
        "replication.oplogSizeMB" => ("oplog-size", value.to_owned()),
        "replication.replIndexPrefetch" | "replication.secondaryIndexPrefetch" => {
            ("repl-index-prefetch", value.to_owned())
        }
        "security.authorization" => ("auth", is_on.to_string()),
        "security.keyFile" => ("keyfile", value.to_owned()),
        "security.clusterAuthMode" => match value {
            "keyFile" => ("cluster-auth", "keyfile".to_owned()),
            "x509" => ("cluster-auth", "x509".to_owned()),
            other => return Err(format!("{other} is not offered; write keyFile or x509")),
        },
        "systemLog.verbosity" if value != "0" => ("log-level", "debug".to_owned()),
        "setParameter.enableTestCommands" => ("enable-test-commands", is_on.to_string()),
        "security.javascriptEnabled" => return ignore(found, key, "there is no JavaScript here"),
        "processManagement.fork" => return ignore(found, key, "systemd or a container runs it"),
        "systemLog.path" => ("log-file", value.to_owned()),
        // `path` says so too, and the log is always appended to.
        "systemLog.destination" if value == "file" => return Ok(()),
        "systemLog.logAppend" if is_on => return Ok(()),
        "systemLog.logAppend" => return ignore(found, key, "the log is appended to"),
        "systemLog.destination" => return ignore(found, key, "the log goes to stderr"),
        "storage.journal.enabled" => return ignore(found, key, "there is always a journal"),
        _ if PROTECTING.iter().any(|prefix| key.starts_with(prefix)) => {
            let off = matches!(value, "false" | "disabled" | "0" | "no" | "off");
            if off {
                return ignore(found, key, "it is off");
            }
            return Err("it protects the data and is not offered; remove it if you can do without"
                .to_owned());
        }
        _ => {
            found.ignored.push(key.to_owned());
            return Ok(());
        }
    };
    found.options.push(option);
    Ok(())
}

fn ignore(found: &mut Read, key: &str, why: &str) -> Result<(), String> {
    found.ignored.push(format!("{key} ({why})"));
    Ok(())
}

/// Every value with its line and the keys above it, joined by dots.
fn entries(text: &str) -> Result<Vec<(usize, String, String)>, String> {
    let mut above: Vec<(usize, String)> = Vec::new();
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let content = without_comment(line);
        if content.trim().is_empty() || content.trim() == "---" {
            continue;
        }
        let indent = content.len() - content.trim_start().len();
        let wrong = |what: &str| format!("line {number}: {what}; write key: value");
        if content[..indent].contains('\t') {
            return Err(wrong("a tab is no indentation"));
        }
        let (key, value) =
            content.trim().split_once(':').ok_or_else(|| wrong("there is no colon"))?;
        let value = value.trim();
        if key.starts_with(['-', '{', '[', '&', '*']) || value.starts_with(['{', '[', '|', '>']) {
            return Err(wrong("this form of YAML is not read"));
        }
        above.retain(|(outer, _)| *outer < indent);
        let key = plain(key.trim());
        let path: Vec<&str> =
            above.iter().map(|(_, key)| key.as_str()).chain([key.as_str()]).collect();
        if value.is_empty() {
            above.push((indent, key));
        } else {
            found.push((number, path.join("."), plain(value)));
        }
    }
    Ok(found)
}

/// A `#` at the beginning or after a blank begins a comment, except within quotes.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (place, c) in line.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '#' && before.is_whitespace() => return &line[..place],
            None if (c == '"' || c == '\'') && !before.is_alphanumeric() => quote = Some(c),
            None => {}
        }
        before = c;
    }
    line
}

fn plain(value: &str) -> String {
    let inner = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    inner('"').or_else(|| inner('\'')).unwrap_or(value).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_file_is_read() {
        let file = "\
# mongod.conf
storage:
  dbPath: /var/lib/mongodb   # where
  journal:
    enabled: true
systemLog:
  destination: file
  path: \"/var/log/mongodb/mongod.log\"
net:
  port: 27018
  bindIp: 127.0.0.1, 10.0.0.5
  tls:
    mode: requireTLS
    certificateKeyFile: '/etc/ssl/mongodb.pem'
replication:
  replSetName: rs0
  oplogSizeMB: 512
  secondaryIndexPrefetch: _id_only
security:
  authorization: enabled
  keyFile: /etc/key#1
operationProfiling:
  slowOpThresholdMs: 200
";
        let read = read(file).unwrap();
        let wanted = [
            ("data", "/var/lib/mongodb"),
            ("log-file", "/var/log/mongodb/mongod.log"),
            ("port", "27018"),
            ("bind", "127.0.0.1,10.0.0.5"),
            ("tls-mode", "require"),
            ("tls-cert", "/etc/ssl/mongodb.pem"),
            ("replset", "rs0"),
            ("oplog-size", "512"),
            ("repl-index-prefetch", "_id_only"),
            ("auth", "true"),
            ("keyfile", "/etc/key#1"),
        ];
        assert_eq!(read.options, wanted.map(|(name, value)| (name, value.to_owned())));
        assert_eq!(
            read.ignored,
            [
                "storage.journal.enabled (there is always a journal)",
                "operationProfiling.slowOpThresholdMs",
            ]
        );
    }

    #[test]
    fn what_protects_is_never_left_out() {
        for (file, words) in [
            (
                "security:\n  enableEncryption: true",
                "line 2: security.enableEncryption: it protects",
            ),
            ("net:\n  tls:\n    CRLFile: x", "protects the data"),
            ("security:\n  clusterAuthMode: sendKeyFile", "is not offered"),
            ("net:\n  tls:\n    mode: sometimes", "is no mode"),
            ("auditLog:\n  destination: file", "protects the data"),
        ] {
            let error = read(file).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(read("security:\n  enableEncryption: false").unwrap().ignored.len(), 1);
    }

    #[test]
    fn other_forms_of_yaml_are_told() {
        for file in ["net: {port: 1}", "net:\n\tport: 1", "- a: b", "port", "a: [1, 2]"] {
            assert!(read(file).unwrap_err().contains("write key: value"), "{file}");
        }
        assert_eq!(read("---\n\n# nothing\n").unwrap(), Read::default());
    }
}

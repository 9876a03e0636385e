//! The command line, defined once: parsing, `--help`, completions and manual pages come from here.
//!
//! Only commands that work are listed. What each does is the business of the module of its name.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use quorate_protocol::{ReadPreferenceMode, ServerAddress};

use crate::backup::BackupArguments;
use crate::drill::arguments::DrillArguments;
use crate::dump::DumpArguments;
use crate::export::ExportArguments;
use crate::import::ImportArguments;
use crate::list::{ListArguments, MemberArguments};
use crate::manual::{CompletionsArguments, ManArguments};
use crate::prove::ProveArguments;
use crate::quantities::{connection_limit, oplog_size, set_name, span};
use crate::restore::RestoreArguments;
use crate::shell::ShellArguments;
use crate::status::StatusArguments;
use crate::token::TokenArguments;
use crate::what_if::WhatIfArguments;

/// Finds, watches, explains and runs MongoDB-compatible replica sets.
#[derive(Debug, Parser)]
#[command(name = "quorate", version, about, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

const AFTER_HELP: &str = "\
Data goes to stdout, talk to stderr. With --json, each line is one object with t_ns and event.
Exit codes: 0 fine, 1 a problem was found, 2 misuse.";

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what is wrong, why it matters, and what to type.
    Doctor(DoctorArguments),
    /// Look once: who leads, who follows, who is missing.
    Status(StatusArguments),
    /// Watch the live topology of a deployment.
    Watch(WatchArguments),
    /// Replay a recording through the same core, step by step.
    Replay(ReplayArguments),
    /// Send one command to the server that suits it, and print the reply.
    Run(RunArguments),
    /// Send commands one after the other, with history and completion.
    Shell(ShellArguments),
    /// Follow the changes of a deployment, a database or a collection.
    Tail(TailArguments),
    /// Say what a resume token is, and whether a deployment can still resume from it.
    Token(TokenArguments),
    /// Write every collection into files, as mongodump does.
    Dump(DumpArguments),
    /// Write the collections of a dump into a deployment.
    Restore(RestoreArguments),
    /// Copy a running member to a directory that opens as it is.
    Backup(BackupArguments),
    /// Write one collection as JSON lines or CSV.
    Export(ExportArguments),
    /// Read documents from JSON or CSV into a collection.
    Import(ImportArguments),
    /// Run a real replica set on this machine, one process per member.
    Up(UpArguments),
    /// Stop a set that quorate up started.
    Down(DownArguments),
    /// List the sets that quorate up runs on this machine.
    List(ListArguments),
    /// Start one member of a set that quorate up runs.
    #[command(after_help = MemberArguments::START)]
    Start(MemberArguments),
    /// Stop one member of a set that quorate up runs.
    #[command(after_help = MemberArguments::STOP)]
    Stop(MemberArguments),
    /// Stop one member of a set that quorate up runs, and start it again.
    #[command(after_help = MemberArguments::RESTART)]
    Restart(MemberArguments),
    /// Let another member lead, as planned, and measure how long writes stop.
    Switchover(SwitchoverArguments),
    /// Forecast what happens if members go, or the configuration changes.
    WhatIf(WhatIfArguments),
    /// Break a set on purpose and measure how long writes stop.
    Drill(DrillArguments),
    /// Break a set while clients work, and judge what they were told.
    Prove(ProveArguments),
    /// Run one member: a document database that every driver can talk to.
    Serve(Box<ServeArguments>),
    /// Print the completions of a shell.
    Completions(CompletionsArguments),
    /// Print the manual page, in troff.
    Man(ManArguments),
}

impl Arguments {
    /// All definitions.
    pub(crate) fn definitions() -> clap::Command {
        Self::command().mut_subcommands(|command| match command.get_name() {
            // Their data has a form of its own.
            "export" | "completions" | "man" => command,
            "status" => command.arg(json().help("Print one JSON object")),
            "replay" => command.arg(
                json().help("Print one JSON object per line; t_ns is the time in the recording"),
            ),
            _ => command.arg(json()),
        })
    }

    /// Reads the command line, and whether the data is to be JSON lines. Ends the process if that, `--help` or `--version`
    /// is all there is to do.
    pub(crate) fn read() -> (Self, bool) {
        let given = Self::definitions().get_matches();
        let json = given.subcommand().and_then(|(_, given)| given.try_get_one("json").ok()?);
        let json = json.copied().unwrap_or_default();
        (Self::from_arg_matches(&given).unwrap_or_else(|error| error.exit()), json)
    }
}

/// The flag `--json`.
pub(crate) fn json() -> Arg {
    let help = "Print one JSON object per line";
    Arg::new("json").long("json").help(help).action(ArgAction::SetTrue)
}

/// `quorate doctor`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("patient").required(true).args(["uri", "error"])), after_help = "\
Examples:
  quorate doctor 'mongodb://localhost:27017/?replicaSet=rs0'
  quorate doctor --error 'connect ECONNREFUSED ::1:27017'
  node app.js 2>&1 | quorate doctor --error -

A deployment with a problem ends in code 1. A message that is recognised ends in code 0, any other
in code 1. Each stage takes at most 5 s, or connectTimeoutMS of the connection string.")]
pub(crate) struct DoctorArguments {
    /// The connection string of the deployment to examine.
    #[arg(value_name = "URI")]
    pub(crate) uri: Option<String>,
    /// Diagnose this message of a driver, without a network; - reads stdin.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) error: Option<String>,
}

/// `quorate tail`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate tail 'mongodb://localhost:27017/?replicaSet=rs0'
  quorate tail 'mongodb://localhost:27017/?replicaSet=rs0' shop.orders --since 15m
  quorate tail 'mongodb://localhost:27017/?replicaSet=rs0' shop --resume-file orders.place --json

The feed goes on through failovers. A feed that is killed goes on after the last change that it has
printed and stored; that one may be printed again, and none is left out.")]
pub(crate) struct TailArguments {
    /// The connection string of the deployment.
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// What to follow: a database or a collection in one; all of them if this is left out.
    #[arg(value_name = "DB[.COLLECTION]")]
    pub(crate) namespace: Option<String>,
    /// Begin with changes of this time: 15m, 2h or 1d ago, 2026-11-15T20:00:00Z, or seconds since 1970.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) since: Option<String>,
    /// Go on where this file says, and keep in it how far the feed has come.
    #[arg(long, value_name = "FILE")]
    pub(crate) resume_file: Option<PathBuf>,
}

/// `quorate watch`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("whom").required(true).args(["uri", "fleet"])), after_help = "\
Examples:
  quorate watch 'mongodb://localhost:27017/?replicaSet=rs0'
  quorate watch --json 'mongodb://a,b,c/?replicaSet=rs0' | jq 'select(.event == \"topology\")'
  quorate watch --record incident.jsonl 'mongodb://a,b,c/?replicaSet=rs0'
  quorate watch --web 8080 'mongodb://a,b,c/?replicaSet=rs0'
  quorate watch --fleet deployments.txt
  quorate watch --metrics 0.0.0.0:9216 --metrics-token token 'mongodb://a,b,c/?replicaSet=rs0'

On a terminal the deployment is drawn: ? shows the keys, q leaves. Elsewhere, and with --json, each
change is told in a line with its reason. Ctrl-C or SIGTERM ends it.")]
pub(crate) struct WatchArguments {
    /// The connection string of the deployment.
    #[arg(value_name = "URI")]
    pub(crate) uri: Option<String>,
    /// Watch every deployment of this file instead, a line each: a name and a connection string.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["record", "web", "metrics"])]
    pub(crate) fleet: Option<PathBuf>,
    /// Write everything that is seen to this new file, for quorate replay.
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Show it on a web page here, too: a port, or an address of loopback with a port.
    #[arg(long, value_name = "ADDR", value_parser = page_address)]
    pub(crate) web: Option<SocketAddr>,
    /// Serve /metrics, /healthz, /primary and /secondary here: a port, or an address with a port.
    /// Beyond this machine it takes --metrics-token or --metrics-ca.
    #[arg(long, value_name = "ADDR", value_parser = any_address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// The file of the secret that requests for metrics must carry as a bearer token.
    #[arg(long, value_name = "FILE", requires = "metrics")]
    pub(crate) metrics_token: Option<PathBuf>,
    /// Serve metrics with TLS: the file of the certificate.
    #[arg(long, value_name = "FILE", requires = "metrics", requires = "metrics_key")]
    pub(crate) metrics_cert: Option<PathBuf>,
    /// The file of the private key of --metrics-cert.
    #[arg(long, value_name = "FILE", requires = "metrics_cert")]
    pub(crate) metrics_key: Option<PathBuf>,
    /// Ask clients of the metrics for a certificate of these authorities.
    #[arg(long, value_name = "FILE", requires = "metrics_cert")]
    pub(crate) metrics_ca: Option<PathBuf>,
}

/// `quorate replay`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate replay incident.jsonl
  quorate replay --json incident.jsonl | jq 'select(.event == \"topology\")'
  quorate replay --screen incident.jsonl
  quorate replay --html incident.jsonl > incident.html

The same file gives the same output, to the byte, on any machine at any time.")]
pub(crate) struct ReplayArguments {
    /// The recording, as `quorate watch --record` writes it; - reads stdin.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Print one page of HTML that holds everything: a slider, the steps, what the client believed
    /// and what each member said.
    #[arg(long, conflicts_with = "json")]
    pub(crate) html: bool,
    /// Show it on the terminal, step by step, back and forth.
    #[arg(long, conflicts_with_all = ["json", "html"])]
    pub(crate) screen: bool,
}

/// `quorate run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate run 'mongodb://localhost:27017' '{ping: 1}'
  quorate run 'mongodb://localhost:27017/shop' '{find: \"orders\", filter: {paid: false}, limit: 5}'
  quorate run 'mongodb://a,b,c/?replicaSet=rs0' '{hello: 1}' --read-preference secondary")]
pub(crate) struct RunArguments {
    /// The connection string of the deployment.
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// The command: JSON, but keys need no quotes; ObjectId("…") and the like are understood.
    #[arg(value_name = "COMMAND")]
    pub(crate) command: String,
    /// Which members may answer: primary, primaryPreferred, secondary, secondaryPreferred, nearest.
    #[arg(long, value_name = "MODE")]
    pub(crate) read_preference: Option<ReadPreferenceMode>,
    /// The database; otherwise that of the connection string, otherwise admin.
    #[arg(long, value_name = "NAME")]
    pub(crate) database: Option<String>,
}

/// `quorate up`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("place").args(["data", "memory"])), after_help = "\
Examples:
  quorate up
  quorate up --members 5 --data ./set
  quorate up --port 0 --json | jq -r 'select(.event == \"ready\").uri'
  quorate up --detach && quorate drill --kill 'mongodb://127.0.0.1:27017/?replicaSet=rs0'
  quorate up --web 8080 --workload
  quorate up --port 0 --auth -- pytest -q

Ready means that a majority acknowledged a write that went through a replica-set client. A taken
port is moved past. Ctrl-C or SIGTERM stops every member; a member that dies is reported.

A command after -- has stdin and stdout to itself, and gets Ctrl-C and SIGTERM first. One that
cannot be found ends in code 127, one that cannot be run in 126, one ended by signal N in 128 + N.")]
pub(crate) struct UpArguments {
    /// How many members hold data, 1 to 7. Together with the arbiters they are at most 7.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=7))]
    pub(crate) members: u8,
    /// How many members only vote, 0 or 1.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) arbiters: u8,
    /// The port of the first member, 27017 unless given; the others follow. 0 takes any that are
    /// free. A set that --data holds already keeps its ports.
    #[arg(long, value_name = "FIRST")]
    pub(crate) port: Option<u16>,
    /// Keep the data below this directory, made if it is not there.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Keep everything in memory and nothing on disk. The default.
    #[arg(long)]
    pub(crate) memory: bool,
    /// The name of the set, rs0 unless given. A set that --data holds already keeps its name.
    #[arg(long, value_name = "NAME", value_parser = set_name)]
    pub(crate) name: Option<String>,
    /// Ask clients for a login. The user admin is made; the connection string has its password.
    #[arg(long)]
    pub(crate) auth: bool,
    /// Encrypt connections with a certificate made for this set, which the connection string names.
    #[arg(long)]
    pub(crate) tls: bool,
    /// How long the primary may be silent before another is elected, 100ms to 24h; 10s unless given.
    #[arg(long, value_name = "TIME", value_parser = election_timeout)]
    pub(crate) election_timeout: Option<Duration>,
    /// How much history each member keeps, as in 512MB or 2GB; 990 MiB unless given, 64 MiB in memory.
    #[arg(long, value_name = "SIZE", value_parser = oplog_size)]
    pub(crate) oplog_size: Option<u64>,
    /// Return when the set is ready; it goes on until quorate down.
    #[arg(long)]
    pub(crate) detach: bool,
    /// Show the set on a web page here: a port, or an address of loopback with a port.
    #[arg(long, value_name = "ADDR", value_parser = page_address)]
    pub(crate) web: Option<SocketAddr>,
    /// Write to the set all the time, so that a gap shows.
    #[arg(long)]
    pub(crate) workload: bool,
    /// Be the keeper of a detached set, whose output goes to this file.
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "detach")]
    pub(crate) keeper_log: Option<PathBuf>,
    /// Run this command with QUORATE_URI and MONGODB_URI in its environment. The set ends with it,
    /// and its exit code is passed on.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["detach", "keeper_log"])]
    pub(crate) command: Vec<OsString>,
}

impl UpArguments {
    /// How many processes there are.
    pub(crate) fn processes(&self) -> usize {
        usize::from(self.members) + usize::from(self.arbiters)
    }
}

impl Default for UpArguments {
    /// What `quorate` without arguments runs: three members in memory.
    fn default() -> Self {
        Self {
            members: 3,
            arbiters: 0,
            port: None,
            data: None,
            memory: true,
            name: None,
            auth: false,
            tls: false,
            election_timeout: None,
            oplog_size: None,
            detach: false,
            web: Some(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PAGE_PORT))),
            workload: true,
            keeper_log: None,
            command: Vec::new(),
        }
    }
}

/// The shortest election timeout: below it, a busy machine elects all the time.
const MIN_ELECTION_TIMEOUT: Duration = Duration::from_millis(100);

/// The longest election timeout.
const MAX_ELECTION_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

fn election_timeout(text: &str) -> Result<Duration, String> {
    let time = span(text)?;
    match (MIN_ELECTION_TIMEOUT..=MAX_ELECTION_TIMEOUT).contains(&time) {
        true => Ok(time),
        false => Err("give a time from 100ms to 24h".to_owned()),
    }
}

/// Where the page of `quorate` without arguments is, or on any other port if this one is taken.
pub(crate) const DEFAULT_PAGE_PORT: u16 = 27080;

/// An address to listen on: a port of this machine, or an address with a port.
fn any_address(text: &str) -> Result<SocketAddr, String> {
    address(text, "0.0.0.0:9216")
}

/// An address for the page. Every client that reaches it sees everything, so it is on this machine only.
fn page_address(text: &str) -> Result<SocketAddr, String> {
    let address = address(text, "127.0.0.1:8080")?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => {
            Err("the page is for this machine only; give 127.0.0.1 and tunnel to it".to_owned())
        }
    }
}

fn address(text: &str, example: &str) -> Result<SocketAddr, String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        Err(_) => text
            .replace("localhost:", "127.0.0.1:")
            .parse()
            .map_err(|_| format!("give a port, or an address such as {example}")),
    }
}

/// `quorate down`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate down
  quorate down --name rs0
  quorate down --port 27020
  quorate down --all

Every member ends cleanly and is reported. Without a choice, the only set that runs is stopped.")]
pub(crate) struct DownArguments {
    /// The name of the set.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The directory of its data.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// The port of one of its members: two sets of one name are told apart by it.
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Option<u16>,
    /// Stop every set that matches, not only one.
    #[arg(long)]
    pub(crate) all: bool,
}

/// `quorate switchover`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  quorate switchover 'mongodb://a,b,c/?replicaSet=rs0' --to b:27017
  quorate switchover --yes --max-gap 2s 'mongodb://a,b,c/?replicaSet=rs0' --to b:27017

The other members are kept from standing while the primary hands over, and may stand again
afterwards. Ends in code 1 if another member leads then, past the limit, or after any loss.")]
pub(crate) struct SwitchoverArguments {
    /// The connection string of the set.
    #[arg(value_name = "URI")]
    pub(crate) uri: String,
    /// The member that is to lead: host:port as the set calls it.
    #[arg(long, value_name = "HOST")]
    pub(crate) to: ServerAddress,
    /// Fail if no write is acknowledged for longer than this, such as 5s or 200ms.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub(crate) max_gap: Option<Duration>,
    /// Do not ask before acting on a set that quorate up did not start.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `quorate serve`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("store").args(["data", "memory"])), after_help = "\
Examples:
  quorate serve --data ./data
  quorate serve --memory --port 0 --json
  quorate serve --print-config > quorate.toml && quorate serve --config quorate.toml
  quorate serve --data ./data --bind 0.0.0.0 --auth --tls-cert server.pem
  quorate serve --data ./data --replset rs0 --keyfile ./key

The connection string is printed once connections are taken. Ctrl-C or SIGTERM lets running commands
finish, syncs and ends.")]
pub(crate) struct ServeArguments {
    /// Take options from this TOML file, or from one of mongod (.yml, .yaml, .conf); those given here win.
    #[arg(short = 'f', long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print a configuration file with every key, its meaning and its default, and end.
    #[arg(long)]
    pub(crate) print_config: bool,
    /// The port; 0 takes any that is free, and says which.
    #[arg(long, value_name = "PORT", default_value_t = quorate_protocol::DEFAULT_PORT)]
    pub(crate) port: u16,
    /// The directory of the data, made if it is not there.
    #[arg(long, value_name = "DIR", alias = "dbpath")]
    pub(crate) data: Option<PathBuf>,
    /// Keep everything in memory and nothing on disk.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, action = clap::ArgAction::Set)]
    pub(crate) memory: bool,
    /// Be a member of the replica set of this name; replSetInitiate makes the set.
    #[arg(long, value_name = "NAME", alias = "replSet", value_parser = set_name)]
    pub(crate) replset: Option<String>,
    /// The addresses or names to listen on, with commas. Wider than this machine takes --auth, --keyfile or
    /// --insecure.
    #[arg(
        long,
        value_name = "ADDR",
        value_delimiter = ',',
        default_value = "127.0.0.1",
        alias = "bind_ip"
    )]
    pub(crate) bind: Vec<String>,
    /// The address by which clients and other members reach this one, where it is not the one it listens on.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<quorate_protocol::ServerAddress>,
    /// How much history a member of a set keeps, as in 512MB or 2GB; a number alone is megabytes. 990 MiB unless
    /// given, 64 MiB in memory.
    #[arg(long, value_name = "SIZE", value_parser = oplog_size, alias = "oplogSize")]
    pub(crate) oplog_size: Option<u64>,
    /// What a secondary reads ahead of applying: nothing, the _id index, or all indexes.
    #[arg(long, value_name = "WHAT", value_parser = ["none", "_id_only", "all"], default_value = "all", alias = "replIndexPrefetch")]
    pub(crate) repl_index_prefetch: String,
    /// Let every client that reaches --bind read and write everything.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, action = clap::ArgAction::Set)]
    pub(crate) insecure: bool,
    /// Let clients run the commands that are for tests: configureFailPoint injects faults.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, action = clap::ArgAction::Set)]
    pub(crate) enable_test_commands: bool,
    /// Ask clients for a login. The first user is created from this machine, with createUser.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, action = clap::ArgAction::Set)]
    pub(crate) auth: bool,
    /// The file of the secret that members of the set share; implies --auth.
    #[arg(long, value_name = "FILE", alias = "keyFile")]
    pub(crate) keyfile: Option<PathBuf>,
    /// What other servers have and this one does better otherwise: see `serve::refuse_foreign_options`.
    #[arg(long, hide = true)]
    pub(crate) fork: bool,
    /// What other servers have and this one always does: its log is appended to.
    #[arg(long, hide = true)]
    pub(crate) logappend: bool,
    /// How members of the set know each other: by keyfile, or by x509 certificates of one O, OU, DC.
    #[arg(long, value_name = "HOW", value_parser = ["keyfile", "x509"])]
    pub(crate) cluster_auth: Option<String>,
    /// The most connections at once.
    #[arg(long, value_name = "N", default_value_t = quorate_server::MAX_CONNECTIONS, alias = "maxConns", value_parser = connection_limit)]
    pub(crate) max_connections: usize,
    /// Listen on this port too, for clients that see the addresses of this horizon. Several with commas.
    #[arg(long, value_name = "NAME=PORT", value_delimiter = ',')]
    pub(crate) horizon: Vec<String>,
    /// How much to tell on stderr: error, warn, info or debug.
    #[arg(long, value_name = "LEVEL", default_value = "warn", value_parser = ["error", "warn", "info", "debug"])]
    pub(crate) log_level: String,
    /// How a line of the log looks: text for people, or json.
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    pub(crate) log_format: String,
    /// Write the log to the end of this file instead of stderr.
    #[arg(long, value_name = "FILE", alias = "logpath")]
    pub(crate) log_file: Option<PathBuf>,
    /// Encrypt connections with the certificate of this PEM file.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The PEM file of the certificate's private key; the file of the certificate, unless given.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// The PEM file of the authorities whose certificates of clients and other members are trusted.
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Which connections are encrypted: require all, prefer or allow some, or disabled.
    #[arg(long, value_name = "MODE", value_parser = tls_mode_names())]
    pub(crate) tls_mode: Option<String>,
    /// Turn away clients that show no certificate.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", hide_default_value = true, action = clap::ArgAction::Set)]
    pub(crate) tls_require_client_certificate: bool,
    /// End when stdin does: the process that started this one is gone.
    #[arg(long, hide = true)]
    pub(crate) until_stdin_closes: bool,
    /// SIGUSR1 cuts this member off from its set, SIGUSR2 joins it again.
    #[arg(long, hide = true)]
    pub(crate) breakable: bool,
}

fn tls_mode_names() -> clap::builder::PossibleValuesParser {
    quorate_server::TlsMode::NAMED.map(|(name, _)| name).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_do_not_contradict_each_other() {
        Arguments::definitions().debug_assert();
    }

    #[test]
    fn a_server_that_no_client_could_use_is_refused() {
        let parse = |words: &str| Arguments::try_parse_from(words.split(' ')).is_ok();
        assert!(parse("quorate serve --memory --replset rs0 --max-connections 1"));
        assert!(!parse("quorate serve --memory --replset= --port 0"));
        assert!(!parse("quorate up --name= --port 0"));
        assert!(!parse("quorate serve --memory --max-connections 0"));
    }

    #[test]
    fn the_page_stays_on_this_machine() {
        let here = |port| Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        assert_eq!(page_address("8080"), here(8080));
        assert_eq!(page_address("localhost:0"), here(0));
        assert!(page_address("[::1]:8080").is_ok());
        for text in ["0.0.0.0:8080", "[::]:80", "192.168.1.2:80", "example.com:80", "", "99999"] {
            assert!(page_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_command_shows_examples() {
        for command in Arguments::definitions().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let example = format!("Examples:\n  quorate {}", command.get_name());
            assert!(help.starts_with(&example), "{}: {help}", command.get_name());
            // A longer line is broken, and an example is pasted as it stands.
            let long = help.lines().find(|line| line.chars().count() > 100);
            assert_eq!(long, None, "{}", command.get_name());
        }
    }
}

//! Histories: what clients asked, when, and what they were told.
//!
//! A history is written as events, one JSON object a line: an `invoke` when a client sends its operation, and `ok`,
//! `fail` or `info` when it knows the outcome. `fail` means that the operation certainly did nothing; `info` means
//! that the client does not know. The form is the one that Jepsen's checkers read.
//!
//! | `f` | `value` |
//! |---|---|
//! | `read` | `[key, value or null]` |
//! | `write` | `[key, value]` |
//! | `cas` | `[key, [expected or null, new]]` |
//! | `txn` | `[["append", key, value], ["r", key, list or null], …]` |
//! | `transfer` | `{"from": account, "to": account, "amount": n}` |
//! | `balances` | `{"account": balance, …}` or null |
//! | `add` | the element |
//! | `read-all` | the elements or null |
//! | `increment` | by how much |
//! | `count` | the count or null |

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// The most operations of a history. A checker's work and memory grow with it.
pub const MAX_OPERATIONS: usize = 1_000_000;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The operation was acknowledged.
    Ok,
    /// The operation certainly did nothing.
    Fail,
    /// The client does not know.
    Unknown,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Fail => "fail",
            Self::Unknown => "info",
        }
    }
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MicroOperation {
    /// Appends a value to the list under a key. Every value is appended to a key at most once.
    Append {
        /// The list.
        key: i64,
        /// The value.
        value: i64,
    },
    /// Reads the list under a key.
    Read {
        /// The list.
        key: i64,
        /// What was read, if the client knows.
        list: Option<Vec<i64>>,
    },
}

/// What an operation asks for, and what it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads a register; `None` is a register that was never written.
    Read {
        /// The register.
        key: i64,
        /// What was read.
        value: Option<i64>,
    },
    /// Writes a register.
    Write {
        /// The register.
        key: i64,
        /// The new value.
        value: i64,
    },
    /// Writes a register if it has the expected value.
    CompareAndSet {
        /// The register.
        key: i64,
        /// What it must hold.
        expected: Option<i64>,
        /// The new value.
        value: i64,
    },
    /// Several steps that take effect together.
    Transaction(Vec<MicroOperation>),
    /// Moves an amount between two accounts.
    Transfer {
        /// The account that gives.
        from: i64,
        /// The account that receives.
        to: i64,
        /// How much.
        amount: i64,
    },
    /// Reads all accounts.
    Balances(Option<BTreeMap<i64, i64>>),
    /// Adds an element to a set. Every element is added at most once.
    Add(i64),
    /// Reads the whole set, in the order of insertion if there is one.
    ReadAll(Option<Vec<i64>>),
    /// Adds to a counter.
    Increment(i64),
    /// Reads the counter.
    Count(Option<i64>),
}

/// One operation of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its place in the history, by the time it began.
    pub index: usize,
    /// The client. A client does one thing at a time.
    pub process: u64,
    /// When it began, in nanoseconds.
    pub invoked: u64,
    /// When the client learnt the outcome; none if it never did.
    pub completed: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
    /// What it did.
    pub action: Action,
}

impl Operation {
    /// Whether it ended before another began.
    pub(crate) fn precedes(&self, other: &Self) -> bool {
        self.outcome == Outcome::Ok
            && self.completed.is_some_and(|completed| completed < other.invoked)
    }
}

/// Operations in the order in which they began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    operations: Vec<Operation>,
}

/// A history that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum HistoryError {
    /// A line is no JSON object.
    #[error(
        "line {line} of the history is no JSON object: {reason}; cut the file after the last whole line"
    )]
    NotJson {
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// A field is missing or of another type.
    #[error("line {line} of the history: {reason}")]
    Malformed {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// There are too many operations.
    #[error("the history has more than {MAX_OPERATIONS} operations; check it in parts")]
    TooLong,
}

impl History {
    /// A history of operations in any order. They are sorted by their beginning and numbered.
    pub fn new(mut operations: Vec<Operation>) -> Self {
        operations.sort_by_key(|operation| (operation.invoked, operation.index));
        for (index, operation) in operations.iter_mut().enumerate() {
            operation.index = index;
        }
        Self { operations }
    }

    /// The operations, by their beginning.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Reads JSON lines. An operation without an end has an unknown outcome.
    pub fn from_lines(text: &str) -> Result<Self, HistoryError> {
        let mut operations: Vec<Operation> = Vec::new();
        let mut open: BTreeMap<u64, usize> = BTreeMap::new();
        for (place, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let number = place + 1;
            let event: Map<String, Value> = serde_json::from_str(line.trim()).map_err(|error| {
                HistoryError::NotJson { line: number, reason: error.to_string() }
            })?;
            let malformed = |reason: String| HistoryError::Malformed { line: number, reason };
            let Event { kind, process, time, action } = Event::read(&event).map_err(malformed)?;
            match kind {
                None => {
                    if let Some(earlier) = open.insert(process, operations.len()) {
                        let index = operations[earlier].index;
                        return Err(malformed(format!(
                            "process {process} begins an operation before operation {index} has ended"
                        )));
                    }
                    if operations.len() >= MAX_OPERATIONS {
                        return Err(HistoryError::TooLong);
                    }
                    let (index, completed, outcome) = (operations.len(), None, Outcome::Unknown);
                    operations.push(Operation {
                        index,
                        process,
                        invoked: time,
                        completed,
                        outcome,
                        action,
                    });
                }
                Some(outcome) => {
                    let Some(place) = open.remove(&process) else {
                        return Err(malformed(format!(
                            "process {process} ends an operation that it never began"
                        )));
                    };
                    let operation = &mut operations[place];
                    operation.outcome = outcome;
                    operation.completed = Some(time);
                    if outcome == Outcome::Ok {
                        operation.action = action;
                    }
                }
            }
        }
        Ok(Self::new(operations))
    }

    /// Writes JSON lines, by time.
    pub fn to_lines(&self) -> String {
        let mut events: Vec<(u64, usize, Value)> = Vec::new();
        for operation in &self.operations {
            let (f, asked, told) = operation.action.to_json();
            let event = |kind: &str, time: u64, value: Value| {
                json!({
                    "type": kind, "process": operation.process, "time": time, "f": f, "value": value,
                })
            };
            events.push((operation.invoked, 0, event("invoke", operation.invoked, asked.clone())));
            if let Some(completed) = operation.completed {
                let value = if operation.outcome == Outcome::Ok { told } else { asked };
                events.push((completed, 1, event(operation.outcome.word(), completed, value)));
            }
        }
        // An end sorts before a beginning at the same time only if its own beginning is earlier: the sort is stable.
        events.sort_by_key(|(time, end, _)| (*time, *end));
        let mut text = String::new();
        for (index, (_, _, mut event)) in events.into_iter().enumerate() {
            event["index"] = json!(index);
            text.push_str(&event.to_string());
            text.push('\n');
        }
        text
    }
}

struct Event {
    /// None if it begins an operation.
    kind: Option<Outcome>,
    process: u64,
    time: u64,
    action: Action,
}

impl Event {
    fn read(event: &Map<String, Value>) -> Result<Self, String> {
        let number = |name: &str| {
            event
                .get(name)
                .and_then(Value::as_u64)
                .ok_or_else(|| format!("`{name}` is no whole number"))
        };
        let word = |name: &str| {
            event.get(name).and_then(Value::as_str).ok_or_else(|| format!("`{name}` is no string"))
        };
        let kind = match word("type")? {
            "invoke" => None,
            "ok" => Some(Outcome::Ok),
            "fail" => Some(Outcome::Fail),
            "info" => Some(Outcome::Unknown),
            other => return Err(format!("`type` is {other:?}; it is invoke, ok, fail or info")),
        };
        let action = Action::from_json(word("f")?, event.get("value").unwrap_or(&Value::Null))?;
        Ok(Self { kind, process: number("process")?, time: number("time")?, action })
    }
}

impl Action {
    fn from_json(f: &str, value: &Value) -> Result<Self, String> {
        let wrong = || format!("`value` does not fit `f` {f:?}: {value}");
        let pair = || match value.as_array().map(Vec::as_slice) {
            Some([key, rest]) => Ok((key.as_i64().ok_or_else(wrong)?, rest)),
            _ => Err(wrong()),
        };
        Ok(match f {
            "read" => {
                let (key, value) = pair()?;
                Self::Read { key, value: optional_integer(value).ok_or_else(wrong)? }
            }
            "write" => {
                let (key, value) = pair()?;
                Self::Write { key, value: value.as_i64().ok_or_else(wrong)? }
            }
            "cas" => {
                let (key, change) = pair()?;
                let Some([expected, new]) = change.as_array().map(Vec::as_slice) else {
                    return Err(wrong());
                };
                let expected = optional_integer(expected).ok_or_else(wrong)?;
                Self::CompareAndSet { key, expected, value: new.as_i64().ok_or_else(wrong)? }
            }
            "txn" => {
                let steps = value.as_array().ok_or_else(wrong)?;
                Self::Transaction(
                    steps.iter().map(micro_operation).collect::<Option<_>>().ok_or_else(wrong)?,
                )
            }
            "transfer" => {
                let part = |name: &str| value.get(name).and_then(Value::as_i64).ok_or_else(wrong);
                Self::Transfer { from: part("from")?, to: part("to")?, amount: part("amount")? }
            }
            "balances" => Self::Balances(optional(value, balances).ok_or_else(wrong)?),
            "add" => Self::Add(value.as_i64().ok_or_else(wrong)?),
            "read-all" => Self::ReadAll(optional(value, integers).ok_or_else(wrong)?),
            "increment" => Self::Increment(value.as_i64().ok_or_else(wrong)?),
            "count" => Self::Count(optional_integer(value).ok_or_else(wrong)?),
            _ => return Err(format!("`f` is {f:?}, which no checker knows")),
        })
    }

    /// The name of the operation, its arguments and its result.
    fn to_json(&self) -> (&'static str, Value, Value) {
        let same = |f, value: Value| (f, value.clone(), value);
        match self {
            Self::Read { key, value } => ("read", json!([key, null]), json!([key, value])),
            Self::Write { key, value } => same("write", json!([key, value])),
            Self::CompareAndSet { key, expected, value } => {
                same("cas", json!([key, [expected, value]]))
            }
            Self::Transaction(steps) => {
                let asked = steps.iter().map(|step| step.to_json(false)).collect();
                let told = steps.iter().map(|step| step.to_json(true)).collect();
                ("txn", Value::Array(asked), Value::Array(told))
            }
            Self::Transfer { from, to, amount } => {
                same("transfer", json!({ "from": from, "to": to, "amount": amount }))
            }
            Self::Balances(balances) => {
                let told = balances.as_ref().map(|balances| {
                    balances
                        .iter()
                        .map(|(key, value)| (key.to_string(), json!(value)))
                        .collect::<Map<_, _>>()
                });
                ("balances", Value::Null, json!(told))
            }
            Self::Add(element) => same("add", json!(element)),
            Self::ReadAll(elements) => ("read-all", Value::Null, json!(elements)),
            Self::Increment(by) => same("increment", json!(by)),
            Self::Count(count) => ("count", Value::Null, json!(count)),
        }
    }
}

impl MicroOperation {
    fn to_json(&self, told: bool) -> Value {
        match self {
            Self::Append { key, value } => json!(["append", key, value]),
            Self::Read { key, list } => json!(["r", key, list.as_ref().filter(|_| told)]),
        }
    }
}

fn micro_operation(step: &Value) -> Option<MicroOperation> {
    let [name, key, value] = step.as_array()?.as_slice() else { return None };
    let key = key.as_i64()?;
    match name.as_str()? {
        "append" => Some(MicroOperation::Append { key, value: value.as_i64()? }),
        "r" => Some(MicroOperation::Read { key, list: optional(value, integers)? }),
        _ => None,
    }
}

fn optional<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Option<T>> {
    if value.is_null() { Some(None) } else { read(value).map(Some) }
}

fn optional_integer(value: &Value) -> Option<Option<i64>> {
    optional(value, Value::as_i64)
}

fn integers(value: &Value) -> Option<Vec<i64>> {
    value.as_array()?.iter().map(Value::as_i64).collect()
}

fn balances(value: &Value) -> Option<BTreeMap<i64, i64>> {
    let accounts = value.as_object()?.iter();
    accounts.map(|(account, balance)| Some((account.parse().ok()?, balance.as_i64()?))).collect()
}

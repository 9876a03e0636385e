//! A recording as one page of HTML: everything is in the file, nothing is fetched.
//!
//! The page scrubs back and forth with a slider and keys, jumps to the next change, and shows the
//! client's belief beside each member's last word.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_server_discovery::{Input, TopologyDescription};
use serde_json::{Value, json};

use crate::words::Foreign;

/// The most steps on one page. A browser scrubs through that many without a pause.
const MAX_STEPS: usize = 20_000;

/// The page without its data.
const TEMPLATE: &str = include_str!("page.html");

/// Where the data goes.
const PLACE: &str = "/*DATA*/";

/// A page in the making.
pub(super) struct Page {
    name: String,
    steps: Vec<Value>,
    /// The last reply of each member.
    words: BTreeMap<String, String>,
    step: Value,
    previous: Value,
    left_out: usize,
}

impl Page {
    /// A page about the recording of this name.
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            steps: Vec::new(),
            words: BTreeMap::new(),
            step: Value::Null,
            previous: Value::Null,
            left_out: 0,
        }
    }

    /// Remembers what a member says.
    pub(super) fn hear(&mut self, input: &Input) {
        match input {
            Input::HelloReceived { server, reply, .. } => {
                let mut word = super::about(reply);
                if let Some(primary) = &reply.primary {
                    word.push_str(&format!(", primary {primary}"));
                }
                self.words.insert(server.to_string(), Foreign(word).to_string());
            }
            Input::CheckFailed { server, failure, .. } => {
                self.words.insert(server.to_string(), format!("no answer: {}", Foreign(failure)));
            }
            _ => {}
        }
    }

    /// Begins a step with its input.
    pub(super) fn begin_step(
        &mut self,
        number: usize,
        after: Duration,
        sentence: &str,
        wall: Option<String>,
    ) {
        self.step = json!({
            "n": number,
            "t": after.as_secs_f64(),
            "w": wall,
            "s": Foreign(sentence).to_string(),
            "o": [],
        });
    }

    /// Adds what follows from the input.
    pub(super) fn follow(&mut self, text: String) {
        if let Some(outputs) = self.step["o"].as_array_mut() {
            outputs.push(Foreign(text).to_string().into());
        }
    }

    /// Ends a step with what the client believes now.
    pub(super) fn end_step(&mut self, topology: &TopologyDescription) {
        if self.steps.len() >= MAX_STEPS {
            self.left_out += 1;
            return;
        }
        let servers = topology.servers().iter().map(|server| {
            let word = self.words.get(server.address().as_str());
            json!({
                "a": server.address().as_str(),
                "k": server.server_type().to_string(),
                "e": server.error().map(|error| Foreign(error).to_string()),
                "m": word,
            })
        });
        let belief = json!({
            "k": topology.topology_type().to_string(),
            "p": topology.primary().map(|primary| primary.address().as_str().to_owned()),
            "v": servers.collect::<Value>(),
        });
        let mut step = std::mem::take(&mut self.step);
        step["c"] = (shape(&belief) != shape(&self.previous)).into();
        step["b"] = belief.clone();
        self.previous = belief;
        self.steps.push(step);
    }

    /// Every step.
    pub(super) fn steps(&self) -> &[Value] {
        &self.steps
    }

    /// The whole page.
    pub(super) fn to_html(&self) -> String {
        let data = json!({
            "name": self.name,
            "steps": self.steps,
            "leftOut": self.left_out,
        });
        // Nothing in the data can end the script.
        let data = data.to_string().replace('<', "\\u003c");
        TEMPLATE.replace(PLACE, &data)
    }
}

/// The part of a topology whose change is shown: the servers and their roles.
fn shape(belief: &Value) -> (Value, Value, Vec<(Value, Value)>) {
    let servers = belief["v"].as_array().into_iter().flatten();
    let servers = servers.map(|server| (server["a"].clone(), server["k"].clone()));
    (belief["k"].clone(), belief["p"].clone(), servers.collect())
}

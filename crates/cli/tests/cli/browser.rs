//! A real browser, driven through chromedriver's WebDriver protocol over plain HTTP.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::http::{Reply, request};

/// How long the page may take to show something on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(90);

/// How often chromedriver is started. It takes a port that is free for IPv4, asks for the same one
/// for IPv6, and ends if another process has that.
const MAX_STARTS: usize = 5;

/// Starts chromedriver, and gives its port.
fn start_driver() -> Option<(Child, String)> {
    let mut driver = Command::new("chromedriver")
        .arg("--port=0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let says = BufReader::new(driver.stdout.take().unwrap()).lines();
    let port = says.map_while(Result::ok).find_map(|line| {
        let port = line.split("started successfully on port ").nth(1)?;
        Some(port.trim_end_matches('.').to_owned())
    });
    if port.is_none() {
        // It has closed its output: it ends, or has ended.
        let _ = driver.kill();
        let _ = driver.wait();
    }
    port.map(|port| (driver, port))
}

/// What addresses begin with that the browser answers itself, as the parts of the empty page that it starts with.
const BROWSERS_OWN: [&str; 3] = ["chrome://", "chrome-untrusted://", "data:"];

/// One browser with a profile of its own, closed when dropped.
pub(crate) struct Browser {
    driver: Child,
    address: String,
    session: String,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Installs Chromium if it is not there, and starts it without a window.
    pub(crate) fn start() -> Self {
        quorate_provision::debian(&["chromium", "chromium-driver"]).unwrap();
        let (driver, port) = (0..MAX_STARTS)
            .find_map(|_| start_driver())
            .expect("chromedriver says where it listens");
        let address = format!("127.0.0.1:{port}");
        let profile = tempfile::tempdir().unwrap();
        let arguments = [
            "--headless".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-quic".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let mut browser = Self { driver, address, session: String::new(), _profile: profile };
        let session = browser.call("POST", "", &wanted);
        browser.session = session["sessionId"].as_str().unwrap().to_owned();
        browser
    }

    /// Loads a page.
    pub(crate) fn open(&self, url: &str) {
        self.call("POST", "/url", &json!({"url": url}));
    }

    /// Runs a script in the page and gives what it returns.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.call("POST", "/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression in the page is true.
    pub(crate) fn wait(&self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.run(&format!("return Boolean({expression})")) != true {
            let shown = || self.run("return document.body.innerText");
            assert!(Instant::now() < deadline, "never: {expression}\n{}", shown());
        }
    }

    /// Clicks on the first element that a selector finds, as a person does: again if the page moved it away
    /// in that moment, and nothing was clicked.
    pub(crate) fn click(&self, selector: &str) {
        let found = json!({"using": "css selector", "value": selector});
        let deadline = Instant::now() + PATIENCE;
        loop {
            let element = self.call("POST", "/element", &found);
            let id = element.as_object().unwrap().values().next().unwrap().as_str().unwrap();
            let reply = self.send("POST", &format!("/element/{id}/click"), &json!({}));
            let moved = ["element click intercepted", "stale element reference"];
            if reply.status == 200 {
                return;
            }
            let again = moved.iter().any(|why| reply.body.contains(why));
            assert!(again && Instant::now() < deadline, "{selector}: {}", reply.body);
        }
    }

    /// Presses a key.
    pub(crate) fn press(&self, key: char) {
        let key = key.to_string();
        let press = json!([{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]);
        let actions = json!({"actions": [{"type": "key", "id": "keyboard", "actions": press}]});
        self.call("POST", "/actions", &actions);
    }

    /// Makes the window so many pixels wide, as a screen or as a phone.
    pub(crate) fn resize(&self, width: u32, height: u32, phone: bool) {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}),
        );
    }

    /// Prefers `light` or `dark`, as the system of a person would.
    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Saves a picture of the whole page, once no colour is on its way to another and no message hides
    /// anything.
    pub(crate) fn picture(&self, path: &Path) {
        self.wait("!document.querySelector('.toast.shown')");
        self.wait("!document.getAnimations().some((a) => a instanceof CSSTransition)");
        let size =
            self.run("const r = document.documentElement; return [innerWidth, r.scrollHeight]");
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let taken = self.devtools(
            "Page.captureScreenshot",
            &json!({"captureBeyondViewport": true, "clip": clip}),
        );
        let bytes = base64::Engine::decode(
            &base64::engine::general_purpose::STANDARD,
            taken["data"].as_str().unwrap(),
        );
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes.unwrap()).unwrap();
    }

    /// What the console said: errors, and what the policy refused.
    pub(crate) fn console(&self) -> Vec<String> {
        let entries = self.call("POST", "/se/log", &json!({"type": "browser"}));
        entries.as_array().unwrap().iter().map(ToString::to_string).collect()
    }

    /// Every address on a network that was asked for. The browser's own first page comes from within.
    pub(crate) fn requests(&self) -> Vec<String> {
        let entries = self.call("POST", "/se/log", &json!({"type": "performance"}));
        let messages = entries.as_array().unwrap().iter().filter_map(|entry| {
            let message: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let message = &message["message"];
            let url = message["params"]["request"]["url"].as_str()?;
            let sent = message["method"] == "Network.requestWillBeSent";
            let within = BROWSERS_OWN.iter().any(|scheme| url.starts_with(scheme));
            (sent && !within).then(|| url.to_owned())
        });
        messages.collect()
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.call("POST", "/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let reply = self.send(method, path, body);
        assert_eq!(reply.status, 200, "{method} {path} {body}: {}", reply.body);
        reply.json()["value"].take()
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Reply {
        let path = match self.session.is_empty() {
            true => "/session".to_owned(),
            false => format!("/session/{}{path}", self.session),
        };
        let headers = [("host", self.address.as_str()), ("content-type", "application/json")];
        request(&self.address, method, &path, &headers, &body.to_string())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Chromedriver does not take its browser with it, also not after a test that fails.
        if !self.session.is_empty() {
            let reply = self.send("DELETE", "", &json!({}));
            assert!(reply.status == 200 || std::thread::panicking(), "{}", reply.body);
        }
        let _ = Command::new("kill").arg(self.driver.id().to_string()).status();
        let _ = self.driver.wait();
    }
}

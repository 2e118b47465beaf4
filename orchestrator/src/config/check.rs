//! What the settings may be. Whatever passes here, `lapse run` does not refuse later.
//!
//! Relies on [`crate::kafka::Settings::check`] for what only Kafka knows. Never: repeats a URL, it may hold a password.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

use anyhow::{Context, ensure};
use lapse_sagas::Span;

use super::{Config, Token};

impl Config {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.check_postgres()?;
        self.check_kafka()?;
        self.alerts.check()?;
        self.check_http()?;
        let executor = &self.executor;
        within("executor.batch_max", executor.batch_max, 1..=5_000)?;
        within("executor.slots", executor.slots, 1..=64)?;
        within("executor.held_max", executor.held_max, 1..=1_000_000)?;
        ensure!(
            executor.held_max >= executor.batch_max,
            "executor.held_max is {}; allowed is executor.batch_max ({}) to 1000000",
            executor.held_max,
            executor.batch_max
        );
        let polls = Span::from_millis(10)..=Span::from_secs(5);
        within("executor.poll", executor.poll, polls)?;
        let sweeps = Span::from_secs(1)..=Span::from_secs(300);
        within("sweep.every", self.sweep.every, sweeps)?;
        if !self.outbox.url.is_empty() {
            check_any_database("outbox.url", &self.outbox.url)?;
        }
        for (name, participant) in &self.participants {
            check_name("participants", name)?;
            participant.check(&format!("participants.{name}"))?;
        }
        for (name, owner) in &self.order_owners {
            check_name("order_owners", name)?;
            owner.check(name, self.sweep.every)?;
        }
        within("shop.connections", self.shop.connections, 1..=200)
    }

    fn check_http(&self) -> anyhow::Result<()> {
        let http = &self.http;
        ensure!(
            http.listen.ip().is_loopback() || !http.tokens.is_empty(),
            "http.listen is {}: without tokens Lapse listens on loopback only; make one with: lapse token new NAME",
            http.listen
        );
        let mut hashes = BTreeSet::new();
        for (name, token) in &http.tokens {
            Token::check_name(name).map_err(anyhow::Error::msg)?;
            ensure!(
                hashes.insert(token.hash),
                "http.tokens.{name} is the same token as another; each name needs its own"
            );
        }
        Ok(())
    }

    fn check_postgres(&self) -> anyhow::Result<()> {
        check_url("postgres.url (or DATABASE_URL)", &self.postgres.url)?;
        if !self.shop.url.is_empty() {
            check_url("shop.url", &self.shop.url)?;
        }
        within("postgres.writers", self.postgres.writers, 2..=64)?;
        within("postgres.readers", self.postgres.readers, 1..=64)
    }

    fn check_kafka(&self) -> anyhow::Result<()> {
        let kafka = &self.kafka;
        ensure!(
            !kafka.brokers.trim().is_empty(),
            "kafka.brokers is empty; write host:port, or more of them with commas"
        );
        ensure!(!kafka.group.is_empty(), "kafka.group is empty; name one");
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        ensure!(
            kafka.prefix.len() <= 200 && kafka.prefix.bytes().all(legal),
            "kafka.prefix is {:?}; allowed are up to 200 letters, digits, dots, underscores and hyphens",
            kafka.prefix
        );
        ensure!(
            !kafka.buckets.is_empty(),
            "kafka.buckets is empty; name at least one delay, such as [\"1m\"]"
        );
        ensure!(
            kafka.buckets.is_sorted_by(|a, b| a < b),
            "kafka.buckets must ascend without repetition"
        );
        within("kafka.partitions", kafka.partitions, 1..=1_000)?;
        ensure!(
            kafka.replication == -1 || (1..=32_767).contains(&kafka.replication),
            "kafka.replication is {}; allowed is 1 to 32767, or -1 for the brokers' default",
            kafka.replication
        );
        within("kafka.memory_mb", kafka.memory_mb, 16..=65_536)?;
        Ok(self.kafka_settings().check()?)
    }
}

pub(super) fn within<T: PartialOrd + Display>(
    key: &str,
    value: T,
    allowed: RangeInclusive<T>,
) -> anyhow::Result<()> {
    ensure!(
        allowed.contains(&value),
        "{key} is {value}; allowed is {} to {}",
        allowed.start(),
        allowed.end()
    );
    Ok(())
}

/// What a participant or an order owner may be called: definitions name them so, and a topic after it.
fn check_name(section: &str, name: &str) -> anyhow::Result<()> {
    let legal =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    ensure!(
        name.len() <= 64
            && name.starts_with(|first: char| first.is_ascii_lowercase())
            && name.bytes().all(legal),
        "{section}: {name:?} is no name; allowed are 1 to 64 lower-case letters, digits, underscores and hyphens, beginning with a letter"
    );
    Ok(())
}

/// Refuses the first of these settings that is set.
pub(super) fn none_set(
    key: &str,
    settings: &[(&str, bool)],
    goes_without: &str,
) -> anyhow::Result<()> {
    match settings.iter().find(|(_, is_set)| *is_set) {
        Some((name, _)) => {
            anyhow::bail!("{key}.{name} is set, and {goes_without}; take one of them away")
        }
        None => Ok(()),
    }
}

/// What a password may need that is in a URL.
const PERCENT_ENCODE: &str =
    "in user and password percent-encode #, /, @, ? and % (%23, %2F, %40, %3F, %25)";

fn check_url(key: &str, url: &str) -> anyhow::Result<()> {
    let form =
        || format!("{key} is not postgres://user:password@host:port/database; {PERCENT_ENCODE}");
    ensure!(is_postgres(url), "{}", form());
    crate::tls::postgres(url).with_context(form)?;
    Ok(())
}

/// A database of somebody else's.
pub(super) fn check_any_database(key: &str, url: &str) -> anyhow::Result<()> {
    if is_postgres(url) {
        return check_url(key, url);
    }
    let form = || {
        format!(
            "{key} is not postgres://user:password@host:port/database or mysql://…; {PERCENT_ENCODE}"
        )
    };
    let is_mysql = url.starts_with("mysql://") || url.starts_with("mariadb://");
    ensure!(is_mysql, "{}", form());
    crate::tls::mysql(url).with_context(form)?;
    Ok(())
}

fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}

//! How to reach Kafka, what to read, and how much memory that may take.

use std::collections::BTreeMap;
use std::sync::Arc;

use lapse_sagas::Span;
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;

use super::Error;
use crate::timer::{Buckets, Limits, name};

/// What the bus needs to know. Plain values; defaults are the product's.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `bootstrap.servers`.
    pub brokers: String,
    /// Put before every topic name, the dot included: `lapse.`.
    pub prefix: String,
    /// Consumer group.
    pub group: String,
    /// Stable name of this coordinator: a restart within the session time-out moves no partition. Without one the
    /// coordinator leaves the group when it stops.
    pub instance_id: Option<String>,
    /// Memory for prefetched and held records over all partitions.
    pub memory_mb: u64,
    /// Delays that have a topic.
    pub buckets: Vec<Span>,
    /// Partitions of each topic.
    pub partitions: i32,
    /// Copies of each partition; -1 is the brokers' default.
    pub replication: i32,
    /// Participants that are reached over Kafka: each has a topic of commands, all have one for their replies.
    pub queued: Vec<String>,
    /// librdkafka properties that come last; `consumer.` or `producer.` before a name limits it to that client.
    pub extra: BTreeMap<String, String>,
}

/// A topic that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Topic {
    pub name: Arc<str>,
    /// None: the schedule topic.
    pub bucket: Option<Span>,
}

/// One partition's share of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    pub prefetch_kb: u64,
    pub window: Limits,
}

/// Records in one window; 16,000 timers over 8 partitions were 3 ms late at the 99th percentile with it.
const WINDOW_RECORDS: usize = 4_096;

/// Least prefetch of a partition, KiB.
const LEAST_PREFETCH_KB: u64 = 32;

/// Most prefetch of a partition, KiB.
const MOST_PREFETCH_KB: u64 = 2_048;

/// What the guarantees rest on; not to be changed by [`Settings::extra`].
const FIXED: [&str; 8] = [
    "acks",
    "auto.offset.reset",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.idempotence",
    "group.id",
    "group.protocol",
    "partition.assignment.strategy",
];

/// Two names of how long a delivery may take.
const DELIVERY: [&str; 2] = ["delivery.timeout.ms", "message.timeout.ms"];

/// The default of it, and the most.
const DELIVERY_MS: u64 = 30_000;

impl Settings {
    /// The product's defaults for these brokers.
    pub fn new(brokers: impl Into<String>) -> Self {
        const MINUTE: u64 = 60;
        const HOUR: u64 = 3_600;
        Settings {
            brokers: brokers.into(),
            prefix: "lapse.".into(),
            group: "lapse".into(),
            instance_id: None,
            memory_mb: 256,
            buckets: [
                5,
                15,
                MINUTE,
                5 * MINUTE,
                15 * MINUTE,
                30 * MINUTE,
                2 * HOUR,
                24 * HOUR,
            ]
            .map(Span::from_secs)
            .to_vec(),
            partitions: 12,
            replication: -1,
            queued: Vec::new(),
            extra: BTreeMap::new(),
        }
    }

    /// Everything about these settings that would be refused when the bus starts.
    ///
    /// # Errors
    /// [`Error::Settings`] without any value: it may be a password.
    pub fn check(&self) -> Result<(), Error> {
        self.checked_buckets()?;
        for config in [self.consumer_config()?, self.producer_config()?] {
            config.create_native_config().map_err(|error| {
                Error::Settings(match error {
                    KafkaError::ClientConfig(_, words, ..) => format!("kafka.properties: {words}"),
                    other => other.to_string(),
                })
            })?;
        }
        Ok(())
    }

    /// Full name of a topic by its short one, such as `schedule`.
    pub fn topic(&self, short: &str) -> String {
        format!("{}{short}", self.prefix)
    }

    /// Full name of the topic of a delay.
    pub fn bucket_topic(&self, delay: Span) -> String {
        self.topic(&format!("delay.{}", name(delay)))
    }

    pub(super) fn checked_buckets(&self) -> Result<Buckets, Error> {
        Buckets::new(&self.buckets).map_err(Error::Settings)
    }

    /// The delay of an input topic by its full name; none inside for the schedule topic, none at all for any other.
    pub fn bucket_of(&self, topic: &str) -> Option<Option<Span>> {
        let rest = topic.strip_prefix(&self.prefix)?;
        match rest.strip_prefix("delay.") {
            Some(delay) => delay.parse().ok().map(Some),
            None => (rest == "schedule").then_some(None),
        }
    }

    /// The topics that are read.
    pub(super) fn inputs(&self) -> Vec<Topic> {
        let schedule = Topic {
            name: self.topic("schedule").into(),
            bucket: None,
        };
        let bucket = |delay: &Span| Topic {
            name: self.bucket_topic(*delay).into(),
            bucket: Some(*delay),
        };
        std::iter::once(schedule)
            .chain(self.buckets.iter().map(bucket))
            .collect()
    }

    /// Half of the memory for windows, a quarter for prefetched records, the rest for what is on its way; each divided
    /// by all partitions, since one coordinator may have to read them all.
    pub(super) fn shares(&self) -> Result<Shares, Error> {
        let inputs = u64::try_from(self.inputs().len()).unwrap_or(u64::MAX);
        let partitions = u64::try_from(self.partitions)
            .ok()
            .filter(|partitions| *partitions > 0);
        let partitions = partitions
            .ok_or_else(|| Error::Settings("kafka.partitions must be at least 1".into()))?
            * inputs;
        let share_kb = self.memory_mb * 1_024 / partitions;
        if share_kb / 4 < LEAST_PREFETCH_KB {
            let least_mb = (4 * LEAST_PREFETCH_KB * partitions).div_ceil(1_024);
            return Err(Error::Settings(format!(
                "kafka.memory_mb is {}, too little for {partitions} partitions of all inputs; give at least {least_mb}",
                self.memory_mb
            )));
        }
        let window_bytes = usize::try_from(share_kb / 2 * 1_024).unwrap_or(usize::MAX);
        Ok(Shares {
            prefetch_kb: (share_kb / 4).min(MOST_PREFETCH_KB),
            window: Limits {
                records: WINDOW_RECORDS,
                bytes: window_bytes,
            },
        })
    }

    pub(super) fn consumer_config(&self) -> Result<ClientConfig, Error> {
        let prefetch_kb = self.shares()?.prefetch_kb;
        let mut config = self.client_config();
        config
            .set("group.id", &self.group)
            .set("group.protocol", "classic")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest")
            // A dead or hung coordinator must not keep its partitions for longer than the 30 s that are promised.
            .set("session.timeout.ms", "10000")
            .set("heartbeat.interval.ms", "3000")
            .set("max.poll.interval.ms", "15000")
            .set("topic.metadata.refresh.interval.ms", "15000")
            .set("allow.auto.create.topics", "false")
            // Per partition, because each has its own queue.
            .set("queued.min.messages", "2000")
            .set("queued.max.messages.kbytes", prefetch_kb.to_string())
            .set(
                "fetch.message.max.bytes",
                (prefetch_kb * 1_024).min(1_048_576).to_string(),
            )
            .set("fetch.queue.backoff.ms", "50")
            .set("fetch.wait.max.ms", "100")
            // An open transaction of some producer must not stop the timers behind it.
            .set("isolation.level", "read_uncommitted")
            .set("check.crcs", "true")
            .set("statistics.interval.ms", "5000");
        if let Some(instance_id) = &self.instance_id {
            config.set("group.instance.id", instance_id);
        }
        self.add_extra(&mut config, "consumer.", "producer.")?;
        Ok(config)
    }

    /// A member of a group that reads what is settled as soon as it is read. Six seconds is the shortest session that brokers
    /// allow by default: for so long nobody reads what a killed member had.
    pub(super) fn feed_config(&self, group: &str) -> Result<ClientConfig, Error> {
        let mut config = self.client_config();
        config
            .set("group.id", group)
            .set("group.protocol", "classic")
            .set("partition.assignment.strategy", "cooperative-sticky")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest")
            .set("session.timeout.ms", "6000")
            .set("heartbeat.interval.ms", "1500")
            .set("max.poll.interval.ms", "30000")
            .set("topic.metadata.refresh.interval.ms", "15000")
            .set("allow.auto.create.topics", "false")
            .set("queued.max.messages.kbytes", "1024")
            .set("fetch.queue.backoff.ms", "50")
            .set("check.crcs", "true");
        self.add_extra(&mut config, "consumer.", "producer.")?;
        Ok(config)
    }

    pub(super) fn producer_config(&self) -> Result<ClientConfig, Error> {
        let mut config = self.client_config();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", "5")
            .set("delivery.timeout.ms", DELIVERY_MS.to_string())
            // As the Java clients do it, so that a key has one partition whoever produces.
            .set("partitioner", "murmur2_random")
            .set(
                "queue.buffering.max.kbytes",
                (self.memory_mb * 1_024 / 4).max(16_384).to_string(),
            );
        self.add_extra(&mut config, "producer.", "consumer.")?;
        Ok(config)
    }

    /// What consumer, producer and admin client have in common.
    pub(super) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", self.instance_id.as_deref().unwrap_or("lapse"))
            .set("socket.timeout.ms", "10000")
            .set("reconnect.backoff.max.ms", "1000")
            .set("log.connection.close", "false")
            .set_log_level(RDKafkaLogLevel::Info);
        if self.uses_tls() {
            // OpenSSL is built in and knows no authorities: those of the system, wherever this system has them.
            config.set("ssl.ca.location", "probe");
        }
        config
    }

    fn uses_tls(&self) -> bool {
        self.extra.iter().any(|(name, value)| {
            name.ends_with("security.protocol") && value.to_ascii_lowercase().contains("ssl")
        })
    }

    pub(super) fn admin_config(&self) -> ClientConfig {
        let mut config = self.client_config();
        let shared = self
            .extra
            .iter()
            .filter(|(name, _)| !name.starts_with("consumer.") && !name.starts_with("producer."));
        for (name, value) in shared {
            config.set(name, value);
        }
        config
    }

    fn add_extra(&self, config: &mut ClientConfig, own: &str, other: &str) -> Result<(), Error> {
        for (name, value) in &self.extra {
            if name.starts_with(other) {
                continue;
            }
            let name = name.strip_prefix(own).unwrap_or(name);
            if FIXED.contains(&name) {
                return Err(Error::Settings(format!(
                    "{name} can't be changed, the guarantees rest on it; take it out of kafka.properties"
                )));
            }
            if DELIVERY.contains(&name) && value.parse().is_ok_and(|ms: u64| ms > DELIVERY_MS) {
                return Err(Error::Settings(format!(
                    "{name} can be {DELIVERY_MS} at most: whoever relays messages has them to himself for not much longer"
                )));
            }
            config.set(name, value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_s_delay_is_known_by_its_name_though_its_bucket_be_retired() {
        let settings = Settings::new("");
        let known = |topic: &str| settings.bucket_of(topic);
        assert_eq!(known("lapse.schedule"), Some(None));
        let retired = Some(Some(Span::from_secs(7 * 60)));
        assert_eq!(known("lapse.delay.7m"), retired);
        for other in [
            "schedule",
            "lapse.outcomes",
            "lapse.delay.",
            "other.delay.7m",
        ] {
            assert_eq!(known(other), None, "{other}");
        }
    }

    #[test]
    fn topics_are_named_by_prefix_and_delay() {
        let names: Vec<String> = Settings::new("")
            .inputs()
            .iter()
            .map(|topic| topic.name.to_string())
            .collect();
        assert_eq!(names[0], "lapse.schedule");
        assert_eq!(
            (names[1].as_str(), names[8].as_str()),
            ("lapse.delay.5s", "lapse.delay.24h")
        );
    }

    #[test]
    fn memory_is_shared_by_all_partitions() {
        let settings = Settings {
            memory_mb: 108,
            ..Settings::new("")
        };
        let shares = settings.shares().expect("enough");
        assert_eq!(
            (shares.prefetch_kb, shares.window.bytes),
            (256, 512 * 1_024)
        );
        let refused = Settings {
            memory_mb: 4,
            ..settings
        }
        .shares()
        .expect_err("too little");
        assert!(
            refused.to_string().contains("give at least 14"),
            "{refused}"
        );
    }

    #[test]
    fn a_delivery_may_be_given_up_sooner_but_not_later_than_a_claim_ends() {
        let mut settings = Settings::new("");
        let name = "producer.delivery.timeout.ms".to_owned();
        settings.extra.insert(name.clone(), "1000".into());
        assert!(settings.producer_config().is_ok());
        settings.extra.insert(name, "60000".into());
        assert!(settings.producer_config().is_err());
    }

    #[test]
    fn with_tls_the_authorities_of_the_system_are_trusted_unless_others_are_named() {
        let mut settings = Settings::new("");
        let location = |settings: &Settings| {
            let config = settings.producer_config().expect("right");
            config.get("ssl.ca.location").map(str::to_owned)
        };
        assert_eq!(location(&settings), None);
        let protocol = ("security.protocol".to_owned(), "SASL_SSL".to_owned());
        settings.extra.extend([protocol]);
        assert_eq!(location(&settings).as_deref(), Some("probe"));
        let authority = ("ssl.ca.location".to_owned(), "ca.pem".to_owned());
        settings.extra.extend([authority]);
        assert_eq!(location(&settings).as_deref(), Some("ca.pem"));
    }

    #[test]
    fn what_the_guarantees_rest_on_stays() {
        let mut settings = Settings::new("");
        settings
            .extra
            .insert("consumer.enable.auto.commit".into(), "true".into());
        assert!(settings.consumer_config().is_err());
        assert!(settings.producer_config().is_ok());
    }
}

//! The topics: making them, and saying in words what is wrong with those that are there.
//!
//! An existing topic is never changed: its records are somebody's timers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use lapse_sagas::Span;
use rdkafka::ClientContext;
use rdkafka::admin::{
    AdminClient, AdminOptions, ConfigResource, NewTopic, OwnedResourceSpecifier, ResourceSpecifier,
    TopicReplication,
};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::mocking::MockCluster;

use super::Error;
use super::context::Logs;
use super::reach::reach;
use super::settings::Settings;
use crate::bus::{REPLIES, commands_topic};
use crate::timer::name;

/// Records outlive their delay by this, so that an outage of a week loses no timer.
pub const OUTAGE: Span = Span::from_secs(7 * 24 * 3_600);

const PATIENCE: Duration = Duration::from_secs(10);
const VISIBLE_POLL: Duration = Duration::from_millis(100);

/// Short names of the topics that are only written.
const OUTPUTS: [&str; 3] = ["outcomes", "alerts", "dead-letters"];

/// Something that must be put right before timers are safe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Full name.
    pub topic: String,
    /// What is wrong and what to do.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topic {}: {}", self.topic, self.detail)
    }
}

/// A topic as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    name: String,
    partitions: i32,
    retention: Span,
    /// Timers are counted from when the broker got them, whatever the producer's clock says.
    log_append_time: bool,
}

/// Makes the topics that are not there and returns their names. Those that are there stay as they are; [`check`] says
/// what is wrong with them.
pub async fn create(settings: &Settings) -> Result<Vec<String>, Error> {
    reach(settings).await?;
    let admin = admin(settings)?;
    let wanted = wanted(settings);
    let retentions: Vec<String> = wanted
        .iter()
        .map(|topic| topic.retention.as_millis().to_string())
        .collect();
    let new: Vec<NewTopic<'_>> = wanted
        .iter()
        .zip(&retentions)
        .map(|(topic, retention_ms)| {
            let new = NewTopic::new(
                &topic.name,
                topic.partitions,
                TopicReplication::Fixed(settings.replication),
            )
            .set("cleanup.policy", "delete")
            .set("retention.ms", retention_ms)
            .set("retention.bytes", "-1");
            if topic.log_append_time {
                new.set("message.timestamp.type", "LogAppendTime")
            } else {
                new
            }
        })
        .collect();
    let results = admin
        .create_topics(&new, &options())
        .await
        .map_err(|e| broker(settings, "create topics", &e))?;
    let mut created = Vec::new();
    for result in results {
        match result {
            Ok(name) => created.push(name),
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((name, code)) => {
                return Err(Error::Broker {
                    doing: format!("create topic {name}"),
                    error: code.to_string(),
                });
            }
        }
    }
    wait_until_visible(settings, &created).await?;
    Ok(created)
}

/// Compares the topics with what they should be. Empty: all is well.
pub async fn check(settings: &Settings) -> Result<Vec<Problem>, Error> {
    reach(settings).await?;
    let wanted = wanted(settings);
    let partitions = partitions(settings).await?;
    let mut problems = Vec::new();
    let mut present = Vec::new();
    for topic in &wanted {
        match partitions.get(&topic.name) {
            None => problems
                .push(topic.problem("doesn't exist; create it with `lapse topics create`".into())),
            Some(count) if *count < topic.partitions => {
                problems.push(topic.problem(format!("has {count} partitions, {} are configured; add partitions or lower the setting", topic.partitions)));
                present.push(topic);
            }
            Some(_) => present.push(topic),
        }
    }
    let admin = admin(settings)?;
    let resources: Vec<ResourceSpecifier<'_>> = present
        .iter()
        .map(|topic| ResourceSpecifier::Topic(&topic.name))
        .collect();
    if resources.is_empty() {
        return Ok(problems);
    }
    let described = admin
        .describe_configs(&resources, &options())
        .await
        .map_err(|e| broker(settings, "describe topics", &e))?;
    for resource in described {
        let resource = resource.map_err(|code| Error::Broker {
            doing: "describe topics".into(),
            error: code.to_string(),
        })?;
        let of = |topic: &&&Wanted| matches!(&resource.specifier, OwnedResourceSpecifier::Topic(name) if *name == topic.name);
        if let Some(topic) = present.iter().find(of) {
            problems.extend(topic.compare(&resource));
        }
    }
    problems.sort();
    Ok(problems)
}

/// Makes the topics that are not there on the in-process broker, which has no admin interface: no retention, no append
/// time.
pub fn create_embedded<C: ClientContext>(
    settings: &Settings,
    cluster: &MockCluster<'_, C>,
) -> Result<(), Error> {
    for topic in wanted(settings) {
        match cluster.create_topic(&topic.name, topic.partitions, 1) {
            Ok(()) | Err(KafkaError::MockCluster(RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err(e) => {
                return Err(broker(
                    settings,
                    &format!("create topic {}", topic.name),
                    &e,
                ));
            }
        }
    }
    Ok(())
}

fn wanted(settings: &Settings) -> Vec<Wanted> {
    let topic = |name, delay: Span, log_append_time| Wanted {
        name,
        partitions: settings.partitions,
        retention: Span::from_millis(delay.as_millis() + OUTAGE.as_millis()),
        log_append_time,
    };
    let none = Span::default();
    let buckets = settings
        .buckets
        .iter()
        .map(|delay| topic(settings.bucket_topic(*delay), *delay, true));
    let schedule = topic(settings.topic("schedule"), none, true);
    let outputs = OUTPUTS
        .iter()
        .map(|short| topic(settings.topic(short), none, false));
    let queues = settings
        .queued
        .iter()
        .map(|participant| commands_topic(participant));
    let replies = (!settings.queued.is_empty()).then(|| REPLIES.to_owned());
    let queues = queues
        .chain(replies)
        .map(|short| topic(settings.topic(&short), none, false));
    buckets
        .chain([schedule])
        .chain(outputs)
        .chain(queues)
        .collect()
}

impl Wanted {
    fn problem(&self, detail: String) -> Problem {
        Problem {
            topic: self.name.clone(),
            detail,
        }
    }

    fn compare(&self, found: &ConfigResource) -> Vec<Problem> {
        let value = |name: &str| {
            found
                .get(name)
                .and_then(|entry| entry.value.as_deref())
                .unwrap_or_default()
        };
        let number = |name: &str| value(name).parse::<i64>().ok();
        let mut details = Vec::new();
        if value("cleanup.policy") != "delete" {
            details.push(format!(
                "cleanup.policy is {}, which eats records with the same key; set it to delete",
                value("cleanup.policy")
            ));
        }
        let least_ms = i64::try_from(self.retention.as_millis()).unwrap_or(i64::MAX);
        if let Some(ms) = number("retention.ms").filter(|ms| (0..least_ms).contains(ms)) {
            let least = name(self.retention);
            details.push(format!("retention.ms is {ms}: records would be deleted before they are read; set it to {least_ms} ({least}) or more"));
        }
        if let Some(bytes) = number("retention.bytes").filter(|bytes| *bytes >= 0) {
            details.push(format!("retention.bytes is {bytes}: records would be deleted before they are read; set it to -1"));
        }
        if self.log_append_time && value("message.timestamp.type") != "LogAppendTime" {
            let found = value("message.timestamp.type");
            details.push(format!("message.timestamp.type is {found}, so delays would count from producers' clocks; set it to LogAppendTime"));
        }
        details
            .into_iter()
            .map(|detail| self.problem(detail))
            .collect()
    }
}

/// Partitions of every topic there is. All are asked for, because asking for one by name may create it.
async fn partitions(settings: &Settings) -> Result<BTreeMap<String, i32>, Error> {
    let admin = admin(settings)?;
    let fetch = move || {
        let metadata = admin.inner().fetch_metadata(None, PATIENCE)?;
        let found = metadata
            .topics()
            .iter()
            .filter(|topic| topic.error().is_none());
        let count = |partitions: usize| i32::try_from(partitions).unwrap_or(i32::MAX);
        Ok(found
            .map(|topic| (topic.name().to_string(), count(topic.partitions().len())))
            .collect())
    };
    let fetched: Result<_, KafkaError> =
        tokio::task::spawn_blocking(fetch)
            .await
            .map_err(|e| Error::Broker {
                doing: "list topics".into(),
                error: e.to_string(),
            })?;
    fetched.map_err(|e| broker(settings, "list topics", &e))
}

/// Brokers learn of a new topic one after the other.
async fn wait_until_visible(settings: &Settings, created: &[String]) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let partitions = partitions(settings).await?;
        let Some(missing) = created.iter().find(|name| !partitions.contains_key(*name)) else {
            return Ok(());
        };
        if Instant::now() >= deadline {
            return Err(Error::Broker {
                doing: format!("create topic {missing}"),
                error: "it was created but doesn't appear".into(),
            });
        }
        tokio::time::sleep(VISIBLE_POLL).await;
    }
}

fn admin(settings: &Settings) -> Result<AdminClient<Logs>, Error> {
    AdminClient::from_config_and_context(&settings.admin_config(), Logs::default())
        .map_err(|e| Error::Settings(e.to_string()))
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(PATIENCE))
        .operation_timeout(Some(PATIENCE))
}

pub(super) fn broker(settings: &Settings, doing: &str, error: &KafkaError) -> Error {
    let code = match error {
        KafkaError::AdminOp(code) => Some(*code),
        other => other.rdkafka_error_code(),
    };
    let unreachable = matches!(
        code,
        Some(
            RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::Resolve
                | RDKafkaErrorCode::OperationTimedOut
                | RDKafkaErrorCode::MessageTimedOut
                | RDKafkaErrorCode::RequestTimedOut
        )
    );
    let refuses_admin = matches!(
        error,
        KafkaError::AdminOp(
            RDKafkaErrorCode::OperationTimedOut | RDKafkaErrorCode::RequestTimedOut
        )
    );
    let error = if refuses_admin {
        format!(
            "kafka at {} does not answer this, though others may be answered: {error}; is kafka.brokers that of lapse dev (.lapse/dev.env sets KAFKA_BROKERS), which makes and describes no topics? Use a new shell, or unset it",
            settings.brokers
        )
    } else if unreachable {
        format!(
            "kafka does not answer at {}: {error}; is kafka.brokers right? And kafka.properties.security.protocol that of the listener?",
            settings.brokers
        )
    } else {
        error.to_string()
    };
    Error::Broker {
        doing: doing.into(),
        error,
    }
}

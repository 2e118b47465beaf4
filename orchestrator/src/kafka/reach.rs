//! Whether the brokers let us in, said in words before anything else is asked of them.
//!
//! The client itself tries for ever: a wrong password, a certificate that is not trusted or a wrong protocol would show as
//! "no answer". Here the first refusal is taken for the answer, unless another broker answers soon after.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::Error;
use super::context::log;
use super::settings::Settings;

const PATIENCE: Duration = Duration::from_secs(10);
/// For another broker to answer after one has refused.
const SECOND_CHANCE: Duration = Duration::from_secs(2);
const ASK: Duration = Duration::from_millis(500);

/// Waits until a broker has answered.
///
/// # Errors
/// [`Error::NotAuthorised`] for a refused log-in; [`Error::Broker`] for a connection that is not trusted, and for silence.
pub(super) async fn reach(settings: &Settings) -> Result<(), Error> {
    let settings = settings.clone();
    let asked = tokio::task::spawn_blocking(move || ask(&settings));
    asked.await.map_err(|error| Error::Broker {
        doing: "connect".into(),
        error: error.to_string(),
    })?
}

fn ask(settings: &Settings) -> Result<(), Error> {
    let refusals = Refusals::default();
    let config = settings.admin_config();
    let client = BaseConsumer::from_config_and_context(&config, refusals.clone())
        .map_err(|error| Error::Settings(error.to_string()))?;
    let mut give_up_at = Instant::now() + PATIENCE;
    loop {
        let answer = client.client().fetch_metadata(None, ASK);
        let Err(error) = answer else {
            return Ok(());
        };
        // What the client has to say is said here.
        while client.poll(Duration::ZERO).is_some() {}
        let refusal = refusals.first();
        if let Some((_, at)) = &refusal {
            give_up_at = give_up_at.min(*at + SECOND_CHANCE);
        }
        if Instant::now() >= give_up_at {
            return Err(match refusal {
                Some((refusal, _)) => refusal.error(settings),
                None => super::topics::broker(settings, "connect", &error),
            });
        }
    }
}

/// Why a broker does not let us in.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Refusal {
    LogIn(String),
    Certificate(String),
    Protocol(String),
}

impl Refusal {
    fn of(code: Option<RDKafkaErrorCode>, reason: &str) -> Option<Refusal> {
        use RDKafkaErrorCode::{Authentication, SSL, SaslAuthenticationFailed};
        let words = reason.to_owned();
        if reason.contains("security.protocol") || reason.contains("PLAINTEXT") {
            return Some(Refusal::Protocol(words));
        }
        match code {
            Some(Authentication | SaslAuthenticationFailed) => Some(Refusal::LogIn(words)),
            Some(SSL) => Some(Refusal::Certificate(words)),
            _ => None,
        }
    }

    fn error(self, settings: &Settings) -> Error {
        let brokers = &settings.brokers;
        let broker = |words: String| Error::Broker {
            doing: "connect".into(),
            error: words,
        };
        match self {
            Refusal::LogIn(reason) => Error::NotAuthorised(format!(
                "kafka at {brokers} refuses the log-in: {reason}; check sasl.mechanism, sasl.username and sasl.password (or kafka.password_file)"
            )),
            Refusal::Certificate(reason) => broker(format!(
                "kafka at {brokers} is not trusted: {reason}; ssl.ca.location must name the authority that signed its \
                 certificate, and the certificate must hold the name in kafka.brokers"
            )),
            Refusal::Protocol(reason) => broker(format!(
                "kafka at {brokers} speaks another protocol: {reason}; set kafka.properties.security.protocol to that of the listener"
            )),
        }
    }
}

/// Keeps the first refusal and when it came.
#[derive(Clone, Default)]
struct Refusals(Arc<Mutex<Option<(Refusal, Instant)>>>);

impl Refusals {
    fn first(&self) -> Option<(Refusal, Instant)> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl ClientContext for Refusals {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(refusal) = Refusal::of(error.rdkafka_error_code(), reason) {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert((refusal, Instant::now()));
        }
    }
}

impl ConsumerContext for Refusals {}

//! `lapse alerts test`, and what `lapse alerts list` says of webhooks that don't get through.

use anyhow::Context as _;
use serde_json::json;

use super::{Context, Exit, answer};
use crate::store::AlertDue;
use crate::store::webhooks::{Backlog, payload};
use crate::webhooks::{self, Failure};

/// Posts a sample to a webhook and says what came back.
pub(super) async fn test(context: Context, name: &str) -> anyhow::Result<()> {
    let mut settings = context.config.alerts.clone();
    settings.webhooks.retain(|known, _| known == name);
    let opened = webhooks::open(&settings).map_err(|error| Exit::Invalid(format!("{error:#}")))?;
    let Some(webhook) = opened.into_iter().next() else {
        let known: Vec<&str> = context
            .config
            .alerts
            .webhooks
            .keys()
            .map(String::as_str)
            .collect();
        let there = match known.as_slice() {
            [] => format!("there is none; docs/alerts.md has [alerts.webhooks.{name}]"),
            known => format!("there are: {}", known.join(", ")),
        };
        let words = format!("there is no webhook {name} in the settings; {there}");
        return Err(Exit::NotFound(words).into());
    };
    let now = chrono::Utc::now();
    let id = format!("msg_sample_{}", now.timestamp_micros());
    let host = webhook.host().to_owned();
    match webhook
        .post(&id, &payload(&id, "alert.raised", &sample(), now, now), now)
        .await
    {
        Ok(taken) => {
            let body = json!({ "ok": true, "webhook": name, "host": host, "id": id, "status": taken.status, "answer": taken.body });
            answer::print(context.output, "alerts-test", &body, || {
                format!("{host} took it: {} {}", taken.status, taken.body)
            })
        }
        Err(Failure::Unreachable(words)) => {
            Err(Exit::Unreachable(format!("webhook {name} at {host}: {words}")).into())
        }
        Err(refused) => Err(refused).with_context(|| format!("webhook {name}: {host}")),
    }
}

fn sample() -> AlertDue {
    AlertDue {
        fingerprint: "sample".to_owned(),
        definition: "sample".to_owned(),
        step: "sample".to_owned(),
        kind: "sample".to_owned(),
        class: "sample".to_owned(),
        message: "a sample, from: lapse alerts test".to_owned(),
        sagas: 0,
        sends: 1,
    }
}

/// A line for each webhook that has not got everything.
pub(super) fn words(backlog: &[Backlog]) -> String {
    let line = |webhook: &Backlog| {
        let Backlog {
            webhook: name,
            waiting,
            oldest_s,
            failed,
            last_error,
        } = webhook;
        let error = last_error
            .as_ref()
            .map(|error| format!(": {error}"))
            .unwrap_or_default();
        let mut lines = String::new();
        if *waiting > 0 {
            lines += &format!(
                "\nwebhook {name} has not been delivered to for {oldest_s} s ({waiting} waiting){error}"
            );
        }
        if *failed > 0 {
            lines += &format!(
                "\nwebhook {name} never took {failed} alerts of the last 30 days; they are given up{error}"
            );
        }
        lines
    };
    backlog.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_webhook_that_gets_nothing_is_named_with_how_long_and_why() {
        let backlog = Backlog {
            webhook: "pager".to_owned(),
            waiting: 3,
            oldest_s: 341,
            failed: 0,
            last_error: Some("answered 503".to_owned()),
        };
        assert_eq!(
            words(&[backlog]),
            "\nwebhook pager has not been delivered to for 341 s (3 waiting): answered 503"
        );
        assert_eq!(words(&[]), "");
    }
}

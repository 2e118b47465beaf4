//! What the executor learns of its participants' health, and tells: verdicts, alerts, metrics.
//!
//! Relies on [`Care`] for the conclusions. Never: holds up a record; news that can't be told are told later.

use lapse_participants::kit::{CallError, Reply};
use lapse_sagas::transition::sent_at;
use lapse_sagas::{Definition, Event, Outcome, Phase, Timestamp};
use metrics::{describe_counter, describe_gauge};
use tracing::{info, warn};

use super::care::{Call, Care, Fault, News, Purpose, Verdict};
use super::{Executor, SizeClass, group};
use crate::store::Saga;

/// What a call says about its participant. Whoever answers is there, whatever the answer.
pub(super) fn verdict(result: &Result<Vec<Reply>, CallError>) -> Verdict {
    match result {
        Err(CallError::Unreachable(error)) => Verdict::Lost {
            fault: Fault::Unreachable,
            error: error.clone(),
            retry_after: None,
        },
        Err(CallError::Unanswered { error, retry_after }) => Verdict::Lost {
            fault: Fault::Unanswered,
            error: error.clone(),
            retry_after: *retry_after,
        },
        Err(CallError::Busy { retry_after, .. }) => Verdict::Busy {
            retry_after: *retry_after,
        },
        // Who asks for a pause gets it; else somebody has answered, unless it says so.
        Err(CallError::Partly { rest, .. }) => match &**rest {
            CallError::Busy { retry_after, .. } => Verdict::Busy {
                retry_after: *retry_after,
            },
            CallError::Unanswered { error, retry_after } => Verdict::Lost {
                fault: Fault::Unanswered,
                error: error.clone(),
                retry_after: *retry_after,
            },
            _ => Verdict::Answered,
        },
        Err(CallError::Configuration(error)) => Verdict::Misconfigured {
            error: error.clone(),
        },
        Ok(_)
        | Err(
            CallError::Data(_)
            | CallError::Locked(_)
            | CallError::Serialization(_)
            | CallError::Unknown(_),
        ) => Verdict::Answered,
    }
}

impl Executor {
    /// The poll has found this saga due. Where replies come later, one that has not come is a call without an answer, to a
    /// coordinator that would have heard it.
    pub(super) fn missed(&self, definition: &Definition, saga: &Saga, now: Timestamp) {
        if !self.participants.queued.are_heard() {
            return;
        }
        for (id, active) in &saga.state.active {
            let Some(step) = definition.step(id) else {
                continue;
            };
            let key = group(definition, id, active.direction, SizeClass::Whole);
            let is_late = active.phase == Phase::Sent && active.wake_at <= now;
            if !is_late || !self.participants.queued.names.contains(&key.participant) {
                continue;
            }
            let call = Call {
                operation: &key.operation,
                sagas: &[saga.id],
                sent_at: sent_at(step, active),
                purpose: purpose(active.probe, active.attempt),
            };
            let lost = Verdict::Lost {
                fault: Fault::Unanswered,
                error: "no reply in time".to_owned(),
                retry_after: None,
            };
            self.lock().care(&key.participant).heard(&call, lost, now);
        }
    }

    /// A reply was read for a saga as it was before it. Where replies come later, any answer shows that somebody is there, and
    /// one to the latest attempt how long that takes.
    pub(super) fn heard_later(
        &self,
        definition: &Definition,
        saga: &Saga,
        event: &Event,
        now: Timestamp,
    ) {
        let Event::Replied {
            step: id,
            direction,
            attempt,
            outcome,
        } = event
        else {
            return;
        };
        let (Some(step), Some(active)) = (definition.step(id), saga.state.active.get(id)) else {
            return;
        };
        let key = group(definition, id, *direction, SizeClass::Whole);
        let is_answer = !matches!(outcome, Outcome::Unknown { .. });
        if is_answer && self.participants.queued.names.contains(&key.participant) {
            let call = Call {
                operation: &key.operation,
                sagas: &[],
                sent_at: now,
                purpose: purpose(false, *attempt),
            };
            let mut ready = self.lock();
            let care = ready.care(&key.participant);
            care.replied(&call, now);
            if active.phase == Phase::Sent && active.attempt == *attempt {
                care.waited(sent_at(step, active), step.timeout.delta(), now);
            }
        }
    }

    /// Tells what is new of all participants.
    pub(super) async fn tell_all(&self) {
        let participants = self.lock().participants();
        for participant in participants {
            self.tell(&participant).await;
        }
    }

    /// Tells what is new of a participant: its one alert is opened, kept or settled.
    pub(super) async fn tell(&self, participant: &str) {
        let news = self.lock().care(participant).news(self.clock.now());
        let told = match news {
            None => return,
            Some(News::Down(down)) => {
                warn!(
                    participant,
                    class = down.class,
                    sagas = down.sagas,
                    message = down.message,
                    "participant is down"
                );
                self.store.participant_down(&down).await
            }
            Some(News::Up) => {
                info!(participant, "participant answers again");
                self.store.participant_up(participant).await
            }
        };
        if let Err(error) = told {
            warn!(%error, participant, "the alert could not be written; it comes again");
            self.lock().care(participant).untold();
        }
    }
}

fn purpose(is_probe: bool, attempt: u32) -> Purpose {
    match attempt {
        _ if is_probe => Purpose::Probe,
        0 | 1 => Purpose::First,
        _ => Purpose::Retry,
    }
}

/// Sets the gauges of a participant.
pub(super) fn show(participant: &str, care: &Care) {
    let gauges = [
        ("lapse_participant_breaker_state", usize::from(care.level())),
        ("lapse_participant_in_flight", care.in_flight()),
        ("lapse_participant_waiting_sagas", care.waiting()),
    ];
    for (name, value) in gauges {
        metrics::gauge!(name, "participant" => participant.to_owned()).set(value as f64);
    }
}

/// Help lines of what is measured here.
pub fn describe() {
    describe_gauge!(
        "lapse_participant_breaker_state",
        "How a participant is treated: 0 called freely, 1 under a limit after trouble, 2 left alone but for a probe a second."
    );
    describe_gauge!(
        "lapse_participant_in_flight",
        "Commands under way to a participant."
    );
    describe_gauge!(
        "lapse_participant_waiting_sagas",
        "Sagas that this coordinator has seen waiting for a participant that is left alone."
    );
    describe_counter!(
        "lapse_participant_put_back_total",
        "Commands that were put back without being sent, at no attempt, by participant and reason: left_alone, no_room."
    );
    describe_counter!(
        "lapse_participant_probes_total",
        "Calls that were made to see whether a participant answers again."
    );
    describe_counter!(
        "lapse_retry_budget_refusals_total",
        "Times that retries found the budget of a participant used up and waited."
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partly(rest: CallError) -> Verdict {
        verdict(&Err(CallError::Partly {
            replies: Vec::new(),
            rest: Box::new(rest),
        }))
    }

    #[test]
    fn of_a_call_that_was_done_in_part_somebody_answered_unless_it_says_that_nobody_did() {
        let refused = CallError::Unreachable("refused".to_owned());
        assert_eq!(partly(refused), Verdict::Answered);
        let silence = partly(CallError::unanswered("reset"));
        assert!(matches!(silence, Verdict::Lost { .. }), "{silence:?}");
    }
}

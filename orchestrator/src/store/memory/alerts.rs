//! Alerts in memory: as `raise_alerts.sql`, `settle_alerts.sql`, `participant_down.sql` and `claim_alerts.sql` have them.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use lapse_sagas::{SagaId, Timestamp};

use crate::store::consequence::{
    DOWN_HOLDS_FOR, PARTICIPANT_DOWN, Raised, down_alert, down_fingerprint,
};
use crate::store::{AlertDue, ParticipantDown};

/// One alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// What it is about; the message is the latest member's.
    pub raised: Raised,
    /// Whether it is sent again.
    pub state: AlertState,
    /// Members that are not settled, or sagas that wait for the participant.
    pub sagas: i64,
    /// How often it was sent.
    pub sends: i32,
    /// When it was last raised or settled.
    last_at: Timestamp,
}

/// Whether an alert is sent again, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlertState {
    /// It is.
    Open {
        /// Then.
        next_send_at: Timestamp,
    },
    /// Somebody looks after it.
    Acknowledged {
        /// Who.
        by: String,
    },
    /// No member is left.
    Resolved,
}

#[derive(Default)]
pub struct Alerts {
    alerts: BTreeMap<String, Alert>,
    /// False once settled.
    members: BTreeMap<(SagaId, String), bool>,
}

impl Alerts {
    pub fn all(&self) -> Vec<Alert> {
        self.alerts.values().cloned().collect()
    }

    pub fn has_member(&self, id: SagaId) -> bool {
        self.members
            .range((id, String::new())..)
            .next()
            .is_some_and(|((member, _), _)| *member == id)
    }

    /// A new member opens the alert again and has it sent at once; an old one changes nothing.
    pub fn raise(&mut self, id: SagaId, raised: Raised, now: Timestamp) {
        let was_open = self.members.insert((id, raised.fingerprint.clone()), true);
        if was_open == Some(true) {
            return;
        }
        let fresh = AlertState::Open { next_send_at: now };
        let alert = self
            .alerts
            .entry(raised.fingerprint.clone())
            .or_insert_with(|| Alert {
                raised: raised.clone(),
                state: fresh.clone(),
                sagas: 0,
                sends: 0,
                last_at: now,
            });
        alert.raised.message = raised.message;
        alert.sagas += 1;
        alert.last_at = now;
        if !matches!(alert.state, AlertState::Open { .. }) {
            alert.state = fresh;
        }
    }

    pub fn settle(&mut self, id: SagaId) {
        for ((member, fingerprint), open) in self.members.range_mut((id, String::new())..) {
            if *member != id {
                break;
            }
            if std::mem::take(open)
                && let Some(alert) = self.alerts.get_mut(fingerprint)
            {
                alert.sagas -= 1;
                if alert.sagas == 0 {
                    alert.state = AlertState::Resolved;
                }
            }
        }
    }

    pub fn participant_down(&mut self, down: &ParticipantDown, now: Timestamp) {
        let raised = down_alert(down);
        let fresh = AlertState::Open { next_send_at: now };
        let known = self.alerts.get(&raised.fingerprint);
        let state = match known.map(|alert| (&alert.state, alert.last_at)) {
            Some((AlertState::Resolved, last_at)) if last_at >= down.seen_at => return,
            None | Some((AlertState::Resolved, _)) => fresh,
            Some((_, last_at)) if last_at < now - DOWN_HOLDS_FOR => fresh,
            Some((state, _)) => state.clone(),
        };
        let alert = Alert {
            sends: known.map_or(0, |alert| alert.sends),
            sagas: down.sagas,
            last_at: now,
            state,
            raised,
        };
        self.alerts.insert(alert.raised.fingerprint.clone(), alert);
    }

    pub fn participant_up(&mut self, participant: &str, now: Timestamp) {
        let alert = self.alerts.get_mut(&down_fingerprint(participant));
        if let Some(alert) = alert.filter(|alert| alert.state != AlertState::Resolved) {
            alert.state = AlertState::Resolved;
            alert.sagas = 0;
            alert.last_at = now;
        }
    }

    pub fn acknowledge(&mut self, fingerprint: &str, actor: &str) -> bool {
        match self.alerts.get_mut(fingerprint) {
            Some(alert) if matches!(alert.state, AlertState::Open { .. }) => {
                alert.state = AlertState::Acknowledged {
                    by: actor.to_owned(),
                };
                true
            }
            _ => false,
        }
    }

    /// The earliest ones that are due; each is due again after what `repeat` says for its definition.
    pub fn claim(
        &mut self,
        limit: u32,
        now: Timestamp,
        repeat: impl Fn(&str) -> TimeDelta,
    ) -> Vec<AlertDue> {
        let mut due: Vec<(Timestamp, String)> = self
            .alerts
            .iter()
            .filter_map(|(fingerprint, alert)| match alert.state {
                AlertState::Open { next_send_at } if next_send_at <= now => {
                    Some((next_send_at, fingerprint.clone()))
                }
                _ => None,
            })
            .collect();
        due.sort();
        due.truncate(limit as usize);
        due.sort_by(|a, b| a.1.cmp(&b.1));
        let claimed = due.into_iter().filter_map(|(_, fingerprint)| {
            let alert = self.alerts.get_mut(&fingerprint)?;
            let about_participant = alert.raised.kind == PARTICIPANT_DOWN && alert.sends > 0;
            if about_participant && alert.last_at < now - DOWN_HOLDS_FOR {
                alert.state = AlertState::Resolved;
                return None;
            }
            alert.sends += 1;
            alert.state = AlertState::Open {
                next_send_at: now + repeat(&alert.raised.definition),
            };
            Some(alert_due(alert))
        });
        claimed.collect()
    }
}

fn alert_due(alert: &Alert) -> AlertDue {
    let Raised {
        fingerprint,
        definition,
        step,
        kind,
        class,
        message,
    } = alert.raised.clone();
    AlertDue {
        fingerprint,
        definition,
        step,
        kind,
        class,
        message,
        sagas: alert.sagas,
        sends: alert.sends,
    }
}

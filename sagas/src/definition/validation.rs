//! What a readable definition must keep to make sense. Every rule is checked in every run, so that one run tells all.
//!
//! Relies on nothing but the body. Never: repairs anything.

use std::collections::BTreeSet;

use super::{Body, Call, Kind, OnExhausted, Retries, Step, Trigger};
use crate::duration::Span;
use crate::order_event::LONGEST_DELAY;
use crate::printable;
use crate::transition::REPLY_GRACE;

const FORMAT: &str = "saga/v1";
const LONGEST_TIMEOUT: Span = Span::from_secs(15 * 60);
/// A coordinator may hold a taken saga for 10 s, so a longer call is a batch's slowest.
const LONG_TIMEOUT: Span = Span::from_secs(15);
const SHORTEST_ALERT_REPEAT: Span = Span::from_secs(60);
const MOST_RETRIES: u32 = 50;

/// A mistake and the path to it: field names and indexes.
pub(super) struct Finding {
    pub(super) path: Vec<String>,
    pub(super) code: &'static str,
    pub(super) message: String,
}

/// All mistakes of one definition.
pub(super) fn check(body: &Body) -> Vec<Finding> {
    let mut findings = Findings(Vec::new());
    check_head(body, &mut findings);
    check_trigger(&body.trigger, &mut findings);
    check_ids(body, &mut findings);
    for (at, step) in body.steps.iter().enumerate() {
        check_step(body, at, step, &mut findings);
        check_kind(body, at, step, &mut findings);
        check_reads(body, at, step, &mut findings);
    }
    findings.0
}

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, code: &'static str, path: &[&dyn ToString], message: impl Into<String>) {
        let path = path.iter().map(|part| part.to_string()).collect();
        self.0.push(Finding {
            path,
            code,
            message: message.into(),
        });
    }
}

fn check_head(body: &Body, findings: &mut Findings) {
    if body.format != FORMAT {
        findings.add(
            "D010",
            &[&"format"],
            format!(
                "the format is `{}`; this release reads {FORMAT}",
                shown(&body.format)
            ),
        );
    }
    if !is_name(
        &body.name,
        |c| c.is_ascii_lowercase(),
        |c| c.is_ascii_digit() || c == '-',
        64,
    ) {
        findings.add(
            "D011",
            &[&"name"],
            wrong_name(
                &body.name,
                "lower-case letters, digits and -, beginning with a letter",
            ),
        );
    }
    if body.version < 1 {
        findings.add("D012", &[&"version"], "versions count from 1");
    }
    if body.steps.is_empty() {
        findings.add("D013", &[&"steps"], "a saga needs at least one step");
    }
    if body.alert_repeat < SHORTEST_ALERT_REPEAT {
        let words = format!(
            "alerts would repeat every {}; write at least {SHORTEST_ALERT_REPEAT}",
            body.alert_repeat
        );
        findings.add("D031", &[&"alert_repeat"], words);
    }
}

fn check_trigger(trigger: &Trigger, findings: &mut Findings) {
    if trigger.event_types.is_empty() {
        findings.add(
            "D026",
            &[&"trigger", &"event_types"],
            "name at least one event type, such as order.placed",
        );
    }
    for (at, event_type) in trigger.event_types.iter().enumerate() {
        if !is_word(event_type, 128) {
            let words = wrong_name(event_type, "letters, digits and . _ : / -");
            findings.add("D030", &[&"trigger", &"event_types", &at], words);
        }
        if trigger.event_types[..at].contains(event_type) {
            findings.add(
                "D030",
                &[&"trigger", &"event_types", &at],
                format!("`{event_type}` is named twice"),
            );
        }
    }
    if trigger.order_types.is_empty() && trigger.other_order_types.is_none() {
        let words = "no order type starts this saga; name some, or give other_order_types a delay";
        findings.add("D027", &[&"trigger", &"order_types"], words);
    }
    for (order_type, delay) in &trigger.order_types {
        if !is_word(order_type, 64) {
            let words = wrong_name(order_type, "letters, digits and . _ : / -");
            findings.add("D028", &[&"trigger", &"order_types", order_type], words);
        }
        check_delay(
            delay.delay,
            &[&"trigger", &"order_types", order_type, &"delay"],
            findings,
        );
    }
    if let Some(delay) = trigger.other_order_types {
        check_delay(
            delay.delay,
            &[&"trigger", &"other_order_types", &"delay"],
            findings,
        );
    }
    check_participant(
        &trigger.order_owner,
        &[&"trigger", &"order_owner"],
        findings,
    );
}

fn check_delay(delay: Span, path: &[&dyn ToString], findings: &mut Findings) {
    if delay == Span::default() || delay > LONGEST_DELAY {
        findings.add(
            "D024",
            path,
            format!("the delay is {delay}; write more than 0 and at most {LONGEST_DELAY}"),
        );
    }
}

fn check_participant(name: &str, path: &[&dyn ToString], findings: &mut Findings) {
    if !is_name(
        name,
        |c| c.is_ascii_lowercase(),
        |c| c.is_ascii_digit() || c == '-' || c == '_',
        64,
    ) {
        findings.add(
            "D029",
            path,
            wrong_name(
                name,
                "lower-case letters, digits, - and _, beginning with a letter",
            ),
        );
    }
}

fn check_ids(body: &Body, findings: &mut Findings) {
    let mut seen = BTreeSet::new();
    for (at, step) in body.steps.iter().enumerate() {
        let id = step.id.as_str();
        if !is_name(
            id,
            |c| c.is_ascii_lowercase(),
            |c| c.is_ascii_digit() || c == '_',
            64,
        ) {
            let words = wrong_name(
                id,
                "lower-case letters, digits and _, beginning with a letter",
            );
            findings.add("D014", &[&"steps", &at, &"id"], words);
        }
        if !seen.insert(id) {
            findings.add(
                "D015",
                &[&"steps", &at, &"id"],
                format!("two steps are called `{}`", shown(id)),
            );
        }
    }
}

fn check_step(body: &Body, at: usize, step: &Step, findings: &mut Findings) {
    check_call(&step.action, at, "action", findings);
    if let Some(compensation) = &step.compensation {
        check_call(compensation, at, "compensation", findings);
    }
    let timeout = step.timeout;
    if timeout == Span::default() || timeout > LONGEST_TIMEOUT {
        let words =
            format!("the time-out is {timeout}; write more than 0 and at most {LONGEST_TIMEOUT}");
        findings.add("D020", &[&"steps", &at, &"timeout"], words);
    } else if timeout > LONG_TIMEOUT {
        let words = format!(
            "a call may take {timeout}; while it does, its batch waits. Better: at most {LONG_TIMEOUT}"
        );
        findings.add("D050", &[&"steps", &at, &"timeout"], words);
    }
    if step.retries.max > MOST_RETRIES {
        let words = format!("{} retries; write at most {MOST_RETRIES}", step.retries.max);
        findings.add("D021", &[&"steps", &at, &"retries", &"max"], words);
    }
    if step.retries.max > 0 && step.retries.delays.is_empty() {
        let words = "retries without a delay between them; write delays, such as [1s, 4s, 16s]";
        findings.add("D022", &[&"steps", &at, &"retries", &"delays"], words);
    }
    check_time_to_live(body, at, step, findings);
}

fn check_call(call: &Call, at: usize, field: &str, findings: &mut Findings) {
    check_participant(
        &call.participant,
        &[&"steps", &at, &field, &"participant"],
        findings,
    );
    if !is_name(
        &call.operation,
        |c| c.is_ascii_alphabetic(),
        |c| c.is_ascii_digit() || "_.-".contains(c),
        64,
    ) {
        let words = wrong_name(
            &call.operation,
            "letters, digits and . _ -, beginning with a letter",
        );
        findings.add("D029", &[&"steps", &at, &field, &"operation"], words);
    }
}

fn check_time_to_live(body: &Body, at: usize, step: &Step, findings: &mut Findings) {
    if step.retries.max > MOST_RETRIES {
        return;
    }
    let needed = longest(step);
    let ttl = body.command_ttl;
    if ttl < needed {
        let words = format!(
            "all tries of `{}` may take {needed}, longer than command_ttl ({ttl}): the participant would answer expired",
            step.id
        );
        findings.add("D025", &[&"steps", &at], words);
    } else if ttl.as_millis() < needed.as_millis() + body.patience.as_millis() {
        let words = format!(
            "command_ttl ({ttl}) does not outlast `{}` with one wait of {} (patience)",
            step.id, body.patience
        );
        findings.add("D051", &[&"steps", &at], words);
    }
}

/// From the first sending to the end of the last one.
fn longest(step: &Step) -> Span {
    let Retries { max, delays } = &step.retries;
    let grace_ms = u64::try_from(REPLY_GRACE.num_milliseconds()).unwrap_or(0);
    let calls_ms = (step.timeout.as_millis() + grace_ms) * (u64::from(*max) + 1);
    let last_ms = delays.last().map_or(0, |delay| delay.as_millis());
    let at = |retry: usize| delays.get(retry).map_or(last_ms, |delay| delay.as_millis());
    Span::from_millis(calls_ms + (0..*max as usize).map(at).sum::<u64>())
}

fn check_kind(body: &Body, at: usize, step: &Step, findings: &mut Findings) {
    let before = &body.steps[..at];
    let late = match step.kind {
        Kind::Compensatable => before
            .iter()
            .find(|earlier| earlier.kind != Kind::Compensatable),
        Kind::Pivot => before
            .iter()
            .find(|earlier| earlier.kind != Kind::Compensatable),
        Kind::Retriable => None,
    };
    if let Some(earlier) = late {
        let words = format!(
            "`{}` is {} but stands after `{}`, which is {}; the order is compensatable, at most one pivot, retriable",
            step.id,
            named(step.kind),
            earlier.id,
            named(earlier.kind)
        );
        findings.add("D016", &[&"steps", &at, &"kind"], words);
    }
    if step.on_exhausted == Some(OnExhausted::Compensate) && body.is_after_pivot(at) {
        let words = format!(
            "`{}` lies after the point of no return: write park or continue",
            step.id
        );
        findings.add("D017", &[&"steps", &at, &"on_exhausted"], words);
    }
    if step.kind == Kind::Compensatable && step.compensation.is_none() {
        let words = format!(
            "`{}` has no compensation; give it one, or make it a pivot or retriable",
            step.id
        );
        findings.add("D018", &[&"steps", &at], words);
    }
    if step.kind == Kind::Retriable && step.compensation.is_some() {
        let words = format!(
            "the compensation of `{}` is never used: nothing is undone after the pivot",
            step.id
        );
        findings.add("D052", &[&"steps", &at, &"compensation"], words);
    }
}

fn named(kind: Kind) -> &'static str {
    match kind {
        Kind::Compensatable => "compensatable",
        Kind::Pivot => "a pivot",
        Kind::Retriable => "retriable",
    }
}

/// An action reads earlier steps; a compensation may read its own step as well.
fn check_reads(body: &Body, at: usize, step: &Step, findings: &mut Findings) {
    let calls = [
        ("action", Some(&step.action), at),
        ("compensation", step.compensation.as_ref(), at + 1),
    ];
    for (field, call, until) in calls {
        for (name, expression) in call.iter().flat_map(|call| &call.input) {
            let Some(read) = expression.step_read() else {
                continue;
            };
            if body.steps[..until]
                .iter()
                .any(|earlier| earlier.id.as_str() == read)
            {
                continue;
            }
            let exists = body.steps.iter().any(|other| other.id.as_str() == read);
            let why = if exists {
                "is not done before this"
            } else {
                "does not exist"
            };
            let words = format!("`{}` reads the step `{read}`, which {why}", shown(name));
            findings.add("D023", &[&"steps", &at, &field, &"input", name], words);
        }
    }
}

fn is_name(text: &str, first: fn(char) -> bool, more: fn(char) -> bool, most: usize) -> bool {
    text.len() <= most && text.starts_with(first) && text.chars().all(|c| first(c) || more(c))
}

fn is_word(text: &str, most: usize) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric();
    text.len() <= most
        && text.starts_with(word)
        && text.chars().all(|c| word(c) || "._:/-".contains(c))
}

fn wrong_name(text: &str, allowed: &str) -> String {
    format!("`{}` is not a name; write {allowed}", shown(text))
}

/// Text from a file, short and printable.
fn shown(text: &str) -> String {
    printable(&text.chars().take(80).collect::<String>())
}

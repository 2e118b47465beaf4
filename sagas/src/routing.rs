//! Which definition an event starts: exactly one, or none and a reason.
//!
//! [`overlaps`] is asked when definitions are loaded, [`route`] when a timer is due. The sweep sees no event and goes by
//! order owner and order type alone, so there may be only one definition for these two. Relies on checked definitions.
//! Never: picks one of two.

use std::ops::Deref;

use crate::definition::{Definition, Problem, Trigger};
use crate::order_event::{BadEvent, OrderEvent};

/// The one active definition that this event starts; references and `Arc`s come back as what they were.
///
/// # Errors
/// `no_definition`, `missing_order_type`, or `missing_event_type` where only the event's type could tell two apart.
pub fn route<D: Deref<Target = Definition>>(
    active: impl IntoIterator<Item = D>,
    event: &OrderEvent,
) -> Result<D, BadEvent> {
    let event_type = event.event_type.as_deref();
    let takes = |definition: &D| definition.body.trigger.takes_event_type(event_type);
    let by_event: Vec<D> = active.into_iter().filter(takes).collect();
    if by_event.is_empty() {
        let shown = event_type.unwrap_or("without a type");
        return Err(BadEvent::new(
            "no_definition",
            format!("no active definition starts for events {shown}"),
        ));
    }
    let order_type = event.starting_order_type()?;
    let mut by_order = by_event
        .into_iter()
        .filter(|definition| definition.body.trigger.delay(order_type).is_some());
    let Some(first) = by_order.next() else {
        let words = format!("no active definition starts for orders of type {order_type}");
        return Err(BadEvent::new("no_definition", words));
    };
    match by_order.next() {
        None => Ok(first),
        Some(second) => {
            let words = format!(
                "both {} and {} would start; the event must name its event_type",
                first.name(),
                second.name()
            );
            Err(BadEvent::new("missing_event_type", words))
        }
    }
}

/// Definitions that could both start for one event or for one overdue order, and definitions of one name: each pair is
/// told once.
pub fn overlaps(definitions: &[&Definition]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (at, one) in definitions.iter().enumerate() {
        problems.extend(
            definitions[at + 1..]
                .iter()
                .filter_map(|other| overlap(one, other)),
        );
    }
    problems
}

fn overlap(one: &Definition, other: &Definition) -> Option<Problem> {
    let (name, other_name) = (one.name(), other.name());
    if name == other_name {
        let words = format!(
            "two definitions are called {name}; rename one, or load only the newer version"
        );
        return Some(Problem::of_file(name, "D041", words));
    }
    let (a, b) = (&one.body.trigger, &other.body.trigger);
    let orders = shared_order_types(a, b)?;
    let event_type = a
        .event_types
        .iter()
        .find(|event_type| b.event_types.contains(event_type));
    if let Some(event_type) = event_type {
        let words = format!(
            "{name} and {other_name} both start for {event_type} and {orders}; leave it to one of them"
        );
        return Some(Problem::of_file(name, "D040", words));
    }
    if a.order_owner != b.order_owner {
        return None;
    }
    let words = format!(
        "{name} and {other_name} both start for {orders} of {owner}, though for different events; the sweep knows \
         overdue orders only by owner and type and would start both; leave it to one of them, or give one another \
         order type",
        owner = a.order_owner,
    );
    Some(Problem::of_file(name, "D042", words))
}

/// Orders that start both, in words; none if no order does.
fn shared_order_types(a: &Trigger, b: &Trigger) -> Option<String> {
    let mut named = a.order_types.keys().chain(b.order_types.keys());
    let shared =
        named.find(|order_type| a.delay(order_type).is_some() && b.delay(order_type).is_some());
    match shared {
        Some(order_type) => Some(format!("order type {order_type}")),
        None if a.other_order_types.is_some() && b.other_order_types.is_some() => {
            Some("every other order type".to_owned())
        }
        None => None,
    }
}

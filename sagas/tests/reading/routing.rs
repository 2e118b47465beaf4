//! Which definition an event starts.

use lapse_sagas::{Definition, OrderEvent, overlaps, route};
use serde_json::{Value, json};

fn definition(name: &str, trigger: &str) -> Definition {
    definition_of("orders", name, trigger)
}

fn definition_of(owner: &str, name: &str, trigger: &str) -> Definition {
    let text = format!(
        "
format: saga/v1
name: {name}
version: 1
trigger: {{ {trigger}, order_owner: {owner} }}
steps: [{{ id: one, kind: pivot, action: {{ participant: orders, operation: One }} }}]
"
    );
    Definition::parse(name, &text).unwrap_or_else(|problems| panic!("{problems:?}"))
}

fn event(value: Value) -> OrderEvent {
    OrderEvent::parse(value.to_string().as_bytes()).expect("a right event")
}

fn started(active: &[Definition], value: Value) -> Result<&str, &'static str> {
    route(active, &event(value))
        .map(Definition::name)
        .map_err(|bad| bad.reason)
}

#[test]
fn an_event_starts_exactly_the_definition_of_its_types() {
    let active = [
        definition(
            "normal",
            "event_types: [order.placed], order_types: { normal: { delay: 30m } }",
        ),
        definition(
            "flash",
            "event_types: [order.placed], order_types: { flash: { delay: 5m } }",
        ),
        definition(
            "quote",
            "event_types: [quote.sent], order_types: {}, other_order_types: { delay: 7d }",
        ),
    ];
    let placed = |order_type: Value| json!({"order_id": "a", "event_type": "order.placed", "order_type": order_type});
    assert_eq!(started(&active, placed(json!("normal"))), Ok("normal"));
    assert_eq!(started(&active, placed(json!("flash"))), Ok("flash"));
    assert_eq!(
        started(&active, placed(json!("gift"))),
        Err("no_definition")
    );
    assert_eq!(
        started(&active, placed(Value::Null)),
        Err("missing_order_type")
    );
    assert_eq!(
        started(
            &active,
            json!({"order_id": "a", "event_type": "order.paid"})
        ),
        Err("no_definition")
    );
    assert_eq!(
        started(
            &active,
            json!({"order_id": "a", "event_type": "quote.sent", "order_type": "x"})
        ),
        Ok("quote")
    );
}

#[test]
fn an_event_without_a_type_starts_what_its_order_type_alone_decides() {
    let active = [
        definition(
            "placed",
            "event_types: [order.placed], order_types: { normal: { delay: 30m }, flash: { delay: 5m } }",
        ),
        definition_of(
            "quotes",
            "quote",
            "event_types: [quote.sent], order_types: { normal: { delay: 7d } }",
        ),
    ];
    assert_eq!(
        started(&active, json!({"order_id": "a", "order_type": "flash"})),
        Ok("placed")
    );
    assert_eq!(
        started(&active, json!({"order_id": "a", "order_type": "normal"})),
        Err("missing_event_type")
    );
    assert_eq!(
        started(&[], json!({"order_id": "a", "order_type": "normal"})),
        Err("no_definition")
    );
}

#[test]
fn two_definitions_for_one_event_are_told_at_load() {
    let normal = definition(
        "normal",
        "event_types: [order.placed], order_types: { normal: { delay: 30m } }",
    );
    let both = definition(
        "both",
        "event_types: [a, order.placed], order_types: { x: { delay: 1m }, normal: { delay: 2m } }",
    );
    let other = definition(
        "other",
        "event_types: [order.placed], order_types: {}, other_order_types: { delay: 1m }",
    );
    let rest = definition(
        "rest",
        "event_types: [order.placed], order_types: {}, other_order_types: { delay: 1m }",
    );
    let apart = definition_of(
        "shops",
        "apart",
        "event_types: [order.paid], order_types: { normal: { delay: 30m } }",
    );
    let codes = |definitions: &[&Definition]| {
        overlaps(definitions)
            .iter()
            .map(|found| found.code)
            .collect::<Vec<_>>()
    };
    assert_eq!(codes(&[&normal, &both]), ["D040"]);
    assert_eq!(codes(&[&normal, &other]), ["D040"]);
    assert_eq!(codes(&[&other, &rest]), ["D040"]);
    assert_eq!(codes(&[&normal, &apart]), [""; 0]);
    assert_eq!(codes(&[&normal, &normal.clone()]), ["D041"]);
    assert_eq!(
        codes(&[&normal, &both, &other]).len(),
        3,
        "each pair is told"
    );
    let words = overlaps(&[&normal, &both]).remove(0).to_string();
    assert_eq!(
        words,
        "normal: D040: normal and both both start for order.placed and order type normal; leave it to one of them"
    );
}

#[test]
fn two_definitions_for_one_overdue_order_are_told_at_load() {
    let normal = "event_types: [order.placed], order_types: { normal: { delay: 30m } }";
    let placed = definition("placed", normal);
    let quoted = definition(
        "quoted",
        "event_types: [quote.sent], order_types: { normal: { delay: 7d } }",
    );
    let rest = definition(
        "rest",
        "event_types: [quote.sent], order_types: {}, other_order_types: { delay: 7d }",
    );
    let flash = definition(
        "flash",
        "event_types: [quote.sent], order_types: { flash: { delay: 5m } }",
    );
    let codes = |one: &Definition, other: &Definition| {
        overlaps(&[one, other])
            .iter()
            .map(|found| found.code)
            .collect::<Vec<_>>()
    };
    assert_eq!(codes(&placed, &quoted), ["D042"]);
    assert_eq!(codes(&placed, &rest), ["D042"]);
    assert_eq!(codes(&rest, &placed), ["D042"]);
    assert_eq!(codes(&placed, &flash), [""; 0]);
    let elsewhere = definition_of("shops", "elsewhere", normal);
    assert_eq!(codes(&elsewhere, &quoted), [""; 0]);
    assert_eq!(
        codes(&elsewhere, &placed),
        ["D040"],
        "an event has no owner that could tell them apart"
    );
    let words = overlaps(&[&placed, &quoted]).remove(0).to_string();
    assert_eq!(
        words,
        "placed: D042: placed and quoted both start for order type normal of orders, though for different events; the \
         sweep knows overdue orders only by owner and type and would start both; leave it to one of them, or give one \
         another order type"
    );
}

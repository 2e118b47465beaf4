//! Definitions: what is right is taken, what is wrong is told, all of it and where.

use std::time::{Duration, Instant};

use lapse_sagas::{Definition, Problem};

pub fn shipped() -> Definition {
    Definition::parse("cancel-and-replenish.yaml", SHIPPED)
        .expect("the shipped definition is right")
}

const SHIPPED: &str = include_str!("../../definitions/cancel-and-replenish.yaml");

const RIGHT: &str = "\
format: saga/v1
name: right
version: 1
trigger:
  event_types: [order.placed]
  order_types: { normal: { delay: 30m } }
  order_owner: orders
steps:
  - id: cancel_order
    action: { participant: orders, operation: CancelOrder }
    compensation: { participant: orders, operation: ReopenOrder }
  - id: tell
    kind: retriable
    action: { participant: mail, operation: Tell, input: { to: '=event.buyer', done: '=steps.cancel_order.output.n' } }
";

fn problems(text: &str) -> Vec<Problem> {
    Definition::parse("d.yaml", text).expect_err("a wrong definition")
}

/// The right definition with one place changed: code, line and column of each problem.
fn changed(from: &str, to: &str) -> Vec<(&'static str, u64, u64)> {
    assert_eq!(RIGHT.matches(from).count(), 1, "{from:?} must stand once");
    let place = |problem: Problem| {
        (
            problem.code,
            problem.line.unwrap_or(0),
            problem.column.unwrap_or(0),
        )
    };
    problems(&RIGHT.replace(from, to))
        .into_iter()
        .map(place)
        .collect()
}

fn warned(from: &str, to: &str) -> Vec<&'static str> {
    let definition =
        Definition::parse("d.yaml", &RIGHT.replace(from, to)).expect("right, with warnings");
    definition
        .warnings
        .iter()
        .map(|warning| warning.code)
        .collect()
}

#[test]
fn the_shipped_definition_is_right_without_a_warning() {
    let definition = shipped();
    assert_eq!(definition.warnings, []);
    assert_eq!(definition.first_step().as_str(), "cancel_order");
    assert_eq!(definition.hash.as_str().len(), 64);
    assert_eq!(
        definition.body.steps[0].retries, definition.body.steps[1].retries,
        "1 s, 4 s, 16 s is the default"
    );
}

#[test]
fn what_is_not_yaml_of_this_shape_is_told_with_its_place() {
    assert_eq!(
        problems("")[0].to_string(),
        "d.yaml:1:1: D002: unexpected end of file"
    );
    assert_eq!(changed("version: 1", "version: one"), [("D002", 3, 10)]);
    assert_eq!(changed("  order_owner: orders\n", ""), [("D004", 6, 3)]);
    assert_eq!(
        changed("version: 1", "version: 1\nversion: 2"),
        [("D005", 4, 1)]
    );
    assert_eq!(
        changed("kind: retriable", "kind: retryable"),
        [("D006", 13, 11)]
    );
    assert_eq!(changed("delay: 30m", "delay: 5 parsecs")[0].0, "D002");
    assert_eq!(changed("'=event.buyer'", "'=order.buyer'")[0].0, "D002");
    assert_eq!(changed("steps:", "steps: [").len(), 1);
    assert_eq!(
        changed("version: 1", "version: 1\n---\nversion: 2").len(),
        1,
        "one document only"
    );
}

#[test]
fn an_unknown_field_is_refused_with_a_guess_at_what_was_meant() {
    let text = RIGHT.replace(
        "    kind: retriable",
        "    kind: retriable\n    retrys: { max: 2 }",
    );
    assert_eq!(
        problems(&text)[0].to_string(),
        "d.yaml:14:5: D003: unknown field `retrys`; did you mean `retries`?"
    );
    let text = RIGHT.replace("name: right", "name: right\nowner: me");
    assert!(
        problems(&text)[0]
            .message
            .starts_with("unknown field `owner`; known are format, name, ")
    );
}

#[test]
fn every_rule_has_its_code_and_its_place() {
    assert_eq!(changed("saga/v1", "saga/v2"), [("D010", 1, 9)]);
    assert_eq!(changed("name: right", "name: Right One"), [("D011", 2, 7)]);
    assert_eq!(changed("version: 1", "version: 0"), [("D012", 3, 10)]);
    assert_eq!(changed("id: tell", "id: Tell"), [("D014", 12, 9)]);
    assert_eq!(changed("id: tell", "id: cancel_order"), [("D015", 12, 9)]);
    assert_eq!(
        changed(
            "    kind: retriable",
            "    kind: retriable\n    on_exhausted: compensate"
        ),
        [("D017", 14, 19)]
    );
    assert_eq!(changed("    kind: retriable\n", ""), [("D018", 12, 5)]);
    assert_eq!(
        changed(
            "    kind: retriable",
            "    kind: retriable\n    timeout: 0s"
        ),
        [("D020", 14, 14)]
    );
    assert_eq!(
        changed(
            "    kind: retriable",
            "    kind: retriable\n    retries: { max: 1000000 }"
        ),
        [("D021", 14, 21)]
    );
    assert_eq!(
        changed(
            "    kind: retriable",
            "    kind: retriable\n    retries: { max: 2, delays: [] }"
        ),
        [("D022", 14, 32)]
    );
    assert_eq!(
        changed("=steps.cancel_order.", "=steps.tell."),
        [("D023", 14, 86)]
    );
    assert_eq!(
        changed("=steps.cancel_order.", "=steps.nothing.")[0].0,
        "D023"
    );
    assert_eq!(changed("delay: 30m", "delay: 32d"), [("D024", 6, 35)]);
    assert_eq!(changed("delay: 30m", "delay: 0s"), [("D024", 6, 35)]);
    assert_eq!(
        changed("steps:\n", "command_ttl: 40s\nsteps:\n"),
        [("D025", 10, 5), ("D025", 13, 5)]
    );
    assert_eq!(changed("[order.placed]", "[]"), [("D026", 5, 16)]);
    assert_eq!(
        changed("{ normal: { delay: 30m } }", "{}"),
        [("D027", 6, 16)]
    );
    assert_eq!(changed("{ normal:", "{ 'very normal':"), [("D028", 6, 33)]);
    assert_eq!(
        changed("participant: mail", "participant: http://mail"),
        [("D029", 14, 28)]
    );
    assert_eq!(
        changed("operation: Tell", "operation: 'Tell me'"),
        [("D029", 14, 45)]
    );
    assert_eq!(
        changed("[order.placed]", "[order.placed, order.placed]"),
        [("D030", 5, 31)]
    );
    assert_eq!(
        changed("version: 1", "version: 1\nalert_repeat: 5s"),
        [("D031", 4, 15)]
    );
}

#[test]
fn kinds_stand_in_the_order_compensatable_pivot_retriable() {
    let step = |(at, kind): (usize, &&str)| {
        let compensation = "compensation: { participant: orders, operation: Undo }";
        let undo = if *kind == "compensatable" {
            compensation
        } else {
            "title: none"
        };
        format!(
            "  - {{ id: s{at}, kind: {kind}, action: {{ participant: orders, operation: Do }}, {undo} }}\n"
        )
    };
    let check = |kinds: &[&str]| {
        let steps: String = kinds.iter().enumerate().map(step).collect();
        let head = &RIGHT[..RIGHT.find("  - id").expect("steps")];
        Definition::parse("d.yaml", &format!("{head}{steps}"))
            .err()
            .map_or(0, |problems| problems.len())
    };
    assert_eq!(
        check(&[
            "compensatable",
            "compensatable",
            "pivot",
            "retriable",
            "retriable"
        ]),
        0
    );
    assert_eq!(check(&["pivot"]), 0);
    assert_eq!(check(&["retriable"]), 0);
    assert_eq!(check(&["pivot", "compensatable"]), 1);
    assert_eq!(check(&["pivot", "pivot"]), 1);
    assert_eq!(check(&["retriable", "pivot", "compensatable"]), 2);
}

#[test]
fn all_mistakes_are_told_in_one_run_in_the_order_of_the_file() {
    let text = RIGHT
        .replace("version: 1", "version: 0")
        .replace("30m", "99d")
        .replace("id: tell", "id: Tell")
        .replace("saga/v1", "v1");
    let codes: Vec<&str> = problems(&text).iter().map(|problem| problem.code).collect();
    assert_eq!(codes, ["D010", "D012", "D024", "D014"]);
}

#[test]
fn what_is_allowed_but_looks_wrong_is_a_warning() {
    assert_eq!(
        warned(
            "    kind: retriable",
            "    kind: retriable\n    timeout: 16s"
        ),
        ["D050"]
    );
    assert_eq!(
        warned("steps:\n", "command_ttl: 10m\nsteps:\n"),
        ["D051", "D051"]
    );
    assert_eq!(
        warned(
            "    kind: retriable",
            "    kind: retriable\n    compensation: { participant: mail, operation: Untell }"
        ),
        ["D052"]
    );
}

#[test]
fn a_compensation_may_read_its_own_step() {
    let own = RIGHT.replace(
        "operation: ReopenOrder",
        "operation: ReopenOrder, input: { n: '=steps.cancel_order.output.n' }",
    );
    assert!(Definition::parse("d.yaml", &own).is_ok());
    let later = RIGHT.replace(
        "operation: ReopenOrder",
        "operation: ReopenOrder, input: { n: '=steps.tell.output.n' }",
    );
    assert_eq!(problems(&later)[0].code, "D023");
}

#[test]
fn a_hostile_file_is_refused_at_once() {
    let layers = (1..30).map(|at| {
        format!(
            "l{at}: &l{at} [*l{0},*l{0},*l{0},*l{0},*l{0},*l{0},*l{0},*l{0}]\n",
            at - 1
        )
    });
    let laughs: String = std::iter::once("l0: &l0 [ha,ha,ha]\n".to_owned())
        .chain(layers)
        .collect();
    let title_laughs = laughs.replace("l0: &l0", "title: x\nsteps:\n- &l0");
    let deep = format!("steps: {}{}", "[".repeat(5_000), "]".repeat(5_000));
    let large = format!("{RIGHT}# {}", "x".repeat(256 * 1024));
    for (name, text) in [
        ("laughs", laughs),
        ("more laughs", title_laughs),
        ("deep", deep),
        ("large", large),
    ] {
        let before = Instant::now();
        assert_eq!(problems(&text).len(), 1, "{name}");
        assert!(
            before.elapsed() < Duration::from_millis(500),
            "{name} took {:?}",
            before.elapsed()
        );
    }
}

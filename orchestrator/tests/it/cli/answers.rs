//! With `-o json` every command prints one object; the reference shop works from the command line.

use chrono::TimeDelta;
use lapse_participants::fault::Answer;
use std::time::Duration;

use super::{lapse, lapse_with, run};
use crate::database::TestDatabase;
use crate::support::live::{Live, order_ref};

const SOON: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_prints_one_object_with_its_format_first() {
    let mut live = Live::in_process().await;
    // The order stays unpaid and overdue, which the sweep would tell sooner or later.
    live.config.sweep.enabled = false;
    let service = live.start().await;
    live.shop
        .set_fault(&order_ref("undone"), "CancelOrder", Answer::Rejected, 1)
        .await
        .unwrap();
    let placed = live.place("undone", TimeDelta::milliseconds(200)).await;
    live.schedule(&service, &[placed]).await;
    live.story_in("undone", "compensated", SOON).await;
    let alerts = live.ops.open_alerts().await.unwrap();
    let json = |args: &[&str], verb: &str| {
        let args = [args, &["-o", "json"]].concat();
        run(lapse_with(&live.config, &args))
            .with_code(0)
            .object(verb)
    };

    json(&["migrate"], "migrate");
    assert_eq!(json(&["validate"], "validate")["ok"], true);
    assert_eq!(json(&["verify"], "verify")["ok"], true);
    let looked_at = |args: &[&str]| -> i64 {
        let report = json(args, "verify");
        let checks = report["checks"].as_array().expect("a list").iter();
        checks.filter_map(|check| check["checked"].as_i64()).sum()
    };
    let all = looked_at(&["verify"]);
    assert_eq!(looked_at(&["verify", "--since", "1h"]), all);
    assert!(looked_at(&["verify", "--since", "2999-01-01T00:00:00Z"]) < all);
    let list = json(&["list", "--state", "compensated"], "list");
    assert_eq!(list["sagas"][0]["order_id"], "undone");
    let show = json(&["show", "--order", "undone"], "show");
    assert_eq!(show["story"]["saga"]["state"], "compensated");
    assert_eq!(show["order"]["order_id"], "undone");
    let listed = json(&["alerts", "list"], "alerts-list");
    assert_eq!(listed["alerts"].as_array().map(Vec::len), Some(1));
    let fingerprint = &alerts[0].fingerprint;
    let acknowledged = json(
        &["alerts", "ack", fingerprint, "--by", "somebody"],
        "alerts-ack",
    );
    assert_eq!(acknowledged["acknowledged_by"], "somebody");
    let listed = json(&["alerts", "list"], "alerts-list");
    assert_eq!(listed["alerts"].as_array().map(Vec::len), Some(0));
    let listed = json(&["alerts", "list", "--all"], "alerts-list");
    assert_eq!(listed["alerts"][0]["state"], "acknowledged");

    live.place("asked-for", TimeDelta::hours(1)).await;
    let start = ["start", "cancel-and-replenish", "--order-id", "asked-for"];
    let waiting = [&start[..], &["--wait", "5s"]].concat();
    assert_eq!(json(&waiting, "start")["state"], "completed");
    run(lapse_with(&live.config, &start))
        .with_code(5)
        .saying("completed");
    run(lapse_with(
        &live.config,
        &["start", "nonesuch", "--order-id", "o1"],
    ))
    .with_code(4);
    run(lapse_with(
        &live.config,
        &["start", "cancel-and-replenish", "--order-id", " "],
    ))
    .with_code(3);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_several_tenants_are_told_apart() {
    let live = Live::in_process().await;
    let service = live.start().await;
    for (tenant, order_id) in [("ann", "shared"), ("bob", "shared"), ("ann", "lone")] {
        let order = ["--tenant", tenant, "--order-id", order_id];
        let start = [&["start", "cancel-and-replenish"], &order[..]].concat();
        run(lapse_with(&live.config, &start)).with_code(0);
    }
    let lapse = |args: &[&str]| run(lapse_with(&live.config, args));

    let listed = lapse(&["list"]).with_code(0).stdout;
    assert!(
        listed.contains("tenant") && listed.contains("bob"),
        "{listed}"
    );
    let lone = lapse(&["show", "--order", "lone"]).with_code(0).stdout;
    assert!(lone.contains("of order lone of tenant ann"), "{lone}");
    lapse(&["show", "--order", "shared"])
        .with_code(4)
        .saying("tenants ann, bob have one: add --tenant");
    lapse(&["show", "--order", "lone", "--tenant", "bob"])
        .with_code(4)
        .saying("add --tenant ann");
    lapse(&["retry", "--order", "lone", "--reason", "x"])
        .with_code(4)
        .saying("add --tenant ann");
    let bobs = lapse(&["show", "--order", "shared", "--tenant", "bob"]);
    assert!(bobs.with_code(0).stdout.contains("tenant bob"));
    service.stop().await;
}

#[tokio::test]
async fn placing_showing_and_paying_need_the_shop_s_database_only() {
    let database = TestDatabase::create().await;
    let shop = |args: &[&str]| {
        let mut command = lapse(&[&["shop"], args].concat());
        command.env("LAPSE__SHOP__URL", &database.url).env(
            "LAPSE__POSTGRES__URL",
            "postgres://nobody@127.0.0.1:1/nothing",
        );
        run(command)
    };
    let pool = sqlx::PgPool::connect(&database.url).await.unwrap();
    lapse_participants::shop::migrate(&pool).await.unwrap();

    shop(&["place", "--order-id", "a"]).with_code(0);
    shop(&["show", "a"]).with_code(0);
    shop(&["pay", "a"]).with_code(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reference_shop_is_worked_from_the_command_line() {
    let live = Live::in_process().await;
    let shop = |args: &[&str]| {
        let args = [&["shop"], args, &["-o", "json"]].concat();
        run(lapse_with(&live.config, &args))
    };

    let placed = shop(&[
        "place",
        "--order-id",
        "c1",
        "--line",
        "TEA@lille=2.5",
        "--pay-within",
        "1h",
    ])
    .with_code(0)
    .saying("TEA")
    .object("shop-place");
    assert_eq!(placed["order"]["order_id"], "c1");
    assert_eq!(placed["event"]["event_type"], "order.placed");
    shop(&["place", "--order-id", "c1"]).with_code(5);
    shop(&["place", "--line", "TEA"]).with_code(3).saying("TEA");
    shop(&["place", "--line", "TEA@lille=100000"]).with_code(5);
    let stocked = shop(&["stock", "TEA", "lille", "10"])
        .with_code(0)
        .object("shop-stock");
    assert_eq!(stocked["sku"], "TEA");
    let fault = [
        "fail",
        "c1",
        "--operation",
        "ReplenishStock",
        "--times",
        "4",
    ];
    assert_eq!(
        shop(&fault).with_code(0).object("shop-fail")["answer"],
        "failed"
    );
    assert_eq!(
        shop(&["pay", "c1"]).with_code(0).object("shop-pay")["outcome"],
        "paid"
    );
    assert_eq!(
        shop(&["pay", "c1"]).with_code(0).object("shop-pay")["outcome"],
        "already_paid"
    );
    let unknown = ["fail", "c1", "--operation", "Replenish"];
    shop(&unknown)
        .with_code(3)
        .saying("CancelOrder, ReopenOrder, ReplenishStock, WithdrawStock");
    shop(&[&fault[..4], &["--times", "0"]].concat()).with_code(2);
    let paid = run(lapse_with(&live.config, &["shop", "pay", "c1"])).with_code(0);
    assert_eq!(paid.stdout, "order c1 was paid before\n");
    let shown = shop(&["show", "c1"]).with_code(0).object("shop-show");
    assert_eq!(
        (&shown["status"], &shown["holds"][0]["state"]),
        (&"paid".into(), &"sold".into())
    );

    // As text, place prints the event and nothing else: it is meant to be piped to Kafka.
    let text = run(lapse_with(&live.config, &["shop", "place"])).with_code(0);
    let event: serde_json::Value = serde_json::from_str(&text.stdout).expect("the event");
    assert_eq!(text.stdout.lines().count(), 1, "one record");
    assert!(event["order_id"].is_string());
}

#[test]
fn a_reader_that_has_read_enough_is_no_failure_and_a_full_disk_is_one() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut unread = lapse(&["validate"]);
    unread.stdout(writer);
    let ended = run(unread).with_code(0);
    assert_eq!(ended.stderr, "");
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("the kernel has it");
    let mut unwritten = lapse(&["validate"]);
    unwritten.stdout(full);
    run(unwritten).with_code(1).saying("write to stdout");
}

#[test]
fn a_usage_mistake_is_exit_code_2() {
    run(lapse(&["verify", "--since", "yesterday"])).with_code(2);
    run(lapse(&["cancel"])).with_code(2);
    run(lapse(&["list", "--limit", "0"])).with_code(2);
    run(lapse(&["show"])).with_code(2);
    run(lapse(&["--version"])).with_code(0);
}

//! Every operation of the shop in every bad order of events, in one harness.

use std::sync::Arc;

use lapse_participants::kit::{CallError, Command, OrderKey, Participant, barrier};
use lapse_sagas::{CommandId, Outcome};
use serde_json::json;

use crate::testshop::{Saga, TestShop, ago, in_time, is_done, send, send_one};

/// An action and its compensation.
#[derive(Clone, Copy, Debug)]
struct Pair {
    action: &'static str,
    compensation: &'static str,
}

const PAIRS: [Pair; 2] = [
    Pair {
        action: "CancelOrder",
        compensation: "ReopenOrder",
    },
    Pair {
        action: "ReplenishStock",
        compensation: "WithdrawStock",
    },
];

impl Pair {
    fn participant(self, shop: &TestShop) -> Arc<dyn Participant> {
        match self.action {
            "CancelOrder" => Arc::new(shop.orders.clone()),
            _ => Arc::new(shop.stock.clone()),
        }
    }

    fn action(self, saga: &Saga) -> Command {
        saga.does(self.action)
    }

    fn compensation(self, saga: &Saga) -> Command {
        saga.undoes(self.action, self.compensation)
    }

    /// Whether the action shows in the order or its holds.
    async fn is_applied(self, shop: &TestShop, order: &OrderKey) -> bool {
        let view = shop.view(order).await;
        match self.action {
            "CancelOrder" => view.status == "cancelled",
            _ => view.holds.iter().all(|hold| hold.state == "released"),
        }
    }

    /// How often anything was done to the order.
    async fn movements(self, shop: &TestShop, order: &OrderKey) -> i64 {
        let view = shop.view(order).await;
        match self.action {
            "CancelOrder" => view.version - 1,
            _ => view.ledger.len() as i64,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_command_has_the_same_answer_and_no_second_effect() {
    let shop = TestShop::open().await;
    for pair in PAIRS {
        let order = shop.overdue_mug().await;
        let (participant, saga) = (pair.participant(&shop), Saga::on(&order));
        let first = send_one(&*participant, &pair.action(&saga)).await;
        let done = shop.view(&order).await;
        assert!(is_done(&first), "{pair:?}: {first:?}");
        assert!(pair.is_applied(&shop, &order).await, "{pair:?}");

        let later = Command {
            attempt: 2,
            cause: lapse_sagas::Cause::Operator,
            first_sent_at: ago(-1),
            ..pair.action(&saga)
        };
        assert_eq!(send_one(&*participant, &later).await, first, "{pair:?}");
        assert_eq!(shop.view(&order).await, done, "{pair:?}");

        let undo = send_one(&*participant, &pair.compensation(&saga)).await;
        let undone = shop.view(&order).await;
        assert!(is_done(&undo), "{pair:?}: {undo:?}");
        assert!(!pair.is_applied(&shop, &order).await, "{pair:?}");
        let again = send_one(&*participant, &pair.compensation(&saga)).await;
        assert_eq!(again, undo, "{pair:?}");
        assert_eq!(shop.view(&order).await, undone, "{pair:?}");
        assert_eq!(send_one(&*participant, &later).await, first, "{pair:?}");
        assert_eq!(
            shop.view(&order).await,
            undone,
            "{pair:?}: the action is not done again"
        );
    }
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_comes_twice_in_one_batch_is_done_once() {
    let shop = TestShop::open().await;
    for pair in PAIRS {
        let order = shop.overdue_mug().await;
        let (participant, saga) = (pair.participant(&shop), Saga::on(&order));
        let command = pair.action(&saga);
        let other = Command {
            input: json!({ "other": true }),
            ..command.clone()
        };
        let replies = participant
            .call(pair.action, &[command.clone(), command, other])
            .await
            .expect("the call is answered");
        assert_eq!(replies.len(), 3, "{pair:?}");
        assert!(is_done(&replies[0].outcome), "{pair:?}");
        assert_eq!(replies[0], replies[1], "{pair:?}");
        assert_eq!(replies[2].outcome.name(), "mismatch", "{pair:?}");
        assert_eq!(pair.movements(&shop, &order).await, 1, "{pair:?}");
    }
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_payload_under_a_used_id_is_a_mismatch_and_changes_nothing() {
    let shop = TestShop::open().await;
    for pair in PAIRS {
        let (order, other_order) = (shop.overdue_mug().await, shop.overdue_mug().await);
        let (participant, saga) = (pair.participant(&shop), Saga::on(&order));
        let command = pair.action(&saga);
        send_one(&*participant, &command).await;
        let before = (shop.view(&order).await, shop.view(&other_order).await);

        let others = [
            Command {
                input: json!({ "x": 1 }),
                ..command.clone()
            },
            Command {
                order: other_order.clone(),
                ..command.clone()
            },
            Command {
                operation: pair.compensation.to_owned(),
                ..command.clone()
            },
        ];
        for other in others {
            let outcome = send_one(&*participant, &other).await;
            assert_eq!(outcome.name(), "mismatch", "{pair:?} {other:?}");
        }
        let after = (shop.view(&order).await, shop.view(&other_order).await);
        assert_eq!(after, before, "{pair:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compensation_before_its_action_undoes_nothing_and_supersedes_the_action() {
    let shop = TestShop::open().await;
    for pair in PAIRS {
        let order = shop.overdue_mug().await;
        let (participant, saga) = (pair.participant(&shop), Saga::on(&order));
        let before = shop.view(&order).await;
        let undo = send_one(&*participant, &pair.compensation(&saga)).await;
        assert!(is_done(&undo), "{pair:?}: {undo:?}");
        for _late in 0..2 {
            let outcome = send_one(&*participant, &pair.action(&saga)).await;
            assert_eq!(outcome, Outcome::Superseded, "{pair:?}");
        }
        assert_eq!(
            send_one(&*participant, &pair.compensation(&saga)).await,
            undo,
            "{pair:?}"
        );
        assert_eq!(shop.view(&order).await, before, "{pair:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_compensation_of_one_action_undoes_nothing_more() {
    let shop = TestShop::open().await;
    for pair in PAIRS {
        let order = shop.overdue_mug().await;
        let (participant, saga) = (pair.participant(&shop), Saga::on(&order));
        send_one(&*participant, &pair.action(&saga)).await;
        let first = pair.compensation(&saga);
        let second = Command {
            command_id: CommandId::from(format!("{}:2", first.command_id).as_str()),
            ..first.clone()
        };
        for outcome in send(&*participant, &[first, second]).await {
            assert!(is_done(&outcome), "{pair:?}: {outcome:?}");
        }
        assert_eq!(
            pair.movements(&shop, &order).await,
            2,
            "{pair:?}: done and undone once"
        );
    }
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compensation_without_its_action_id_is_rejected() {
    let shop = TestShop::open().await;
    for pair in PAIRS {
        let order = shop.overdue_mug().await;
        let (participant, saga) = (pair.participant(&shop), Saga::on(&order));
        send_one(&*participant, &pair.action(&saga)).await;
        let nameless = Command {
            action_id: None,
            ..pair.compensation(&saga)
        };
        let outcome = send_one(&*participant, &nameless).await;
        assert_eq!(outcome.name(), "rejected", "{pair:?}");
        assert!(pair.is_applied(&shop, &order).await, "{pair:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_batch_twice_at_once_takes_effect_once() {
    let shop = TestShop::open().await;
    for pair in PAIRS {
        let orders = shop.overdue_mugs(60).await;
        let sagas: Vec<Saga> = orders.iter().map(Saga::on).collect();
        for turn in [
            Pair::action as fn(Pair, &Saga) -> Command,
            Pair::compensation,
        ] {
            let batch: Vec<Command> = sagas.iter().map(|saga| turn(pair, saga)).collect();
            let backwards: Vec<Command> = batch.iter().rev().cloned().collect();
            let (one, other) = (pair.participant(&shop), pair.participant(&shop));
            let one = tokio::spawn({
                let batch = batch.clone();
                async move { send(&*one, &batch).await }
            });
            let other = tokio::spawn(async move { send(&*other, &backwards).await });
            let one = in_time(one).await.expect("the first batch is answered");
            let mut other = in_time(other).await.expect("the second batch is answered");
            other.reverse();
            assert_eq!(one, other, "{pair:?}");
            assert!(one.iter().all(is_done), "{pair:?}: {one:?}");
        }
        for order in &orders {
            assert_eq!(pair.movements(&shop, order).await, 2, "{pair:?}");
        }
    }
    assert_eq!(
        shop.available("mug", "north").await,
        880.into(),
        "120 mugs are held"
    );
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_and_its_compensation_at_once_end_undone() {
    let shop = TestShop::open().await;
    for pair in PAIRS {
        for _round in 0..10 {
            let orders = shop.overdue_mugs(10).await;
            let sagas: Vec<Saga> = orders.iter().map(Saga::on).collect();
            let actions: Vec<Command> = sagas.iter().map(|saga| pair.action(saga)).collect();
            let undos: Vec<Command> = sagas.iter().map(|saga| pair.compensation(saga)).collect();
            let (one, other) = (pair.participant(&shop), pair.participant(&shop));
            let action = tokio::spawn(async move { send(&*one, &actions).await });
            let undo = tokio::spawn(async move { send(&*other, &undos).await });
            let action = in_time(action).await.expect("the actions are answered");
            let undo = in_time(undo).await.expect("the compensations are answered");
            for (at, order) in orders.iter().enumerate() {
                let done = is_done(&action[at]) || action[at] == Outcome::Superseded;
                assert!(
                    done && is_done(&undo[at]),
                    "{pair:?}: {:?} {:?}",
                    action[at],
                    undo[at]
                );
                assert!(!pair.is_applied(&shop, order).await, "{pair:?}");
            }
        }
    }
    shop.is_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_command_does_not_sink_its_batch() {
    let shop = TestShop::open().await;
    for pair in PAIRS {
        let orders = shop.overdue_mugs(4).await;
        let bad = shop
            .place(&crate::testshop::overdue(&[("tea", "north", "1")]))
            .await;
        let mut sagas: Vec<Saga> = orders.iter().map(Saga::on).collect();
        sagas.insert(2, Saga::on(&bad));
        shop.execute(
            "delete from shop.orders where order_id in (select order_id from shop.hold where sku = 'tea');
             delete from shop.stock where sku = 'tea'",
        )
        .await;
        let batch: Vec<Command> = sagas.iter().map(|saga| pair.action(saga)).collect();
        let outcomes = send(&*pair.participant(&shop), &batch).await;
        // An order may not have committed yet; a sku that is held and not there is wrong for good.
        let expected = if pair.action == "CancelOrder" {
            "failed"
        } else {
            "rejected"
        };
        assert_eq!(outcomes[2].name(), expected, "{pair:?}");
        assert_eq!(
            outcomes.iter().filter(|outcome| is_done(outcome)).count(),
            4,
            "{pair:?}"
        );
        for order in &orders {
            assert!(pair.is_applied(&shop, order).await, "{pair:?}");
        }
        assert_eq!(
            send(&*pair.participant(&shop), &batch).await,
            outcomes,
            "{pair:?}: a refusal is stored too"
        );
        shop.execute(
            "insert into shop.stock (sku, warehouse, available) values ('tea', 'north', 10)",
        )
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_command_is_expired_unless_it_is_known() {
    let shop = TestShop::open().await;
    for pair in PAIRS {
        let order = shop.overdue_mug().await;
        let (participant, saga) = (pair.participant(&shop), Saga::on(&order));
        let before = shop.view(&order).await;
        let old = |command: Command| Command {
            expires_at: ago(1),
            ..command
        };
        for _repeated in 0..2 {
            let outcome = send_one(&*participant, &old(pair.action(&saga))).await;
            assert_eq!(outcome, Outcome::Expired, "{pair:?}");
        }
        assert_eq!(shop.view(&order).await, before, "{pair:?}");
        let done = send_one(&*participant, &pair.action(&saga)).await;
        assert!(is_done(&done), "{pair:?}: an expired command leaves no row");
        let known = send_one(&*participant, &old(pair.action(&saga))).await;
        assert_eq!(known, done, "{pair:?}");
        let outcome = send_one(&*participant, &old(pair.compensation(&saga))).await;
        assert_eq!(outcome, Outcome::Expired, "{pair:?}");
        assert!(pair.is_applied(&shop, &order).await, "{pair:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_waits_for_its_twin_and_gives_up_when_that_takes_too_long() {
    let shop = TestShop::open().await;
    for pair in PAIRS {
        let order = shop.overdue_mug().await;
        let saga = Saga::on(&order);
        // The twin is inside its transaction and stays there.
        #[allow(
            clippy::disallowed_methods,
            reason = "the twin must stay open while the other waits for it"
        )]
        let mut twin = shop.pool.begin().await.expect("a transaction begins");
        sqlx::query(
            "insert into shop.barrier (command_id, operation, fingerprint, expires_at)
             values ($1, $2, '', clock_timestamp() + interval '1 h')",
        )
        .bind(pair.action(&saga).command_id.as_str())
        .bind(pair.action)
        .execute(&mut *twin)
        .await
        .expect("the twin's row is written");
        let participant = pair.participant(&shop);
        let answer = in_time(participant.call(pair.action, &[pair.action(&saga)])).await;
        assert!(
            matches!(answer, Err(CallError::Locked(_))),
            "{pair:?}: {answer:?}"
        );
        twin.rollback().await.expect("the twin gives up");
        let outcome = send_one(&*participant, &pair.action(&saga)).await;
        assert!(is_done(&outcome), "{pair:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_pruned_when_their_time_is_over_and_not_before() {
    let shop = TestShop::open().await;
    let orders = shop.overdue_mugs(5).await;
    let commands: Vec<Command> = orders
        .iter()
        .map(|order| Saga::on(order).does("CancelOrder"))
        .collect();
    send(&shop.orders, &commands).await;
    assert_eq!(barrier::prune(&shop.pool, 100).await, Ok(0));
    shop.execute("update shop.barrier set expires_at = clock_timestamp() - interval '1 s'")
        .await;
    assert_eq!(barrier::prune(&shop.pool, 3).await, Ok(3));
    assert_eq!(barrier::prune(&shop.pool, 3).await, Ok(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_nobody_knows_is_a_configuration_fault() {
    let shop = TestShop::open().await;
    let order = shop.overdue_mug().await;
    let saga = Saga::on(&order);
    for pair in PAIRS {
        let participant = pair.participant(&shop);
        let unknown = participant.call("MakeTea", &[saga.does("MakeTea")]).await;
        assert!(
            matches!(unknown, Err(CallError::Configuration(_))),
            "{unknown:?}"
        );
        let mixed = participant.call(pair.action, &[saga.does("MakeTea")]).await;
        assert!(matches!(mixed, Err(CallError::Data(_))), "{mixed:?}");
    }
}

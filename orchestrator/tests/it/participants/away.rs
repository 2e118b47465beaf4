//! A coordinator whose shop is a service elsewhere, in a database of its own.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use lapse::config::{self, Config, Transport};
use rust_decimal::Decimal;

use crate::support::live::{Live, ON_TIME_MS, STOCK, free_address, order_ref};
use crate::support::until;

const SOON: Duration = Duration::from_secs(30);

/// `lapse shop serve` as a process; it does not outlive its test.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    async fn start(config: &Config) -> Server {
        let listen = free_address().to_string();
        let child = Command::new(env!("CARGO_BIN_EXE_lapse"))
            .args(["shop", "serve", "--listen", &listen])
            .env("LAPSE__SHOP__URL", &config.shop.url)
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .stderr(Stdio::null())
            .spawn()
            .expect("the program can be started");
        let server = Server {
            child,
            url: format!("http://{listen}"),
        };
        let ready = format!("{}/readyz", server.url);
        until("the shop is served", SOON, || async {
            let answer = reqwest::get(&ready).await.ok()?;
            answer.status().is_success().then_some(())
        })
        .await;
        server
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("sh")
            .args(["-c", "kill -\"$1\" \"$2\"", "sh", signal, &pid])
            .status();
        assert!(sent.expect("a shell is there").success());
    }

    async fn ends(&mut self) -> Option<i32> {
        let child = &mut self.child;
        until("it ends", Duration::from_secs(10), || {
            let ended = child.try_wait().expect("it can be asked");
            std::future::ready(ended)
        })
        .await
        .code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Settings that reach the shop there.
fn served_at(config: &mut Config, url: &str, single: bool) {
    for name in ["orders", "stock"] {
        let participant = config::Participant {
            transport: Transport::Http,
            url: url.to_owned(),
            single,
            ..config::Participant::default()
        };
        config.participants.insert(name.to_owned(), participant);
    }
    let owner = config::OrderOwner {
        url: url.to_owned(),
        ..config::OrderOwner::default()
    };
    config.order_owners.insert("orders".to_owned(), owner);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_of_a_shop_elsewhere_are_cancelled_on_time_and_their_stock_comes_back() {
    for single in [false, true] {
        let mut live = Live::in_process_beside_a_shop().await;
        let mut server = Server::start(&live.config).await;
        served_at(&mut live.config, &server.url, single);
        let service = live.start().await;
        let due = Utc::now() + TimeDelta::seconds(2);
        let ids: Vec<String> = (0..40).map(|n| format!("away-{n}")).collect();
        let placed = live.place_many(&ids, due).await;
        live.schedule(&service, &placed[..30]).await;
        for order_id in &ids[..5] {
            live.shop.pay(&order_ref(order_id)).await.unwrap();
        }

        // Those that no event told of are the sweep's.
        let sagas = live.all_ended(40, SOON).await;

        for saga in &sagas {
            let expected = match ids.iter().position(|id| *id == saga.order_id) {
                Some(0..5) => "skipped",
                _ => "completed",
            };
            assert_eq!(saga.state, expected, "{saga:?}");
            if saga.cause == "timeout" && expected == "completed" {
                let late_ms = saga.lateness_ms.expect("it had a due time");
                assert!((0..ON_TIME_MS).contains(&late_ms), "{late_ms} ms late");
            }
        }
        let swept = sagas.iter().filter(|saga| saga.cause == "sweep").count();
        assert_eq!(swept, 10, "those without an event");
        let stock = live.stock().await;
        assert_eq!(stock.sold, Decimal::from(10));
        assert_eq!(stock.available, Decimal::from(STOCK - 10));
        live.verified().await;
        service.stop().await;
        server.signal("TERM");
        assert_eq!(server.ends().await, Some(0), "it stops calmly");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_that_is_killed_and_comes_back_has_every_effect_once() {
    let mut live = Live::in_process_beside_a_shop().await;
    let first = Server::start(&live.config).await;
    let listen = first.url.strip_prefix("http://").unwrap().to_owned();
    served_at(&mut live.config, &first.url, false);
    let service = live.start().await;
    let due = Utc::now() + TimeDelta::seconds(2);
    let ids: Vec<String> = (0..40).map(|n| format!("killed-{n}")).collect();
    let placed = live.place_many(&ids, due).await;
    live.schedule(&service, &placed).await;

    first.signal("KILL");
    until("a saga waits for the shop", SOON, || async {
        let sagas = live.sagas().await;
        sagas
            .iter()
            .any(|saga| saga.phase.as_deref() == Some("deferred"))
            .then_some(())
    })
    .await;
    let again = Command::new(env!("CARGO_BIN_EXE_lapse"))
        .args(["shop", "serve", "--listen", &listen])
        .env("LAPSE__SHOP__URL", &live.config.shop.url)
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .stderr(Stdio::null())
        .spawn();
    let _again = Server {
        child: again.expect("the program can be started"),
        url: first.url.clone(),
    };

    let sagas = live.all_ended(40, SOON).await;

    assert!(
        sagas.iter().all(|saga| saga.state == "completed"),
        "{sagas:?}"
    );
    assert_eq!(live.stock().await.available, Decimal::from(STOCK));
    live.verified().await;
    service.stop().await;
}

//! Several services share the work, and none is needed.

use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use rust_decimal::Decimal;

use crate::support::live::{Live, Running, STOCK, on_both_brokers};

const SOON: Duration = Duration::from_secs(60);
const DRAINED_WITHIN: Duration = Duration::from_secs(10);
const WAVES: usize = 8;
const WAVE: usize = 30;

on_both_brokers! {
    two_services_share_the_work_and_when_one_stops_nothing_is_lost,
}

/// Orders fall due in waves, half a second apart; one service stops in the middle of them.
async fn two_services_share_the_work_and_when_one_stops_nothing_is_lost(live: Live) {
    let first = live.start().await;
    let second = Running::start(&live.another()).await;
    let began = Utc::now() + TimeDelta::seconds(2);
    for wave in 0..WAVES {
        let ids: Vec<String> = (0..WAVE).map(|n| format!("wave-{wave}-{n}")).collect();
        let due = began + TimeDelta::milliseconds(wave as i64 * 500);
        let placed = live.place_many(&ids, due).await;
        live.schedule(&first, &placed).await;
    }
    live.story_in("wave-3-0", "completed", SOON).await;

    let stopping = Instant::now();
    first.stop().await;
    let took = stopping.elapsed();

    assert!(took < DRAINED_WITHIN, "the drain took {took:?}");
    let sagas = live.all_ended(WAVES * WAVE, SOON).await;
    assert!(
        sagas.iter().all(|saga| saga.state == "completed"),
        "every order is cancelled"
    );
    assert_eq!(live.stock().await.available, Decimal::from(STOCK));
    live.verified().await;
    second.stop().await;
}

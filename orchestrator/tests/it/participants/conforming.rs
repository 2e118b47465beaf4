//! The reference shop keeps its own contract, in this process and over HTTP.

use std::sync::Arc;

use lapse::conform::{self, CASES, Report, Subject, Verdict};
use lapse::shop_serve::ShopParticipant;
use lapse::shop_serve::http::{Served, router};
use lapse_participants::order::Orders;

use super::model::Model;
use super::served::{behind, direct, http, plan, serve};
use super::shop::ShopSite;

/// All cases that the transport has are ok.
async fn passes(subject: &Subject, not_run: usize) {
    let report = conform::run(subject, chrono::Utc::now()).await.unwrap();
    let wrong: Vec<_> = report
        .cases
        .iter()
        .filter(|case| case.result == Verdict::Failed)
        .collect();
    assert!(report.ok, "{wrong:#?}");
    assert_eq!(report.not_run, not_run, "{:?}", left_out(&report));
    assert_eq!(report.passed + not_run, CASES.len());
}

fn left_out(report: &Report) -> Vec<&str> {
    let cases = report.cases.iter();
    let left_out = cases.filter(|case| case.result == Verdict::NotRun);
    left_out.map(|case| case.case).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reference_shop_keeps_the_contract_in_this_process() {
    let site = Arc::new(ShopSite::open().await);
    let shop = Arc::new(ShopParticipant::new(site.pool.clone()));
    for plan in [
        plan("CancelOrder", "ReopenOrder"),
        plan("ReplenishStock", "WithdrawStock"),
    ] {
        // Without bytes and connections: unknown_fields, garbage, reset_in_the_middle.
        passes(&direct(shop.clone(), site.clone(), plan), 3).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reference_shop_keeps_the_contract_over_http() {
    let site = Arc::new(ShopSite::open().await);
    let served = Served {
        participant: Arc::new(ShopParticipant::new(site.pool.clone())),
        owner: Arc::new(Orders::new(site.pool.clone())),
    };
    let server = serve(router(served)).await;
    for plan in [
        plan("CancelOrder", "ReopenOrder"),
        plan("ReplenishStock", "WithdrawStock"),
    ] {
        passes(&behind(server, site.clone(), plan), 0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_tried_is_told_and_is_not_ok() {
    let model = Arc::new(Model::right());
    let server = serve(http(model.clone())).await;
    let mut subject = behind(server, model.clone(), plan("CancelOrder", "ReopenOrder"));
    passes(&subject, 0).await;
    subject.plan.compensation = None;
    let report = conform::run(&subject, chrono::Utc::now()).await.unwrap();
    assert_eq!(
        left_out(&report),
        ["undone_action", "compensation_first", "late_action"]
    );
    subject.wire = None;
    let report = conform::run(&subject, chrono::Utc::now()).await.unwrap();
    assert_eq!(report.not_run, 6, "{:?}", left_out(&report));
}

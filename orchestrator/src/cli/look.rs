//! `lapse list`, `lapse show`, `lapse alerts`: what people ask at 3 a.m. Read from the views of `ops_v1` only.

use lapse_participants::shop::{OrderRef, Shop};
use lapse_sagas::{SagaId, Timestamp};
use serde_json::{Value, json};

use super::{Context, Exit, answer, shop, webhooks};
use crate::operators;
use crate::service;
use crate::store::ops::{Filter, Find, Ops, Story};
use crate::store::webhooks::Deliveries;

/// Whose an order is where nobody says so.
const DEFAULT_TENANT: &str = "default";

/// Flags of `lapse list`.
#[derive(clap::Args)]
pub(super) struct List {
    /// running, compensating, completed, skipped, compensated, parked or resolved.
    #[arg(long)]
    state: Option<String>,
    /// Only of this definition.
    #[arg(long)]
    definition: Option<String>,
    /// Only of this order.
    #[arg(long)]
    order: Option<String>,
    /// Only those older than this saga: the last of the page before.
    #[arg(long)]
    after: Option<SagaId>,
    /// How many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

/// Flags of `lapse show`.
#[derive(clap::Args)]
pub(super) struct Show {
    /// The saga; or name the order.
    #[arg(required_unless_present = "order")]
    saga: Option<SagaId>,
    /// The order, whose newest saga is shown.
    #[arg(long, conflicts_with = "saga")]
    order: Option<String>,
    /// The order's tenant; without it: default, or the only one that has a saga of it.
    #[arg(long, conflicts_with = "saga")]
    tenant: Option<String>,
}

/// `lapse alerts …`
#[derive(clap::Subcommand)]
pub(super) enum Alerts {
    /// Open alerts, the latest first.
    List {
        /// Acknowledged and resolved ones too.
        #[arg(long)]
        all: bool,
    },
    /// Acknowledge an alert: it is not repeated until another saga joins it.
    Ack {
        /// As listed.
        fingerprint: String,
        /// Who.
        #[arg(long, env = "USER", default_value = "operator")]
        by: String,
    },
    /// Post a sample to a webhook and say what came back.
    Test {
        /// As in the settings: `[alerts.webhooks.NAME]`.
        webhook: String,
    },
}

pub(super) async fn list(context: Context, args: List) -> anyhow::Result<()> {
    let ops = Ops::new(service::database(&context.config)?);
    let List {
        state,
        definition,
        order,
        after,
        limit,
    } = args;
    let sagas = ops
        .list(Filter {
            state,
            definition,
            order_id: order,
            after,
            limit,
        })
        .await?;
    answer::print(context.output, "list", &json!({ "sagas": sagas }), || {
        let has_tenants = sagas.iter().any(|saga| saga.tenant != DEFAULT_TENANT);
        let with_tenant = |mut row: Vec<String>, tenant: &str| {
            if has_tenants {
                row.insert(1, tenant.to_owned());
            }
            row
        };
        let rows = sagas.iter().map(|saga| {
            let row = vec![
                saga.saga_id.to_string(),
                saga.order_id.clone(),
                saga.state.clone(),
                saga.step
                    .clone()
                    .or_else(|| saga.reason.clone())
                    .unwrap_or_default(),
                saga.attempt
                    .map(|attempt| attempt.to_string())
                    .unwrap_or_default(),
                saga.due_at.map(time).unwrap_or_default(),
                saga.lateness_ms
                    .map(|ms| format!("{ms} ms"))
                    .unwrap_or_default(),
            ];
            with_tenant(row, &saga.tenant)
        });
        let header = [
            "saga",
            "order",
            "state",
            "step or reason",
            "attempt",
            "due",
            "late",
        ];
        let header = with_tenant(header.map(str::to_owned).to_vec(), "tenant");
        let header: Vec<&str> = header.iter().map(String::as_str).collect();
        answer::table(&header, rows)
    })
}

pub(super) async fn show(context: Context, args: Show) -> anyhow::Result<()> {
    let ops = Ops::new(service::database(&context.config)?);
    let (story, order) = match (args.saga, args.order) {
        (None, Some(order_id)) => {
            let tenant = match args.tenant {
                Some(tenant) => tenant,
                None => tenant_of(&ops, &order_id).await?,
            };
            let order = OrderRef { tenant, order_id };
            let find = Find::Order {
                tenant: order.tenant.clone(),
                order_id: order.order_id.clone(),
            };
            (ops.show(find).await?, Some(order))
        }
        (Some(saga), _) => {
            let story = ops.show(Find::Saga(saga)).await?;
            let order = story.as_ref().map(|story| OrderRef {
                tenant: story.saga.tenant.clone(),
                order_id: story.saga.order_id.clone(),
            });
            (story, order)
        }
        (None, None) => (None, None),
    };
    let view = match &order {
        Some(order) if context.config.shop.enabled => {
            let shop = Shop::new(service::shop_database(&context.config)?);
            shop.show(order).await?
        }
        _ => None,
    };
    if story.is_none() && view.is_none() {
        return Err(nothing(&ops, order).await?.into());
    }
    let order = view;
    answer::print(
        context.output,
        "show",
        &json!({ "story": story, "order": order }),
        || {
            let story = story
                .as_ref()
                .map_or_else(|| "no saga yet".to_owned(), words);
            let order = order.as_ref().map(shop::words).unwrap_or_default();
            format!("{story}\n\n{order}")
        },
    )
}

/// The tenant that is meant where none is named.
async fn tenant_of(ops: &Ops, order_id: &str) -> anyhow::Result<String> {
    let mut tenants = ops.tenants_of(order_id).await?;
    if tenants.len() == 1 {
        return Ok(tenants.swap_remove(0));
    }
    Ok(DEFAULT_TENANT.to_owned())
}

/// There is neither saga nor order; says whose there are.
async fn nothing(ops: &Ops, order: Option<OrderRef>) -> anyhow::Result<Exit> {
    let Some(OrderRef { tenant, order_id }) = order else {
        return Ok(Exit::NotFound("there is no such saga".to_owned()));
    };
    let others = others(ops, &order_id).await?;
    Ok(Exit::NotFound(format!(
        "there is no saga of order {order_id} of tenant {tenant}, nor such an order in the shop{others}"
    )))
}

/// What to add where an order is not found: which tenants have sagas of an order by this id.
pub(super) async fn others(ops: &Ops, order_id: &str) -> anyhow::Result<String> {
    let tenants = ops.tenants_of(order_id).await?;
    Ok(match tenants.as_slice() {
        [] => String::new(),
        [only] => format!("; tenant {only} has one: add --tenant {only}"),
        several => format!("; tenants {} have one: add --tenant", several.join(", ")),
    })
}

fn words(story: &Story) -> String {
    let saga = &story.saga;
    let tenant = match saga.tenant.as_str() {
        DEFAULT_TENANT => String::new(),
        tenant => format!(" of tenant {tenant}"),
    };
    let head = format!(
        "saga {} ({}, run {}) of order {}{tenant}: {}{}",
        saga.saga_id,
        saga.definition,
        saga.run,
        saga.order_id,
        saga.state,
        saga.reason
            .as_ref()
            .map(|reason| format!(", {reason}"))
            .unwrap_or_default(),
    );
    let rows = story.timeline.iter().map(|entry| {
        vec![
            entry.seq.to_string(),
            time(entry.at),
            entry.kind.clone(),
            entry.step.clone().unwrap_or_default(),
            entry.direction.clone().unwrap_or_default(),
            entry
                .attempt
                .map(|attempt| attempt.to_string())
                .unwrap_or_default(),
            detail(entry.detail.as_ref()),
        ]
    });
    let mut text = format!(
        "{head}\n{}",
        answer::table(&["", "at", "what", "step", "", "attempt", ""], rows)
    );
    for alert in &story.alerts {
        text.push_str(&format!(
            "\nalert {} ({}): {}",
            alert.fingerprint, alert.state, alert.message
        ));
    }
    text
}

/// One line of a timeline entry's detail; the event itself only with `-o json`.
fn detail(detail: Option<&Value>) -> String {
    let Some(Value::Object(fields)) = detail else {
        return String::new();
    };
    let shown = fields
        .iter()
        .filter(|(name, value)| *name != "event" && *name != "output" && !value.is_null());
    shown
        .map(|(name, value)| match value {
            Value::String(text) => format!("{name} {text}"),
            other => format!("{name} {other}"),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

pub(super) async fn alerts(context: Context, command: Alerts) -> anyhow::Result<()> {
    match command {
        Alerts::List { all } => list_alerts(context, all).await,
        Alerts::Ack { fingerprint, by } => acknowledge(context, &fingerprint, &by).await,
        Alerts::Test { webhook } => webhooks::test(context, &webhook).await,
    }
}

async fn list_alerts(context: Context, all: bool) -> anyhow::Result<()> {
    let db = service::database(&context.config)?;
    let ops = Ops::new(db.clone());
    let alerts = if all {
        ops.alerts().await?
    } else {
        ops.open_alerts().await?
    };
    let backlog = Deliveries::new(db).backlog().await?;
    let body = json!({ "alerts": alerts, "webhooks": backlog });
    answer::print(context.output, "alerts-list", &body, || {
        let rows = alerts.iter().map(|alert| {
            vec![
                alert.fingerprint.clone(),
                alert.state.clone(),
                alert.kind.clone(),
                alert.step.clone(),
                alert.sagas.to_string(),
                alert.sends.to_string(),
                time(alert.last_at),
                alert.message.clone(),
            ]
        });
        let header = [
            "alert", "", "kind", "step", "sagas", "sent", "last", "message",
        ];
        format!(
            "{}{}",
            answer::table(&header, rows),
            webhooks::words(&backlog)
        )
    })
}

async fn acknowledge(context: Context, fingerprint: &str, by: &str) -> anyhow::Result<()> {
    let by = operators::name(by).map_err(Exit::Invalid)?;
    let ops = Ops::new(service::database(&context.config)?);
    if !ops.acknowledge(fingerprint, &by).await? {
        return Err(Exit::NotFound(format!(
            "there is no open alert {fingerprint}; see: lapse alerts list"
        ))
        .into());
    }
    let body = json!({ "fingerprint": fingerprint, "acknowledged_by": by });
    answer::print(context.output, "alerts-ack", &body, || {
        format!("alert {fingerprint} is acknowledged by {by}")
    })
}

pub(super) fn time(at: Timestamp) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

//! `lapse retry`, `lapse resolve`: what an operator does to sagas that stopped. Works on the database, so it works with
//! every coordinator down; whichever runs next goes on.

use lapse_sagas::{Refused, SagaId};
use serde::Serialize;
use serde_json::json;

use super::answer::count;
use super::look::others;
use super::{Context, Exit, answer};
use crate::operators::{Act, Deed, Operated, operate};
use crate::pace::{Pace, Rate};
use crate::service;
use crate::store::ops::{Filter, Ops, Resting, RestingRow, SagaRow};
use crate::store::pg::PgStore;

/// Flags of `lapse retry` and `lapse resolve`: which sagas, why, who.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).args(["saga", "order", "state", "alert"])))]
pub(super) struct Args {
    /// This saga.
    #[arg(long)]
    saga: Option<SagaId>,
    /// The saga of this order.
    #[arg(long)]
    order: Option<String>,
    /// All in this state: parked or compensated.
    #[arg(long, value_parser = ["parked", "compensated"])]
    state: Option<String>,
    /// All that this alert stands for: its name as `lapse alerts list` has it.
    #[arg(long)]
    alert: Option<String>,
    /// Only of this definition.
    #[arg(long)]
    definition: Option<String>,
    /// Only of this tenant; with --order: default.
    #[arg(long)]
    tenant: Option<String>,
    /// With --order: this holding period.
    #[arg(long, requires = "order")]
    generation: Option<i32>,
    /// Only those that stopped at this step.
    #[arg(long, conflicts_with_all = ["saga", "order"])]
    step: Option<String>,
    /// Only those with this error class, such as timeout.
    #[arg(long, conflicts_with_all = ["saga", "order"])]
    class: Option<String>,
    /// At most so many, the oldest first.
    #[arg(long, conflicts_with_all = ["saga", "order"], value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// So many a second.
    #[arg(long, value_name = "N/s")]
    rate: Option<Rate>,
    /// List what it would be done to; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Why; goes into the history.
    #[arg(long, required_unless_present = "dry_run")]
    reason: Option<String>,
    /// Who; goes into the history.
    #[arg(long, env = "USER", default_value = "operator")]
    actor: String,
}

/// One saga and what became of it.
#[derive(Serialize)]
struct Line {
    saga_id: SagaId,
    definition: String,
    tenant: String,
    order_id: String,
    generation: i32,
    /// As it is now.
    state: String,
    /// `retried`, `resolved`, `conflict`, `gone`; with --dry-run `would be …`.
    result: String,
    /// Why it stopped, or why it was left alone.
    reason: Option<String>,
}

pub(super) async fn run(context: Context, act: Act, args: Args) -> anyhow::Result<()> {
    let verb = match act {
        Act::Retry => "retry",
        Act::Resolve => "resolve",
    };
    let reason = args.reason.as_deref();
    let deed = Deed::new(act, &args.actor, reason.unwrap_or("dry run")).map_err(Exit::Invalid)?;
    let db = service::database(&context.config)?;
    let (ops, store) = (Ops::new(db.clone()), PgStore::new(db));
    let chosen = chosen(&ops, &args).await?;
    let is_one = args.saga.is_some() || args.order.is_some();
    let mut lines = Vec::new();
    if args.dry_run {
        lines.extend(chosen.into_iter().map(|row| would_be(act, row)));
    } else {
        let mut pace = Pace::new(args.rate);
        for part in chosen.chunks(pace.chunk()) {
            pace.turn(part.len()).await;
            let ids: Vec<SagaId> = part.iter().map(|row| SagaId(row.saga_id)).collect();
            let done = lines.len();
            let operated = operate(&store, &ids, &deed).await.map_err(|error| {
                anyhow::Error::new(error).context(format!("after {}", count(done, "saga")))
            })?;
            lines.extend(part.iter().map(|row| became(act, row, &operated)));
        }
    }
    report(&context, verb, &args, is_one, &lines)
}

/// Sagas by their rows; for one saga also if it can't be operated on, so that it can be said what it is.
async fn chosen(ops: &Ops, args: &Args) -> anyhow::Result<Vec<RestingRow>> {
    if let Some(id) = args.saga {
        let story = ops.show(crate::store::ops::Find::Saga(id)).await?;
        let story = story.ok_or_else(|| Exit::NotFound(format!("there is no saga {id}")))?;
        return Ok(vec![resting(story.saga)]);
    }
    if let Some(order_id) = &args.order {
        return Ok(vec![resting(of_order(ops, order_id, args).await?)]);
    }
    let mut rows: Vec<RestingRow> = Vec::new();
    let wanted = args.limit.map_or(usize::MAX, |limit| limit as usize);
    while rows.len() < wanted {
        let filter = Resting {
            state: args.state.clone(),
            definition: args.definition.clone(),
            tenant: args.tenant.clone(),
            step: args.step.clone(),
            class: args.class.clone(),
            alert: args.alert.clone(),
            after: rows.last().map(|row| SagaId(row.saga_id)),
            limit: u32::try_from((wanted - rows.len()).min(1_000)).unwrap_or(1_000),
        };
        let page = ops.resting(filter).await?;
        if page.is_empty() {
            break;
        }
        rows.extend(page);
    }
    Ok(rows)
}

/// The one saga of an order that waits for an operator, or its newest one if none does.
async fn of_order(ops: &Ops, order_id: &str, args: &Args) -> anyhow::Result<SagaRow> {
    let filter = Filter {
        order_id: Some(order_id.to_owned()),
        definition: args.definition.clone(),
        limit: 1_000,
        ..Filter::default()
    };
    let tenant = args.tenant.as_deref().unwrap_or("default");
    let mut sagas = ops.list(filter).await?;
    sagas.retain(|saga| {
        saga.tenant == tenant && args.generation.is_none_or(|given| given == saga.generation)
    });
    let waits = |saga: &SagaRow| matches!(saga.state.as_str(), "parked" | "compensated");
    if sagas.iter().filter(|saga| waits(saga)).count() > 1 {
        let known = sagas.iter().filter(|saga| waits(saga)).map(|saga| {
            let SagaRow {
                saga_id,
                definition,
                generation,
                state,
                ..
            } = saga;
            format!("{saga_id} ({definition}, generation {generation}, {state})")
        });
        let known = known.collect::<Vec<_>>().join(", ");
        let words = format!(
            "order {order_id} has several: {known}; add --definition or --generation, or name one with --saga"
        );
        return Err(Exit::Invalid(words).into());
    }
    let at = sagas.iter().position(waits).unwrap_or_default();
    if sagas.is_empty() {
        let others = others(ops, order_id).await?;
        let words = format!("there is no such saga of order {order_id} of tenant {tenant}{others}");
        return Err(Exit::NotFound(words).into());
    }
    Ok(sagas.swap_remove(at))
}

fn resting(saga: SagaRow) -> RestingRow {
    RestingRow {
        saga_id: saga.saga_id,
        definition: saga.definition,
        tenant: saga.tenant,
        order_id: saga.order_id,
        generation: saga.generation,
        state: saga.state,
        reason: saga.reason,
        updated_at: saga.updated_at,
    }
}

fn line(row: &RestingRow, state: &str, result: String, reason: Option<String>) -> Line {
    Line {
        saga_id: SagaId(row.saga_id),
        definition: row.definition.clone(),
        tenant: row.tenant.clone(),
        order_id: row.order_id.clone(),
        generation: row.generation,
        state: state.to_owned(),
        result,
        reason,
    }
}

fn would_be(act: Act, row: RestingRow) -> Line {
    let result = match row.state.as_str() {
        "parked" | "compensated" => format!("would be {}", act.done()),
        _ => "conflict".to_owned(),
    };
    let reason = row.reason.clone();
    line(&row, &row.state, result, reason)
}

fn became(act: Act, row: &RestingRow, operated: &[Operated]) -> Line {
    let one = operated.iter().find(|one| one.saga.id.0 == row.saga_id);
    let Some(Operated { saga, refused }) = one else {
        return line(row, "gone", "gone".to_owned(), None);
    };
    let state = saga.state.status.name();
    match refused {
        None => line(row, state, act.done().to_owned(), row.reason.clone()),
        Some(why @ Refused::Conflict { .. }) => {
            line(row, state, "conflict".to_owned(), Some(why.to_string()))
        }
        Some(why) => line(row, state, "refused".to_owned(), Some(why.to_string())),
    }
}

/// Everything done: 0. The only one, or all, left alone: 5. Some: 7.
fn report(
    context: &Context,
    verb: &str,
    args: &Args,
    is_one: bool,
    lines: &[Line],
) -> anyhow::Result<()> {
    let left: Vec<&Line> = lines
        .iter()
        .filter(|line| matches!(line.result.as_str(), "conflict" | "refused" | "gone"))
        .collect();
    let body = json!({
        "dry_run": args.dry_run, "matched": lines.len(), "done": lines.len() - left.len(), "left": left.len(),
        "sagas": lines,
    });
    answer::print(context.output, verb, &body, || {
        let rows = lines.iter().map(|line| {
            vec![
                line.saga_id.to_string(),
                line.order_id.clone(),
                line.result.clone(),
                line.state.clone(),
                line.reason.clone().unwrap_or_default(),
            ]
        });
        let table = answer::table(&["saga", "order", "result", "now", "reason"], rows);
        format!(
            "{table}\n{} of {}",
            lines.len() - left.len(),
            count(lines.len(), "saga")
        )
    })?;
    match left.first() {
        None => Ok(()),
        Some(only) if is_one => {
            let Line {
                saga_id,
                order_id,
                state,
                ..
            } = only;
            Err(Exit::Conflict(format!("saga {saga_id} of order {order_id} is {state}")).into())
        }
        Some(_) if left.len() == lines.len() => Err(Exit::Conflict(format!(
            "none of {} is parked or compensated any more",
            count(lines.len(), "saga")
        ))
        .into()),
        Some(_) => Err(Exit::Partly(format!(
            "{} of {} were left alone",
            left.len(),
            count(lines.len(), "saga")
        ))
        .into()),
    }
}

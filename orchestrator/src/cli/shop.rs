//! `lapse shop …`: works the reference shop, so that a hand-made event has an order behind it.

use lapse_participants::fault::Answer;
use lapse_participants::kit::CallError;
use lapse_participants::shop::{Line, NewOrder, OrderRef, OrderView, PayOutcome, Refusal, Shop};
use lapse_sagas::Span;
use rust_decimal::Decimal;
use serde_json::json;

use super::{Context, Exit, answer};
use crate::service;
use crate::shop_serve::OPERATIONS;
use crate::store::db;

/// So many units arrive of what the shop never had.
const FIRST_STOCK: u32 = 1_000;

/// What to do with the shop.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Place an order: it holds its stock, and its event is printed.
    Place(Place),
    /// Pay an order.
    Pay(Which),
    /// Show an order with its holds, ledger and stock.
    Show(Which),
    /// Make a step answer wrongly for an order, so many times.
    Fail(Fail),
    /// New units arrive.
    Stock(Stock),
    /// Serve orders and stock to coordinators elsewhere, until SIGTERM.
    Serve(super::shop_serve::Args),
}

/// Flags of `lapse shop place`.
#[derive(clap::Args)]
pub(super) struct Place {
    /// Given by the shop if there is none.
    #[arg(long)]
    order_id: Option<String>,
    /// Chooses the definition and the delay.
    #[arg(long, default_value = "normal")]
    order_type: String,
    /// Its tenant.
    #[arg(long, default_value = "default")]
    tenant: String,
    /// What it holds; repeat for more. Units that the shop never had are put in stock first.
    #[arg(
        long = "line",
        value_name = "SKU@WAREHOUSE=QUANTITY",
        default_value = "MUG-BLUE@main=1"
    )]
    lines: Vec<String>,
    /// How long it may be paid.
    #[arg(long, default_value = "15s")]
    pay_within: Span,
}

/// Which order.
#[derive(clap::Args)]
pub(super) struct Which {
    /// The order.
    order_id: String,
    /// Its tenant.
    #[arg(long, default_value = "default")]
    tenant: String,
}

/// Flags of `lapse shop fail`.
#[derive(clap::Args)]
pub(super) struct Fail {
    /// Which order.
    #[command(flatten)]
    which: Which,
    /// CancelOrder, ReopenOrder, ReplenishStock or WithdrawStock.
    #[arg(long)]
    operation: String,
    /// failed, unknown, unknown_applied, rejected or hang.
    #[arg(long, default_value = "failed")]
    answer: Answer,
    /// How many times.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    times: i32,
}

/// Flags of `lapse shop stock`.
#[derive(clap::Args)]
pub(super) struct Stock {
    /// What.
    sku: String,
    /// Where.
    warehouse: String,
    /// How much.
    quantity: Decimal,
}

pub(super) async fn run(context: Context, command: Command) -> anyhow::Result<()> {
    let shop = Shop::new(service::shop_database(&context.config)?);
    let ended = match command {
        Command::Serve(args) => return super::shop_serve::run(context, args).await,
        Command::Place(args) => place(&context, &shop, args).await,
        Command::Pay(which) => pay(&context, &shop, &which.order()).await,
        Command::Show(which) => show(&context, &shop, &which.order()).await,
        Command::Fail(args) => fail(&context, &shop, &args).await,
        Command::Stock(args) => stock(&context, &shop, &args).await,
    };
    ended.map_err(|error| at(context.config.shop_url(), error))
}

/// Names the address where nobody answers.
fn at(url: &str, error: anyhow::Error) -> anyhow::Error {
    match (error.downcast::<Exit>(), url.parse()) {
        (Ok(Exit::Unreachable(words)), Ok(options)) => {
            Exit::Unreachable(format!("{}: {words}", db::address(&options))).into()
        }
        (Ok(other), _) => other.into(),
        (Err(other), _) => other,
    }
}

impl Which {
    fn order(&self) -> OrderRef {
        OrderRef {
            tenant: self.tenant.clone(),
            order_id: self.order_id.clone(),
        }
    }
}

async fn place(context: &Context, shop: &Shop, args: Place) -> anyhow::Result<()> {
    let lines = args
        .lines
        .iter()
        .map(|line| parse_line(line))
        .collect::<Result<Vec<Line>, Exit>>()?;
    let now = shop.now().await.map_err(unreachable)?;
    let mut order = NewOrder::new(&args.order_type, lines, now + args.pay_within.delta());
    order.tenant = args.tenant;
    order.order_id = args.order_id;
    let placed = loop {
        match shop.place(&order).await.map_err(unreachable)? {
            Ok(placed) => break placed,
            Err(Refusal::UnknownSku { sku, warehouse }) => {
                eprintln!("the shop never had {sku} in {warehouse}: {FIRST_STOCK} arrive");
                shop.stock_up(&sku, &warehouse, Decimal::from(FIRST_STOCK))
                    .await
                    .map_err(unreachable)?;
            }
            Err(refusal @ Refusal::Invalid { .. }) => {
                return Err(Exit::Invalid(refusal.to_string()).into());
            }
            Err(refusal) => return Err(Exit::Conflict(refusal.to_string()).into()),
        }
    };
    answer::print(context.output, "shop-place", &placed, || {
        placed.event.to_string()
    })
}

fn parse_line(text: &str) -> Result<Line, Exit> {
    let wrong = || {
        Exit::Invalid(format!(
            "--line {text}: write SKU@WAREHOUSE=QUANTITY, such as MUG-BLUE@main=2"
        ))
    };
    let (key, quantity) = text.rsplit_once('=').ok_or_else(wrong)?;
    let (sku, warehouse) = key.rsplit_once('@').ok_or_else(wrong)?;
    let quantity = quantity.parse().map_err(|_| wrong())?;
    Ok(Line {
        sku: sku.to_owned(),
        warehouse: warehouse.to_owned(),
        quantity,
    })
}

async fn pay(context: &Context, shop: &Shop, order: &OrderRef) -> anyhow::Result<()> {
    let order_id = &order.order_id;
    let outcome = shop.pay(order).await.map_err(unreachable)?;
    let words = match outcome {
        PayOutcome::Paid => "is paid now",
        PayOutcome::AlreadyPaid => "was paid before",
        PayOutcome::OrderCancelled => {
            let words = format!("order {order_id} is cancelled; take no money for it");
            return Err(Exit::Conflict(words).into());
        }
        PayOutcome::UnknownOrder => return Err(unknown(order).into()),
    };
    let body = json!({ "order_id": order_id, "outcome": outcome });
    answer::print(context.output, "shop-pay", &body, || {
        format!("order {order_id} {words}")
    })
}

async fn show(context: &Context, shop: &Shop, order: &OrderRef) -> anyhow::Result<()> {
    let view = shop
        .show(order)
        .await
        .map_err(unreachable)?
        .ok_or_else(|| unknown(order))?;
    answer::print(context.output, "shop-show", &view, || words(&view))
}

/// An order as text.
pub(super) fn words(view: &OrderView) -> String {
    let holds = view.holds.iter().map(|hold| {
        vec![
            hold.sku.clone(),
            hold.warehouse.clone(),
            hold.quantity.to_string(),
            hold.state.clone(),
        ]
    });
    let ledger = view.ledger.iter().map(|row| {
        vec![
            row.at.to_string(),
            row.direction.clone(),
            row.quantity.to_string(),
            row.command_id.clone(),
        ]
    });
    format!(
        "order {} ({}) {}, due {}\n{}\n{}",
        view.order_id,
        view.order_type,
        view.status,
        view.due_at,
        answer::table(&["hold", "warehouse", "quantity", "state"], holds),
        answer::table(&["ledger", "direction", "quantity", "command"], ledger),
    )
}

async fn fail(context: &Context, shop: &Shop, args: &Fail) -> anyhow::Result<()> {
    let order = args.which.order();
    if !OPERATIONS.contains(&args.operation.as_str()) {
        return Err(Exit::Invalid(format!(
            "--operation {}: there are {}",
            args.operation,
            OPERATIONS.join(", ")
        ))
        .into());
    }
    shop.show(&order)
        .await
        .map_err(unreachable)?
        .ok_or_else(|| unknown(&order))?;
    shop.set_fault(&order, &args.operation, args.answer, args.times)
        .await
        .map_err(unreachable)?;
    let body = json!({ "order_id": order.order_id, "operation": args.operation, "answer": args.answer, "times": args.times });
    answer::print(context.output, "shop-fail", &body, || {
        format!(
            "{} of order {} answers {} the next {}",
            args.operation,
            order.order_id,
            args.answer.name(),
            if args.times == 1 {
                "time".to_owned()
            } else {
                format!("{} times", args.times)
            }
        )
    })
}

async fn stock(context: &Context, shop: &Shop, args: &Stock) -> anyhow::Result<()> {
    shop.stock_up(&args.sku, &args.warehouse, args.quantity)
        .await
        .map_err(unreachable)?;
    let body = json!({ "sku": args.sku, "warehouse": args.warehouse, "quantity": args.quantity });
    answer::print(context.output, "shop-stock", &body, || {
        format!(
            "{} more of {} in {}",
            args.quantity, args.sku, args.warehouse
        )
    })
}

fn unknown(order: &OrderRef) -> Exit {
    Exit::NotFound(format!(
        "the shop has no order {} of tenant {}",
        order.order_id, order.tenant
    ))
}

fn unreachable(error: CallError) -> Exit {
    match error {
        CallError::Data(_) => Exit::Invalid(error.to_string()),
        // The SQLSTATE is part of the words.
        CallError::Configuration(words) if words.contains("(SQLSTATE 28") => {
            Exit::NotAuthorised(format!("the shop's database: not authorised: {words}"))
        }
        CallError::Configuration(words) if words.contains("(SQLSTATE 3D000)") => Exit::Invalid(
            format!("the shop's database: {words}; create the database first"),
        ),
        CallError::Configuration(_) => Exit::Invalid(format!(
            "{error}; run: lapse migrate --set shop.enabled=true"
        )),
        other => Exit::Unreachable(format!("the shop's database: {other}")),
    }
}

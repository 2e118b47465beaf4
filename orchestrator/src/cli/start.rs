//! `lapse start`: asks a running coordinator to start a saga now, or to hurry the one that is there.

use anyhow::Context as _;
use lapse_sagas::{Cause, Span};
use serde_json::{Value, json};

use super::{Context, Exit, answer, local};

/// Flags of `lapse start`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Name of the definition.
    definition: String,
    /// The order.
    #[arg(long)]
    order_id: String,
    /// Its type.
    #[arg(long)]
    order_type: Option<String>,
    /// Its tenant.
    #[arg(long, default_value = "default")]
    tenant: String,
    /// Its holding period.
    #[arg(long, default_value_t = 1)]
    generation: i32,
    /// Who wants it.
    #[arg(long, value_enum, default_value_t = Who::Operator)]
    cause: Who,
    /// A token of the coordinator's HTTP interface, if it has any.
    #[arg(long, env = "LAPSE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Wait so long for the end.
    #[arg(long, default_value = "0s")]
    wait: Span,
}

/// Who may ask.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Who {
    /// The buyer.
    Buyer,
    /// An operator.
    Operator,
}

pub(super) async fn run(context: Context, args: Args) -> anyhow::Result<()> {
    let cause = match args.cause {
        Who::Buyer => Cause::Buyer,
        Who::Operator => Cause::Operator,
    };
    let body = json!({
        "order_id": args.order_id, "order_type": args.order_type, "tenant": args.tenant,
        "generation": args.generation, "cause": cause,
    });
    let url = local::url(&context.config, &["v1", "sagas", &args.definition])?;
    let mut request = local::client()
        .build()
        .context("make an HTTP client")?
        .post(url.clone())
        .query(&[("wait_ms", args.wait.as_millis())])
        .json(&body);
    if let Some(token) = &args.token {
        request = request.bearer_auth(token);
    }
    let response = request
        .send()
        .await
        .map_err(|error| Exit::Unreachable(format!("no coordinator answers at {url}: {error}")))?;
    let status = response.status();
    let answered: Value = response
        .json()
        .await
        .context("read the coordinator's answer")?;
    if status.is_success() {
        let words = || {
            let text = |name: &str| answered[name].as_str().unwrap_or_default().to_owned();
            format!(
                "saga {} of order {}: {}",
                text("saga_id"),
                text("order_id"),
                text("state")
            )
        };
        return answer::print(context.output, "start", &answered, words);
    }
    let detail = answered["detail"]
        .as_str()
        .unwrap_or("no reason given")
        .to_owned();
    Err(match status.as_u16() {
        401 | 403 => Exit::NotAuthorised(detail),
        404 => Exit::NotFound(detail),
        409 => Exit::Conflict(detail),
        400 | 422 => Exit::Invalid(detail),
        _ => Exit::Unreachable(detail),
    }
    .into())
}

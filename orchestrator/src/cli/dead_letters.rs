//! `lapse dead-letters`: look at records that could not become sagas, replay or discard them. Works on the database.

use std::sync::Arc;

use lapse_sagas::printable;
use serde::Serialize;
use serde_json::{Value, json};

use super::answer::count;
use super::verify::Since;
use super::{Context, Exit, answer, look::time};
use crate::definitions::Definitions;
use crate::operators;
use crate::pace::{Pace, Rate};
use crate::replay::{Quarantine, Replay, Replayed};
use crate::service;
use crate::store::ops::{DeadLetterRow, LetterFilter, Ops, StoredLetter};
use crate::store::pg::PgStore;

/// Bytes of a value that are shown to people; `-o json` has them all.
const SHOWN_BYTES: usize = 512;

/// `lapse dead-letters …`
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// The newest, or counts by reason.
    List(List),
    /// One letter: bytes, what is wrong and where, what a replay would give now.
    Show {
        /// As listed.
        id: i64,
    },
    /// Let records become sagas that could not before.
    Replay(ReplayArgs),
    /// Close letters that nobody needs.
    Discard {
        /// As listed.
        #[arg(required = true)]
        ids: Vec<i64>,
        /// Why; kept with the letter.
        #[arg(long)]
        reason: String,
        /// Who; kept with the letter.
        #[arg(long, env = "USER", default_value = "operator")]
        actor: String,
    },
}

/// Flags of `lapse dead-letters list`.
#[derive(clap::Args)]
pub(super) struct List {
    /// Count them instead.
    #[arg(long, value_enum)]
    by: Option<By>,
    #[command(flatten)]
    only: Only,
    /// waiting (open or quarantined), open, quarantined, replayed, discarded or all.
    #[arg(long, default_value = "waiting",
        value_parser = ["waiting", "open", "quarantined", "replayed", "discarded", "all"])]
    state: String,
    /// Only those older than this one: the last of the page before.
    #[arg(long)]
    before: Option<i64>,
    /// How many.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum By {
    /// By reason and state.
    Reason,
}

/// Which letters.
#[derive(clap::Args)]
struct Only {
    /// Only with this reason.
    #[arg(long)]
    reason: Option<String>,
    /// Only of this topic, by its full name.
    #[arg(long)]
    topic: Option<String>,
    /// Only those buried since: a time, or a length of time such as 1h.
    #[arg(long)]
    since: Option<Since>,
}

/// Flags of `lapse dead-letters replay`.
#[derive(clap::Args)]
pub(super) struct ReplayArgs {
    /// As listed; or choose with --reason or --all.
    #[arg(required_unless_present_any = ["all", "reason"], conflicts_with_all = ["all", "reason", "topic", "since"])]
    ids: Vec<i64>,
    /// All open ones.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    only: Only,
    /// So many a second.
    #[arg(long, value_name = "N/s")]
    rate: Option<Rate>,
    /// Say what would come of it; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Quarantined ones too.
    #[arg(long)]
    force: bool,
    /// Who; kept with the letter.
    #[arg(long, env = "USER", default_value = "operator")]
    actor: String,
}

pub(super) async fn run(context: Context, command: Command) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(context, args).await,
        Command::Show { id } => show(context, id).await,
        Command::Replay(args) => replay(context, args).await,
        Command::Discard { ids, reason, actor } => discard(context, ids, &reason, &actor).await,
    }
}

/// What all of them work with.
struct Desk {
    store: Arc<PgStore>,
    ops: Ops,
    replay: Replay,
}

async fn desk(context: &Context) -> anyhow::Result<Desk> {
    let db = service::database(&context.config)?;
    let (ops, store) = (Ops::new(db.clone()), Arc::new(PgStore::new(db)));
    let definitions = Arc::new(Definitions::load(store.clone()).await?);
    let settings = context.config.kafka_settings();
    let replay = Replay::new(store.clone(), ops.clone(), definitions, settings);
    Ok(Desk { store, ops, replay })
}

impl Only {
    async fn filter(self, store: &PgStore) -> anyhow::Result<LetterFilter> {
        let since = match self.since {
            None => None,
            Some(since) => Some(since.at(store).await?),
        };
        Ok(LetterFilter {
            reason: self.reason,
            topic: self.topic,
            since,
            limit: 1_000,
            ..LetterFilter::default()
        })
    }
}

async fn list(context: Context, args: List) -> anyhow::Result<()> {
    let db = service::database(&context.config)?;
    let (ops, store) = (Ops::new(db.clone()), PgStore::new(db));
    let filter = LetterFilter {
        states: LetterFilter::states_named(&args.state),
        before: args.before,
        limit: args.limit,
        ..args.only.filter(&store).await?
    };
    if args.by.is_some() {
        let groups = ops.dead_letter_groups(filter).await?;
        let body = json!({ "groups": groups });
        return answer::print(context.output, "dead-letters-list", &body, || {
            let rows = groups.iter().map(|group| {
                vec![
                    group.reason.clone(),
                    group.state.clone(),
                    group.letters.to_string(),
                    group.newest_id.to_string(),
                    time(group.newest_at),
                    group.newest_detail.clone(),
                ]
            });
            answer::table(&["reason", "", "letters", "newest", "at", "detail"], rows)
        });
    }
    let letters = ops.dead_letters(filter).await?;
    let body = json!({ "letters": letters });
    answer::print(context.output, "dead-letters-list", &body, || {
        let rows = letters.iter().map(|letter| {
            vec![
                letter.id.to_string(),
                time(letter.at),
                letter.state.clone(),
                place(letter),
                letter.reason.clone(),
                letter
                    .last_error
                    .clone()
                    .unwrap_or_else(|| letter.detail.clone()),
            ]
        });
        answer::table(&["letter", "at", "", "record", "reason", "detail"], rows)
    })
}

fn place(letter: &DeadLetterRow) -> String {
    format!("{}/{}/{}", letter.topic, letter.partition, letter.offset)
}

async fn show(context: Context, id: i64) -> anyhow::Result<()> {
    let desk = desk(&context).await?;
    let letter = desk
        .ops
        .dead_letter(id)
        .await?
        .ok_or_else(|| no_letter(id))?;
    let replayed = desk.replay.foretell(&letter).await?;
    let value = letter.raw_value.as_deref().unwrap_or_default();
    let body = json!({
        "letter": letter.row,
        "key_hex": letter.raw_key.as_deref().map(hex::encode),
        "value_hex": hex::encode(value),
        "text": std::str::from_utf8(value).ok(),
        "json": serde_json::from_slice::<Value>(value).ok(),
        "replay": replayed,
    });
    answer::print(context.output, "dead-letters-show", &body, || {
        words(&letter, &replayed)
    })
}

fn words(letter: &StoredLetter, replayed: &Replayed) -> String {
    let row = &letter.row;
    let value = letter.raw_value.as_deref().unwrap_or_default();
    let mut lines = vec![
        format!("letter {}: {}, buried {}", row.id, row.state, time(row.at)),
        format!(
            "record {}, {} bytes{}",
            place(row),
            value.len(),
            if row.is_cut {
                ", the rest was not kept"
            } else {
                ""
            }
        ),
        format!("wrong: {}: {}", row.reason, row.detail),
    ];
    lines.extend(row.last_error.as_ref().map(|error| {
        let replays = usize::try_from(row.replays).unwrap_or_default();
        format!("replayed {} in vain, last: {error}", count(replays, "time"))
    }));
    lines.extend(row.saga_id.map(|saga_id| format!("its saga: {saga_id}")));
    lines.extend(row.note.as_ref().map(|note| format!("note: {note}")));
    lines.extend(row.resolved_by.as_ref().map(|by| {
        format!(
            "closed by {by}, {}",
            row.resolved_at.map(time).unwrap_or_default()
        )
    }));
    lines.push(format!(
        "key: {}",
        text(letter.raw_key.as_deref().unwrap_or_default())
    ));
    if let Value::Object(headers) = &row.headers {
        lines.extend(
            headers
                .iter()
                .map(|(name, value)| format!("header {name}: {value}")),
        );
    }
    let [result, what] = told(replayed);
    lines.push(format!("replayed now: {result} {what}"));
    lines.push(match serde_json::from_slice::<Value>(value) {
        Ok(json) => format!("json:\n{json:#}"),
        Err(error) => format!("no json: {error}"),
    });
    let shown = &value[..value.len().min(SHOWN_BYTES)];
    lines.push(format!("text: {}", text(shown)));
    lines.push(format!("hex: {}", hex::encode(shown)));
    if shown.len() < value.len() {
        lines.push(format!("(the first {SHOWN_BYTES} bytes; all with -o json)"));
    }
    lines.join("\n")
}

/// Control characters escaped: what somebody sent must not work the terminal.
fn text(bytes: &[u8]) -> String {
    printable(&String::from_utf8_lossy(bytes))
}

/// One letter and what came of it.
#[derive(Serialize)]
struct Line {
    id: i64,
    #[serde(flatten)]
    replayed: Replayed,
}

async fn replay(context: Context, args: ReplayArgs) -> anyhow::Result<()> {
    let actor = operators::name(&args.actor).map_err(Exit::Invalid)?;
    let desk = desk(&context).await?;
    let quarantine = if args.force {
        Quarantine::Overruled
    } else {
        Quarantine::Respected
    };
    let by_id = !args.ids.is_empty();
    let ids = if by_id {
        args.ids
    } else {
        let filter = args.only.filter(&desk.store).await?;
        let states = LetterFilter::states_named(match quarantine {
            Quarantine::Respected => "open",
            Quarantine::Overruled => "waiting",
        });
        all_ids(&desk.ops, LetterFilter { states, ..filter }).await?
    };
    let mut pace = Pace::new(args.rate);
    let (mut lines, mut missing) = (Vec::new(), Vec::new());
    for id in ids {
        pace.turn(1).await;
        let replayed = if args.dry_run {
            desk.replay.ask(id, quarantine).await
        } else {
            desk.replay.replay(id, quarantine, &actor).await
        };
        let replayed = replayed.map_err(|error| {
            anyhow::Error::new(error).context(format!(
                "replay letter {id}, after {}",
                count(lines.len(), "other")
            ))
        })?;
        match replayed {
            Some(replayed) => lines.push(Line { id, replayed }),
            None => missing.push(id),
        }
    }
    let (refused, closed) = print_replayed(&context, args.dry_run, &lines, &missing)?;
    match (lines.len(), missing.first()) {
        (0, Some(id)) => Err(no_letter(*id).into()),
        (count, None) if refused == count && count > 0 => {
            Err(Exit::Invalid(format!("all {count} were refused again")).into())
        }
        (count, None) if closed == count && count > 0 => Err(Exit::Conflict(
            "none is open; quarantined ones are replayed with --force".to_owned(),
        )
        .into()),
        (_, None) if refused + closed == 0 => Ok(()),
        (count, _) => {
            let left = refused + closed + missing.len();
            Err(Exit::Partly(format!(
                "{left} of {} were not started",
                count + missing.len()
            ))
            .into())
        }
    }
}

/// Every id at the beginning: a letter that is refused again is not tried twice.
async fn all_ids(ops: &Ops, filter: LetterFilter) -> anyhow::Result<Vec<i64>> {
    let mut ids: Vec<i64> = Vec::new();
    loop {
        let page = ops
            .dead_letter_ids(filter.clone(), ids.last().copied().unwrap_or_default())
            .await?;
        if page.is_empty() {
            return Ok(ids);
        }
        ids.extend(page);
    }
}

/// Prints, and counts those refused and those that were closed.
fn print_replayed(
    context: &Context,
    dry_run: bool,
    lines: &[Line],
    missing: &[i64],
) -> anyhow::Result<(usize, usize)> {
    let count = |is: fn(&Replayed) -> bool| lines.iter().filter(|line| is(&line.replayed)).count();
    let started = count(|replayed| {
        matches!(
            replayed,
            Replayed::Started { .. } | Replayed::WouldStart { .. }
        )
    });
    let duplicate = count(|replayed| matches!(replayed, Replayed::Duplicate { .. }));
    let refused = count(|replayed| matches!(replayed, Replayed::Refused { .. }));
    let closed = count(|replayed| matches!(replayed, Replayed::Closed { .. }));
    let body = json!({
        "dry_run": dry_run, "started": started, "duplicate": duplicate, "refused": refused, "closed": closed,
        "missing": missing, "letters": lines,
    });
    answer::print(context.output, "dead-letters-replay", &body, || {
        let rows = lines.iter().map(|Line { id, replayed }| {
            let mut row = vec![id.to_string()];
            row.extend(told(replayed));
            row
        });
        answer::table(&["letter", "", ""], rows)
    })?;
    Ok((refused, closed))
}

fn told(replayed: &Replayed) -> [String; 2] {
    match replayed {
        Replayed::Started { saga_id, due_at } => [
            "started".to_owned(),
            format!("saga {saga_id}, due {}", time(*due_at)),
        ],
        Replayed::Duplicate { saga_id } => ["duplicate".to_owned(), format!("of saga {saga_id}")],
        Replayed::WouldStart {
            definition,
            order_id,
            due_at,
        } => [
            "would start".to_owned(),
            format!("{definition} of order {order_id}, due {}", time(*due_at)),
        ],
        Replayed::Refused {
            reason,
            detail,
            state,
        } => [
            "refused".to_owned(),
            format!("{reason}: {detail} ({state})"),
        ],
        Replayed::Closed { state } => ["left".to_owned(), format!("is {state}")],
    }
}

async fn discard(context: Context, ids: Vec<i64>, reason: &str, actor: &str) -> anyhow::Result<()> {
    let desk = desk(&context).await?;
    let reason = operators::line("reason", reason, 1_000).map_err(Exit::Invalid)?;
    let actor = operators::name(actor).map_err(Exit::Invalid)?;
    let (mut discarded, mut left) = (Vec::new(), Vec::new());
    let mut missing = Vec::new();
    for id in ids {
        match desk.replay.discard(id, &reason, &actor).await? {
            Some(Ok(())) => discarded.push(id),
            Some(Err(state)) => left.push((id, state)),
            None => missing.push(id),
        }
    }
    let told = left.iter();
    let told = told.map(|(id, state)| json!({ "id": id, "state": state }));
    let told: Vec<Value> = told.collect();
    let body = json!({ "discarded": discarded, "left": told, "missing": missing });
    answer::print(context.output, "dead-letters-discard", &body, || {
        format!(
            "{} discarded, {} left, {} not found",
            discarded.len(),
            left.len(),
            missing.len()
        )
    })?;
    match (discarded.len(), left.first(), missing.first()) {
        (_, None, None) => Ok(()),
        (0, None, Some(id)) => Err(no_letter(*id).into()),
        (0, Some((id, state)), None) => {
            Err(Exit::Conflict(format!("letter {id} is {state}")).into())
        }
        _ => {
            let (left, missing) = (left.len(), missing.len());
            Err(Exit::Partly(format!("{left} left, {missing} not found")).into())
        }
    }
}

fn no_letter(id: i64) -> Exit {
    Exit::NotFound(format!(
        "there is no dead letter {id}; see: lapse dead-letters list --state all"
    ))
}

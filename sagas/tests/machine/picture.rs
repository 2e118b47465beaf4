//! The picture of a saga, drawn from the walk, so that it cannot be wrong.
//!
//! `UPDATE_DOCS=1 cargo test -p lapse-sagas` writes it between its two marks; without that, the test compares.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use lapse_sagas::{Event, Phase, State};

use crate::given::shipped;
use crate::walk::{Arrow, walk};

const BEGIN: &str = "<!-- saga-states:begin -->";
const END: &str = "<!-- saga-states:end -->";

/// From, to, and what leads there.
type Edges = BTreeMap<(String, String), BTreeSet<String>>;

#[test]
fn the_picture_shows_what_the_walk_found() {
    let (mut sagas, mut phases) = (Edges::new(), Edges::new());
    sagas
        .entry(("[*]".to_owned(), place(&start())))
        .or_default()
        .insert("started".to_owned());
    walk(&shipped(), 2, |arrow| {
        draw_saga(&mut sagas, &arrow);
        draw_phase(&mut phases, &arrow);
    });
    assert!(
        sagas.len() < 40 && phases.len() < 40,
        "unreadable: {} and {} edges",
        sagas.len(),
        phases.len()
    );
    let picture = format!(
        "The saga: which step is open, which way.\n\n{}\nAny open step: what it waits for.\n\n{}",
        mermaid(&sagas),
        mermaid(&phases)
    );
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    keep(
        crate_folder.join("definitions/cancel-and-replenish.states.md"),
        &picture,
    );
    keep(crate_folder.join("../ARCHITECTURE.md"), &picture);
}

fn start() -> State {
    State::start(
        &shipped(),
        crate::given::saga_id(7),
        lapse_sagas::Cause::Timeout,
        crate::given::epoch(),
    )
}

fn draw_saga(edges: &mut Edges, arrow: &Arrow<'_>) {
    let (from, to) = (place(arrow.before), place(arrow.after));
    if from != to {
        edges.entry((from, to)).or_default().insert(label(arrow));
    }
}

/// The open step and its direction, or the state of rest.
fn place(state: &State) -> String {
    match state.earliest() {
        Some((step, active)) => format!("{}_{step}", active.direction),
        None => state.status.name().to_owned(),
    }
}

fn draw_phase(edges: &mut Edges, arrow: &Arrow<'_>) {
    let Some((step, active)) = arrow.before.earliest() else {
        return;
    };
    let same = arrow
        .after
        .active
        .get(step)
        .filter(|after| after.direction == active.direction);
    let to = same.map_or("settled", |after| after.phase.name());
    let late = active.phase != Phase::Sent && matches!(arrow.event, Event::Replied { .. });
    let label = if late {
        "late reply".to_owned()
    } else {
        label(arrow)
    };
    if active.phase.name() != to || active.phase == Phase::Taken {
        edges
            .entry((active.phase.name().to_owned(), to.to_owned()))
            .or_default()
            .insert(label);
    }
}

fn label(arrow: &Arrow<'_>) -> String {
    let phase = arrow.before.earliest().map(|(_, active)| active.phase);
    match arrow.event {
        Event::Due if phase == Some(Phase::Sent) => "no reply",
        Event::Due if phase == Some(Phase::Taken) => "take-over",
        Event::Due => "wake-up time",
        Event::Sending { .. } => "sending",
        Event::Probing { .. } => "probing",
        Event::Deferred { .. } => "deferred",
        Event::Queued { .. } => "queued",
        Event::Undelivered { .. } => "undelivered",
        Event::Replied { outcome, .. } => outcome.name(),
        Event::CauseRaised { .. } => "cause raised",
        Event::Retry { .. } => "operator retries",
        Event::Resolve { .. } => "operator resolves",
    }
    .to_owned()
}

fn mermaid(edges: &Edges) -> String {
    let mut text = "```mermaid\nstateDiagram-v2\n".to_owned();
    for ((from, to), labels) in edges {
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        text += &format!("    {from} --> {to}: {}\n", labels.join(", "));
    }
    let rests = ["completed", "skipped", "resolved"];
    for rest in rests
        .into_iter()
        .filter(|rest| edges.keys().any(|(_, to)| to == rest))
    {
        text += &format!("    {rest} --> [*]\n");
    }
    text + "```\n"
}

/// Compares the block between the marks with the picture, or writes it. A file without the marks has no picture.
fn keep(path: PathBuf, picture: &str) {
    let Ok(text) = std::fs::read_to_string(&path) else {
        return;
    };
    let Some((before, rest)) = text.split_once(BEGIN) else {
        return;
    };
    let (_, after) = rest
        .split_once(END)
        .unwrap_or_else(|| panic!("{} has no {END}", path.display()));
    let wanted = format!("{before}{BEGIN}\n{picture}{END}{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, wanted)
            .unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
        return;
    }
    assert!(
        text == wanted,
        "{} is old; run UPDATE_DOCS=1 cargo test -p lapse-sagas picture",
        path.display()
    );
}

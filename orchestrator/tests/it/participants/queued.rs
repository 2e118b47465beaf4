//! Commands over a queue and replies in any order: on the store in memory and tokio's stopped clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chrono::DateTime;
use lapse::bus::{Delivery, MemoryBus, Origin, Outlet, Publish, REPLIES};
use lapse::clock::{Clock, Simulated};
use lapse::coordinator::Coordinator;
use lapse::feed::{Feed, MemoryFeed, Record};
use lapse::shop_serve::kafka::Server;
use lapse::store::memory::MemoryStore;
use lapse_participants::kit::answer::{About, Answer};
use lapse_participants::kit::{CallError, Command, Participant, Reply};
use lapse_sagas::{Outcome, Phase, Status};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::support::until;
use crate::support::world::{QUICK, World};

const HOUR: Duration = Duration::from_secs(3_600);

/// A world whose participants are this test.
struct Queue {
    world: World,
    store: Arc<MemoryStore>,
    bus: Arc<MemoryBus>,
    replies: Arc<MemoryFeed>,
}

impl Queue {
    async fn new() -> Queue {
        let start = DateTime::from_timestamp(1_780_000_000, 0).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(Simulated::from(start));
        let time = clock.clone();
        let store = Arc::new(MemoryStore::new(Arc::new(move || time.now())));
        let world = World::new(store.clone(), clock, QUICK).await;
        Queue {
            bus: world.bus(),
            world,
            store,
            replies: Arc::default(),
        }
    }

    fn coordinator(&self) -> Coordinator {
        self.world
            .queueing_coordinator(self.bus.clone(), self.replies.clone())
    }

    /// Orders `o0` and so on.
    async fn start_many(&self, coordinator: &Coordinator, orders: usize) {
        let ids: Vec<String> = (0..orders).map(|n| format!("o{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        self.world.start(coordinator, &ids).await;
    }

    /// Every command but the first so many, in the order in which they were produced.
    fn commands_from(&self, first: usize) -> Vec<Command> {
        let published = self.bus.published().into_iter();
        published
            .filter(|message| message.topic.starts_with("commands."))
            .skip(first)
            .map(|message| serde_json::from_str(&message.payload).expect("a command"))
            .collect()
    }

    /// Those of a step.
    fn commands(&self, step: &str) -> Vec<Command> {
        let mut commands = self.commands_from(0);
        commands.retain(|command| command.step.as_str() == step);
        commands
    }

    /// The command of this attempt, once it is produced.
    async fn command(&self, step: &str, attempt: u32) -> Command {
        until(&format!("attempt {attempt} of {step}"), HOUR, || async {
            let mut commands = self.commands(step).into_iter();
            commands.rfind(|command| command.attempt == attempt)
        })
        .await
    }

    fn answer(&self, command: &Command, outcome: Outcome) {
        let answer = Answer {
            about: About::from(command),
            outcome,
        };
        let value = serde_json::to_vec(&answer).unwrap();
        self.replies
            .append(REPLIES, &command.order.order_id, &value);
    }

    /// One alert for people, with these words in it.
    fn told_that_it_is_down(&self, words: &str) {
        let alerts = self.store.alerts();
        let down = alerts
            .iter()
            .filter(|alert| alert.raised.kind == "participant_down");
        let messages: Vec<&str> = down.map(|alert| alert.raised.message.as_str()).collect();
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].contains(words), "{messages:?}");
    }

    async fn all_read(&self) {
        until("every reply is committed", HOUR, || async {
            (self.replies.open() == 0).then_some(())
        })
        .await;
    }
}

fn done() -> Outcome {
    Outcome::Done {
        output: Value::Null,
    }
}

fn failed() -> Outcome {
    Outcome::Failed {
        error: "broken: on purpose".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn each_attempt_is_produced_once_under_one_id_on_the_topic_of_its_participant() {
    let queue = Queue::new().await;
    let coordinator = queue.coordinator();
    queue.world.start(&coordinator, &["o1"]).await;
    let first = queue.command("cancel_order", 1).await;
    queue.answer(&first, failed());
    let second = queue.command("cancel_order", 2).await;
    queue.answer(&second, done());
    let release = queue.command("replenish_stock", 1).await;
    queue.answer(&release, done());

    let saga = queue.world.at_rest("o1", HOUR).await;

    assert_eq!(saga.state.status, Status::Completed);
    let published: Vec<(String, String)> = queue
        .bus
        .published()
        .into_iter()
        .map(|message| (message.topic, message.key))
        .filter(|(topic, _)| topic.starts_with("commands."))
        .collect();
    let on = |topic: &str| (topic.to_owned(), "o1".to_owned());
    assert_eq!(
        published,
        [
            on("commands.orders"),
            on("commands.orders"),
            on("commands.stock")
        ]
    );
    assert_eq!(first.command_id, second.command_id);
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_an_attempt_that_timed_out_does_not_count_against_the_current_one() {
    let queue = Queue::new().await;
    let coordinator = queue.coordinator();
    queue.world.start(&coordinator, &["o1"]).await;
    let first = queue.command("cancel_order", 1).await;
    queue.command("cancel_order", 2).await;

    queue.answer(&first, failed());
    queue.all_read().await;

    let saga = queue.world.saga("o1").await.unwrap();
    let active = saga.state.active.values().next().unwrap();
    assert_eq!((active.phase, active.attempt), (Phase::Sent, 2));
    assert_eq!(queue.store.stale_replies().len(), 1, "and it is logged");
}

#[tokio::test(start_paused = true)]
async fn a_late_done_settles_the_step_whichever_attempt_is_current() {
    let queue = Queue::new().await;
    let coordinator = queue.coordinator();
    queue.world.start(&coordinator, &["o1"]).await;
    let first = queue.command("cancel_order", 1).await;
    queue.command("cancel_order", 2).await;

    queue.answer(&first, done());

    queue.command("replenish_stock", 1).await;
    assert_eq!(queue.commands("cancel_order").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn several_replies_of_one_saga_in_one_batch_are_heard_in_order() {
    let queue = Queue::new().await;
    let coordinator = queue.coordinator();
    queue.world.start(&coordinator, &["o1"]).await;
    let first = queue.command("cancel_order", 1).await;
    queue.answer(&first, failed());
    queue.answer(&first, done());
    for _ in 0..400 {
        queue.answer(&first, failed());
        queue.answer(&first, done());
    }

    queue.command("replenish_stock", 1).await;
    queue.all_read().await;

    let history = queue.store.history(first.saga_id);
    let replied: Vec<_> = history
        .iter()
        .filter(|line| line.text.contains("\"replied\""))
        .collect();
    assert_eq!(replied.len(), 2, "failed, then done: {history:#?}");
    let stale = queue.store.stale_replies().len();
    assert!(stale <= 2, "copies are read once in each batch: {stale}");
}

#[tokio::test(start_paused = true)]
async fn what_is_no_reply_is_a_dead_letter_and_blocks_nothing() {
    let queue = Queue::new().await;
    let coordinator = queue.coordinator();
    queue.world.start(&coordinator, &["o1"]).await;
    let command = queue.command("cancel_order", 1).await;
    let mut stranger = command.clone();
    stranger.saga_id = "01937b1e-7f0a-7cc2-b4e5-0f3f6a1c2d11".parse().unwrap();
    queue.replies.append(REPLIES, "o1", b"\xff garbage");
    queue.replies.append(REPLIES, "o1", b"{}");
    queue.answer(&stranger, done());
    queue.answer(&command, done());

    queue.command("replenish_stock", 1).await;
    queue.all_read().await;

    let letters = queue.store.dead_letters();
    let reasons: Vec<_> = letters
        .iter()
        .map(|letter| letter.reason.as_str())
        .collect();
    assert_eq!(reasons, ["bad_reply", "bad_reply"]);
}

#[tokio::test(start_paused = true)]
async fn words_of_a_participant_are_kept_as_one_line_and_too_large_a_reply_is_a_dead_letter() {
    let queue = Queue::new().await;
    let coordinator = queue.coordinator();
    queue.world.start(&coordinator, &["o1"]).await;
    let command = queue.command("cancel_order", 1).await;
    let says = |reason: String| Outcome::Rejected { reason };
    queue.answer(&command, says("x".repeat(300_000)));
    queue.answer(
        &command,
        says(format!("\u{1b}[2J\r\n{}", "x".repeat(10_000))),
    );

    let saga = queue.world.at_rest("o1", HOUR).await;
    queue.all_read().await;

    let history = queue.store.history(saga.id);
    let longest = history.iter().map(|line| line.text.len()).max();
    assert!(longest < Some(2_000), "{longest:?}");
    let all = format!("{history:?} {:?}", queue.store.outbox());
    assert!(!all.contains("u001b"), "{all}");
    let letters = queue.store.dead_letters();
    assert_eq!(letters.len(), 1);
    assert!(letters[0].detail.contains("bytes"), "{}", letters[0].detail);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_kafka_did_not_take_waits_at_no_attempt_and_is_produced_once() {
    let queue = Queue::new().await;
    queue.bus.set_refuses_to_publish(true);
    let coordinator = queue.coordinator();
    queue.world.start(&coordinator, &["o1"]).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(queue.commands("cancel_order").is_empty());
    queue.told_that_it_is_down("commands.orders");
    queue.bus.set_refuses_to_publish(false);

    let command = queue.command("cancel_order", 1).await;
    queue.answer(&command, done());
    let release = queue.command("replenish_stock", 1).await;
    queue.answer(&release, done());

    let saga = queue.world.at_rest("o1", HOUR).await;
    assert_eq!(saga.state.status, Status::Completed);
    assert_eq!(queue.commands("cancel_order").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn while_nobody_can_read_replies_nothing_is_sent_and_no_attempt_burnt() {
    let queue = Queue::new().await;
    let feed = Arc::new(Unreadable {
        inner: queue.replies.clone(),
        is_missing: AtomicBool::new(true),
    });
    let bus = queue.bus.clone();
    let coordinator = queue.world.queueing_coordinator(bus, feed.clone());
    queue.world.start(&coordinator, &["o1"]).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(queue.commands("cancel_order").is_empty());
    queue.told_that_it_is_down("replies is missing");
    feed.is_missing.store(false, Ordering::Relaxed);

    let command = queue.command("cancel_order", 1).await;
    queue.answer(&command, done());
    let release = queue.command("replenish_stock", 1).await;
    queue.answer(&release, done());

    let saga = queue.world.at_rest("o1", HOUR).await;
    assert_eq!(saga.state.status, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_kafka_burns_no_attempts_however_many_times_a_command_is_produced() {
    let queue = Queue::new().await;
    queue.bus.set_is_away(true);
    let coordinator = queue.coordinator();
    queue.world.start(&coordinator, &["o1"]).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    queue.bus.set_is_away(false);

    let commands = queue.commands("cancel_order");
    assert!(commands.len() > 4, "more often than there are attempts");
    assert!(commands.iter().all(|command| command.attempt == 1));
    for command in &commands {
        queue.answer(command, done());
    }
    let release = queue.command("replenish_stock", 1).await;
    queue.answer(&release, done());

    let saga = queue.world.at_rest("o1", HOUR).await;
    assert_eq!(saga.state.status, Status::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_killed_between_settlement_and_commit_leaves_a_reply_that_changes_nothing() {
    let queue = Queue::new().await;
    let stuck = Arc::new(Stuck(queue.replies.clone()));
    let dying = queue.world.queueing_coordinator(queue.bus.clone(), stuck);
    queue.world.start(&dying, &["o1"]).await;
    let command = queue.command("cancel_order", 1).await;
    queue.answer(&command, done());
    let release = queue.command("replenish_stock", 1).await;
    assert_eq!(queue.replies.open(), 1, "settled and not committed");

    drop(dying);
    queue.replies.restart();
    let _next = queue.coordinator();
    queue.all_read().await;

    assert_eq!(queue.store.stale_replies().len(), 1);
    assert_eq!(queue.commands("replenish_stock").len(), 1, "nothing again");
    queue.answer(&release, done());
    let saga = queue.world.at_rest("o1", HOUR).await;
    assert_eq!(saga.state.status, Status::Completed);
}

/// Its participants do so many commands in each turn at most, and a step waits for half a second. Gives how long that takes.
async fn burst(orders: usize, turn: Duration, per_turn: usize) -> Duration {
    let queue = Queue::new().await;
    let coordinator = queue.coordinator();
    queue.start_many(&coordinator, orders).await;

    let began_at = tokio::time::Instant::now();
    let mut answered = 0;
    let mut turns = tokio::time::interval(turn);
    while answered < 2 * orders {
        turns.tick().await;
        let commands = queue.commands_from(answered);
        let next = &commands[..commands.len().min(per_turn)];
        for command in next {
            queue.answer(command, done());
        }
        answered += next.len();
    }

    queue.all_read().await;
    let commands = queue.commands_from(0).into_iter();
    let again = commands.filter(|command| command.attempt > 1);
    assert_eq!(again.count(), 0, "commands had to be sent again");
    began_at.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_sent_no_faster_than_its_participant_answers() {
    let took = burst(2_000, Duration::from_millis(20), 10).await;
    assert!(took < Duration::from_secs(12), "8 s of work took {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_participant_that_answers_many_commands_together_is_kept_at_work() {
    let took = burst(2_000, Duration::from_millis(200), 1_000).await;
    assert!(
        took < Duration::from_secs(10),
        "{took:?} for turns of 500 and more"
    );
}

#[tokio::test(start_paused = true)]
async fn no_attempt_counts_whose_command_was_not_produced() {
    const ORDERS: usize = 300;
    let queue = Queue::new().await;
    let coordinator = queue.coordinator();
    queue.start_many(&coordinator, ORDERS).await;

    // None to three of its attempts are lost: more retries, of several sizes, than the budget lets go at once.
    let lost = |order_id: &str| order_id[1..].parse::<u32>().unwrap() % 4;
    let is_lost = |command: &Command| {
        command.step.as_str() == "cancel_order" && command.attempt <= lost(&command.order.order_id)
    };
    let (mut read, mut released) = (0, BTreeSet::new());
    let mut turns = tokio::time::interval(Duration::from_millis(100));
    for _ in 0..9_000 {
        turns.tick().await;
        let commands = queue.commands_from(read);
        read += commands.len();
        for command in commands.iter().filter(|command| !is_lost(command)) {
            queue.answer(command, done());
            if command.step.as_str() == "replenish_stock" {
                released.insert(command.order.order_id.clone());
            }
        }
    }

    assert_eq!(released.len(), ORDERS, "within a quarter of an hour");
    let mut attempts: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for command in queue.commands("cancel_order") {
        let of_order = attempts.entry(command.order.order_id).or_default();
        of_order.insert(command.attempt);
    }
    for (order_id, attempts) in attempts {
        let sent = (1..=lost(&order_id) + 1).collect();
        assert_eq!(attempts, sent, "{order_id}");
    }
}

/// A feed whose reader dies before it has committed anything.
struct Stuck(Arc<MemoryFeed>);

#[async_trait]
impl Feed for Stuck {
    async fn next(&self, max: usize) -> Vec<Record> {
        self.0.next(max).await
    }
    fn has_partitions(&self) -> bool {
        true
    }
    fn trouble(&self) -> Option<String> {
        None
    }

    async fn commit(&self, _: &[Origin]) -> Vec<bool> {
        std::future::pending().await
    }
    async fn close(&self) {}
}

/// A feed whose topic may be missing.
struct Unreadable {
    inner: Arc<MemoryFeed>,
    is_missing: AtomicBool,
}

#[async_trait]
impl Feed for Unreadable {
    async fn next(&self, max: usize) -> Vec<Record> {
        self.inner.next(max).await
    }
    fn has_partitions(&self) -> bool {
        self.trouble().is_none()
    }
    fn trouble(&self) -> Option<String> {
        let is_missing = self.is_missing.load(Ordering::Relaxed);
        is_missing.then(|| "replies is missing".to_owned())
    }
    async fn commit(&self, origins: &[Origin]) -> Vec<bool> {
        self.inner.commit(origins).await
    }
    async fn close(&self) {}
}

/// The feed of a coordinator that has none of the partitions.
struct Deaf;

#[async_trait]
impl Feed for Deaf {
    async fn next(&self, _: usize) -> Vec<Record> {
        std::future::pending().await
    }
    fn has_partitions(&self) -> bool {
        false
    }
    fn trouble(&self) -> Option<String> {
        None
    }
    async fn commit(&self, origins: &[Origin]) -> Vec<bool> {
        vec![false; origins.len()]
    }
    async fn close(&self) {}
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_hears_no_replies_leaves_nobody_alone() {
    let queue = Queue::new().await;
    let deaf = queue
        .world
        .queueing_coordinator(queue.bus.clone(), Arc::new(Deaf));
    queue.start_many(&deaf, 20).await;

    tokio::time::sleep(Duration::from_secs(4)).await;

    let commands = queue.commands("cancel_order").into_iter();
    let second = commands.filter(|command| command.attempt == 2);
    assert_eq!(second.count(), 20, "as if somebody were there");
}

/// What a server of commands did, in order.
type Log = Arc<std::sync::Mutex<Vec<&'static str>>>;

struct LoggedFeed {
    inner: MemoryFeed,
    commits: bool,
    log: Log,
}

#[async_trait]
impl Feed for LoggedFeed {
    async fn next(&self, max: usize) -> Vec<Record> {
        self.inner.next(max).await
    }
    fn has_partitions(&self) -> bool {
        true
    }
    fn trouble(&self) -> Option<String> {
        None
    }

    async fn commit(&self, origins: &[Origin]) -> Vec<bool> {
        self.log.lock().unwrap().push("committed");
        if self.commits {
            self.inner.commit(origins).await
        } else {
            vec![false; origins.len()]
        }
    }
    async fn close(&self) {}
}

struct LoggedOutlet {
    answers: std::sync::Mutex<Vec<Answer>>,
    log: Log,
}

#[async_trait]
impl Outlet for LoggedOutlet {
    async fn deliver(&self, messages: Vec<Publish>) -> Vec<Delivery> {
        let mut answers = self.answers.lock().unwrap();
        for message in &messages {
            answers.push(serde_json::from_str(&message.payload).expect("an answer"));
        }
        if !messages.is_empty() {
            self.log.lock().unwrap().push("answered");
        }
        vec![Delivery::Delivered; messages.len()]
    }
}

/// Fails as its orders are called, and notes how large its batches were.
#[derive(Default)]
struct Moody {
    batches: std::sync::Mutex<Vec<usize>>,
}

#[async_trait]
impl Participant for Moody {
    async fn call(&self, _: &str, commands: &[Command]) -> Result<Vec<Reply>, CallError> {
        let mut batches = self.batches.lock().unwrap();
        batches.push(commands.len());
        if batches.len() == 1 {
            return Err(CallError::Unreachable("no database yet".to_owned()));
        }
        let is = |name: &str| commands.iter().any(|c| c.order.order_id == name);
        if is("bad") {
            return Err(CallError::Data("not storable".to_owned()));
        }
        if is("locked") {
            return Err(CallError::Locked("55P03".to_owned()));
        }
        if is("cursed") {
            return Err(CallError::Unknown("XX000".to_owned()));
        }
        let reply = |command: &Command| Reply {
            command_id: command.command_id.clone(),
            outcome: done(),
        };
        Ok(commands.iter().map(reply).collect())
    }
}

/// A server fed with these records and its answers to all of them.
struct Served {
    feed: Arc<LoggedFeed>,
    outlet: Arc<LoggedOutlet>,
    participant: Arc<Moody>,
    log: Log,
}

impl Served {
    fn new(commits: bool) -> Served {
        let log = Log::default();
        Served {
            feed: Arc::new(LoggedFeed {
                inner: MemoryFeed::default(),
                commits,
                log: log.clone(),
            }),
            outlet: Arc::new(LoggedOutlet {
                answers: Default::default(),
                log: log.clone(),
            }),
            participant: Arc::default(),
            log,
        }
    }

    fn append(&self, record: &Value) {
        self.feed
            .inner
            .append("commands.orders", "k", record.to_string().as_bytes());
    }

    /// Serves what is there.
    async fn serve(&self) -> Vec<Answer> {
        let server = Server {
            feed: self.feed.clone(),
            outlet: self.outlet.clone(),
            participant: self.participant.clone(),
            operations: &["CancelOrder", "ReopenOrder"],
        };
        let stop = CancellationToken::new();
        let serving = async { server.run(&stop).await };
        let stopping = async {
            tokio::time::sleep(Duration::from_secs(30)).await;
            stop.cancel();
        };
        tokio::join!(serving, stopping);
        self.outlet.answers.lock().unwrap().clone()
    }
}

fn command(order_id: &str) -> Value {
    serde_json::json!({
        "command_id": format!("{order_id}:do"), "saga_id": "01937b1e-7f0a-7cc2-b4e5-0f3f6a1c2d11",
        "step": "cancel_order", "direction": "do", "operation": "CancelOrder",
        "order": { "tenant": "default", "order_id": order_id, "generation": 1 },
        "input": null, "cause": "timeout", "attempt": 1,
        "first_sent_at": "2026-02-14T18:00:00Z", "expires_at": "2026-02-14T19:00:00Z",
    })
}

fn names(answers: &[Answer]) -> Vec<(&str, &str)> {
    let mut names: Vec<_> = answers
        .iter()
        .map(|answer| (answer.about.command_id.as_str(), answer.outcome.name()))
        .collect();
    names.sort_unstable();
    names
}

#[tokio::test(start_paused = true)]
async fn a_participant_answers_only_what_it_has_committed_and_only_then() {
    let served = Served::new(true);
    served.append(&command("o1"));
    assert_eq!(names(&served.serve().await), [("o1:do", "done")]);
    assert_eq!(*served.log.lock().unwrap(), ["committed", "answered"]);

    let gone = Served::new(false);
    gone.append(&command("o1"));
    assert!(
        gone.serve().await.is_empty(),
        "its partition went to somebody else, who answers"
    );
}

#[tokio::test(start_paused = true)]
async fn a_command_of_which_nobody_knows_what_becomes_is_left_unanswered_and_holds_up_nobody() {
    let served = Served::new(true);
    for order_id in ["o1", "cursed", "o2", "o3"] {
        served.append(&command(order_id));
    }

    let answers = served.serve().await;

    let done = [("o1:do", "done"), ("o2:do", "done"), ("o3:do", "done")];
    assert_eq!(names(&answers), done);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_over_http_is_refused_over_kafka() {
    let served = Served::new(true);
    let mut long = command("o1");
    long["command_id"] = "x".repeat(201).into();
    let mut groundless = command("o2");
    groundless["direction"] = "undo".into();
    served.append(&long);
    served.append(&groundless);
    served.append(&command("o3"));

    let answers = served.serve().await;

    let mut outcomes: Vec<&str> = answers.iter().map(|a| a.outcome.name()).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["done", "failed", "failed"]);
}

#[tokio::test(start_paused = true)]
async fn a_bad_command_does_not_sink_its_batch_and_an_outage_is_waited_for() {
    let served = Served::new(true);
    let mut unknown = command("unknown");
    unknown["operation"] = "Dance".into();
    let mut half = command("half");
    half["order"] = 17.into();
    let mut again = command("o2");
    again["attempt"] = 2.into();
    let all = [
        command("o1"),
        command("bad"),
        command("o2"),
        command("locked"),
        unknown,
        half,
        Value::from("garbage"),
        again,
    ];
    all.iter().for_each(|record| served.append(record));

    let answers = served.serve().await;

    assert_eq!(
        names(&answers),
        [
            ("bad:do", "failed"),
            ("half:do", "failed"),
            ("locked:do", "failed"),
            ("o1:do", "done"),
            ("o2:do", "done"),
            ("o2:do", "done"),
            ("unknown:do", "failed"),
        ]
    );
    let mut attempts: Vec<_> = answers
        .iter()
        .filter(|answer| answer.about.command_id.as_str() == "o2:do")
        .map(|answer| answer.about.attempt)
        .collect();
    attempts.sort_unstable();
    assert_eq!(attempts, [1, 2], "each sending has its answer");
    assert_eq!(served.feed.inner.open(), 0, "nothing blocks the topic");
}

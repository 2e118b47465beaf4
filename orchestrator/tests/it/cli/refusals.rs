//! What is wrong is refused in words, with an exit code that says of what kind it is.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lapse::config::{Access, Config, Token};
use lapse::dev::broker::Broker;
use sqlx::{Connection, Executor};

use super::{lapse, lapse_with, run};
use crate::database::TestDatabase;
use crate::support::live::{Live, Running, config, free_address, kafka_or_left_out};

/// A file of the test's own, gone with it.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{}-{name}", uuid::Uuid::now_v7()));
        std::fs::write(&path, text).expect("a file can be written");
        File(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("text")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Settings under which nothing answers.
fn nowhere() -> Config {
    let mut config = Config::default();
    let (postgres, kafka) = (free_address(), free_address());
    config.postgres.url = format!("postgres://lapse@{postgres}/lapse");
    config.kafka.brokers = kafka.to_string();
    config.http.listen = free_address();
    config.shop.enabled = true;
    config
}

#[test]
fn an_unknown_setting_is_refused_by_name_in_every_layer() {
    run(lapse(&["validate", "--set", "postgres.ulr=x"]))
        .with_code(3)
        .saying("ulr");
    run(lapse(&["validate", "--set", "postgress.url=x"]))
        .with_code(3)
        .saying("postgress");
    let mut from_environment = lapse(&["validate"]);
    from_environment.env("LAPSE__KAFKA__BROKER", "x");
    run(from_environment).with_code(3).saying("broker");
    let mut no_section = lapse(&["validate"]);
    no_section.env("LAPSE__BROKERS", "x");
    run(no_section).with_code(3).saying("LAPSE__BROKERS");
    let file = File::new("unknown.toml", "[sweep]\nevery = \"5s\"\neager = true\n");
    run(lapse(&["validate", "--config", file.path()]))
        .with_code(3)
        .saying("eager");
    run(lapse(&["validate", "--set", "no-value"])).with_code(3);
    run(lapse(&["validate", "--config", "/nonesuch.toml"]))
        .with_code(3)
        .saying("/nonesuch.toml");
}

#[test]
fn a_wrong_value_is_refused_with_its_key() {
    for (setting, key) in [
        ("kafka.partitions=many", "partitions"),
        ("sweep.every=soon", "every"),
        ("shop.enabled=perhaps", "enabled"),
        ("http.listen=here", "listen"),
        ("log.format=xml", "format"),
        ("executor.batch_max=0", "executor.batch_max"),
        ("postgres.writers=1", "postgres.writers"),
        ("postgres.url=mysql://127.0.0.1/lapse", "postgres.url"),
        ("kafka.buckets=1m,soon", "buckets"),
    ] {
        run(lapse(&["validate", "--set", setting]))
            .with_code(3)
            .saying(key);
    }
}

#[test]
fn a_mistyped_variable_is_refused_and_those_of_others_do_no_harm() {
    let mut mistyped = lapse(&["validate"]);
    mistyped.env("LAPSE_KAFKA_BROKERS", "x");
    run(mistyped).with_code(3).saying("LAPSE__KAFKA__BROKERS");
    let mut foreign = lapse(&["validate"]);
    foreign.env("FOREIGN", OsString::from_vec(vec![0xff]));
    foreign.env("LAPSE_KAFKA_FROM", "x");
    run(foreign).with_code(0);
    let mut own = lapse(&["validate"]);
    own.env("LAPSE__KAFKA__GROUP", OsString::from_vec(vec![0xff]));
    run(own).with_code(3).saying("LAPSE__KAFKA__GROUP");
}

#[test]
fn lists_and_properties_can_be_set_in_every_layer() {
    let mut right = lapse(&[
        "validate",
        "--set",
        "kafka.buckets=1m,5m",
        "--set",
        "kafka.properties.client.rack=a",
    ]);
    right.env("LAPSE__KAFKA__PROPERTIES__SOCKET_KEEPALIVE_ENABLE", "true");
    right.env("LAPSE__DEFINITIONS__PATHS", "[\"a.yaml\"]");
    run(right).with_code(0);
}

#[test]
fn a_property_that_librdkafka_does_not_know_is_refused_by_every_command_without_its_value() {
    let config = nowhere();
    let setting = "kafka.properties.sasl.pasword=hushed";
    for args in [&["topics", "create"][..], &["topics", "check"], &["run"]] {
        let args = [args, &["--set", setting]].concat();
        let ended = run(lapse_with(&config, &args))
            .with_code(3)
            .saying("sasl.pasword");
        assert!(!ended.stderr.contains("hushed"), "{}", ended.stderr);
    }
}

#[test]
fn without_tokens_lapse_listens_on_loopback_only() {
    for elsewhere in ["0.0.0.0:8380", "[::]:8380", "192.0.2.1:8380"] {
        run(lapse(&[
            "run",
            "--set",
            &format!("http.listen={elsewhere}"),
        ]))
        .with_code(3)
        .saying(&format!("http.listen is {elsewhere}"))
        .saying("lapse token new");
    }
    for here in ["127.0.0.1:8380", "127.9.9.9:8380", "[::1]:8380"] {
        run(lapse(&[
            "validate",
            "--set",
            &format!("http.listen={here}"),
        ]))
        .with_code(0);
    }
}

#[test]
fn a_new_token_is_shown_once_and_its_line_is_a_setting() {
    let new = |args: &[&str]| run(lapse(&[&["token", "new"], args, &["-o", "json"]].concat()));
    let made = new(&["night-shift"]).with_code(0).object("token-new");
    let looking = new(&["eye", "--read-only"])
        .with_code(0)
        .object("token-new");
    let (secret, line) = (
        made["token"].as_str().expect("the secret"),
        made["setting"].as_str().expect("the line"),
    );
    assert!(
        !line.contains(secret.trim_start_matches("lapse_")),
        "{line}"
    );
    let text = format!(
        "[http]\nlisten = \"0.0.0.0:8380\"\n[http.tokens]\n{line}\n{}\n",
        looking["setting"].as_str().expect("the line")
    );
    let file = File::new("tokens.toml", &text);
    run(lapse(&["validate", "--config", file.path()])).with_code(0);
    let hash = line.split('"').nth(1).expect("quoted");
    let mut from_environment = lapse(&["validate", "--set", "http.listen=0.0.0.0:8380"]);
    from_environment.env("LAPSE__HTTP__TOKENS__CI", hash);
    run(from_environment).with_code(0);

    run(lapse(&[
        "validate",
        "--set",
        &format!("http.tokens.ann={secret}"),
    ]))
    .with_code(3)
    .saying("lapse token new")
    .never_saying(secret);
    let twice = [
        format!("http.tokens.ann={hash}"),
        format!("http.tokens.bob={hash}"),
    ];
    run(lapse(&["validate", "--set", &twice[0], "--set", &twice[1]]))
        .with_code(3)
        .saying("http.tokens.bob is the same token");
    new(&["Two Words"]).with_code(3).saying("Two Words");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_the_right_token_is_exit_code_6() {
    let mut live = Live::in_process().await;
    let (full, token) = Token::generate(Access::Full).expect("there is randomness");
    live.config.http.tokens.insert("ann".to_owned(), token);
    let (eye, token) = Token::generate(Access::ReadOnly).expect("there is randomness");
    live.config.http.tokens.insert("eye".to_owned(), token);
    let service = Running::at_once(&live.config).await;
    let start = ["start", "nonesuch", "--order-id", "o1"];

    run(lapse_with(&live.config, &start))
        .with_code(6)
        .saying("a token is needed");
    run(lapse_with(
        &live.config,
        &[&start[..], &["--token", "wrong"]].concat(),
    ))
    .with_code(6);
    run(lapse_with(
        &live.config,
        &[&start[..], &["--token", &eye]].concat(),
    ))
    .with_code(6);
    run(lapse_with(
        &live.config,
        &[&start[..], &["--token", &full]].concat(),
    ))
    .with_code(4);
    let mut from_environment = lapse_with(&live.config, &start);
    from_environment.env("LAPSE_TOKEN", &full);
    run(from_environment).with_code(4);
    service.stop().await;
}

/// The refused address says which layer won.
#[test]
fn flags_win_over_the_environment_the_environment_over_the_file_and_the_file_over_defaults() {
    let file = File::new("layers.toml", "[http]\nlisten = \"0.0.0.0:1\"\n");
    let with_file = ["validate", "--config", file.path()];
    run(lapse(&["validate"])).with_code(0);
    run(lapse(&with_file)).with_code(3).saying("0.0.0.0:1:");

    let mut environment = lapse(&with_file);
    environment.env("LAPSE__HTTP__LISTEN", "0.0.0.0:2");
    run(environment).with_code(3).saying("0.0.0.0:2:");

    let flag = [&with_file[..], &["--set", "http.listen=0.0.0.0:3"]].concat();
    let mut all = lapse(&flag);
    all.env("LAPSE__HTTP__LISTEN", "0.0.0.0:2");
    run(all).with_code(3).saying("0.0.0.0:3:");
}

#[test]
fn every_mistake_of_a_definition_is_listed_with_its_place() {
    let file = File::new(
        "wrong.yaml",
        "format: saga/v1\nname: wrong\nversion: 0\ntrigger:\n  event_types: []\n  order_types: {}\n  order_owner: orders\nsteps: []\n",
    );
    let ended = run(lapse(&["validate", "-o", "json", file.path()])).with_code(3);
    let answer = ended.object("validate");
    assert_eq!(answer["ok"], false);
    let problems = answer["problems"].as_array().expect("a list");
    assert!(problems.len() >= 3, "{problems:?}");
    assert!(problems.iter().all(|problem| problem["line"].is_u64()));
    run(lapse(&["validate", "/nonesuch.yaml"])).with_code(4);
    let shipped = include_str!("../../../../sagas/definitions/cancel-and-replenish.yaml");
    let odd = shipped.replacen("delay: 30m", "delay: 30x", 1);
    assert_ne!(odd, shipped);
    let file = File::new("odd.yaml", &odd);
    let ended = run(lapse(&["validate", file.path()]))
        .with_code(3)
        .saying("1 mistake in 1 file");
    assert!(
        ended.stdout.contains("\"30x\" is not a length of time"),
        "{}",
        ended.stdout
    );
    assert!(!ended.stdout.contains('\\'), "{}", ended.stdout);
}

#[tokio::test]
async fn what_is_not_there_is_exit_code_4() {
    let config = config(&TestDatabase::create().await);
    run(lapse_with(&config, &["migrate"])).with_code(0);
    let saga = uuid::Uuid::now_v7().to_string();
    for args in [
        &["show", "--order", "nonesuch"][..],
        &["show", &saga],
        &["alerts", "ack", "nonesuch"],
        &["shop", "show", "nonesuch"],
        &["shop", "pay", "nonesuch"],
        &["shop", "fail", "nonesuch", "--operation", "CancelOrder"],
    ] {
        let ended = run(lapse_with(&config, args)).with_code(4);
        assert_eq!(ended.stdout, "");
        assert!(ended.stderr.starts_with("lapse: "), "{}", ended.stderr);
    }
}

#[tokio::test]
async fn verify_says_ok_of_no_empty_database() {
    let config = config(&TestDatabase::create().await);
    run(lapse_with(&config, &["verify"]))
        .with_code(1)
        .saying("lapse migrate");
    run(lapse_with(&config, &["migrate"])).with_code(0);
    let ended = run(lapse_with(&config, &["verify", "-o", "json"])).with_code(1);
    assert_eq!(ended.object("verify")["ok"], false);
}

#[test]
fn what_does_not_answer_is_exit_code_8_within_seconds() {
    let config = nowhere();
    let (_, place) = config.postgres.url.split_once('@').expect("a user");
    let addresses = [
        place.trim_end_matches("/lapse").to_owned(),
        config.kafka.brokers.clone(),
        config.http.listen.to_string(),
    ];
    let programs: Vec<_> = [
        &["list"][..],
        &["show", "--order", "o1"],
        &["alerts", "list"],
        &["alerts", "ack", "a1"],
        &["verify"],
        &["migrate"],
        &["run"],
        &["topics", "check"],
        &["topics", "create"],
        &["start", "cancel-and-replenish", "--order-id", "o1"],
        &["shop", "place"],
        &["shop", "show", "o1"],
        &["shop", "pay", "o1"],
    ]
    .into_iter()
    .map(|args| {
        let command = lapse_with(&config, args);
        let program = std::thread::spawn(move || {
            let began = Instant::now();
            (run(command), began.elapsed())
        });
        (args, program)
    })
    .collect();
    for (args, program) in programs {
        let (ended, took) = program.join().expect("the program was started");
        assert_eq!(ended.code, 8, "{args:?}: {}", ended.stderr);
        let named = addresses
            .iter()
            .any(|address| ended.stderr.contains(address));
        assert!(named, "{args:?} names no address: {}", ended.stderr);
        assert!(
            !ended.stderr.contains('\x1b'),
            "{args:?} colours what is no terminal"
        );
        assert!(took < Duration::from_secs(15), "{args:?} took {took:?}");
    }
}

#[test]
fn kafka_that_does_not_answer_is_named_with_its_setting() {
    let config = nowhere();
    run(lapse_with(&config, &["topics", "check"]))
        .with_code(8)
        .saying(&config.kafka.brokers)
        .saying("is kafka.brokers right?");
}

#[tokio::test]
async fn a_refused_log_in_is_exit_code_6_and_a_missing_database_is_to_be_created() {
    let mut config = config(&TestDatabase::create().await);
    let url = config.postgres.url.clone();
    let (_, place) = url.rsplit_once('@').expect("a user is in the URL");
    let stranger = uuid::Uuid::now_v7().simple().to_string();
    config.postgres.url = format!("postgres://{stranger}:hushed@{place}");
    for args in [&["list"][..], &["migrate"], &["shop", "show", "o1"]] {
        let ended = run(lapse_with(&config, args))
            .with_code(6)
            .saying("not authorised");
        assert!(!ended.stderr.contains("hushed"), "{}", ended.stderr);
    }
    let (server, _) = url.rsplit_once('/').expect("a database is in the URL");
    config.postgres.url = format!("{server}/{stranger}");
    for args in [&["list"][..], &["migrate"], &["shop", "show", "o1"]] {
        let ended = run(lapse_with(&config, args)).saying("create the database first");
        assert!(!ended.stderr.contains("lapse migrate"), "{}", ended.stderr);
    }
    let ended = run(lapse_with(&config, &["list"])).with_code(1);
    assert!(!ended.stderr.contains(" at line "), "{}", ended.stderr);
    let url = config.postgres.url.clone();
    for url in [&url, &url.replace('@', "x@")] {
        let relay = ["outbox-relay", "--once", "--database-url", url];
        run(lapse_with(&config, &relay))
            .with_code(3)
            .saying("outbox.url: ")
            .never_saying(" at line ");
    }
}

#[test]
fn a_settings_file_with_a_secret_that_others_may_read_is_warned_of() {
    let text = "[shop]\nurl = \"postgres://lapse:hushed@db/shop\"\n";
    let file = File::new("exposed.toml", text);
    let mode = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(file.path(), permissions).expect("the file is ours");
        // It ends soon: no outbox is named.
        run(lapse(&["outbox-relay", "--config", file.path()])).with_code(3)
    };

    mode(0o640)
        .saying(file.path())
        .saying("(shop.url) and has mode 0640")
        .saying("chmod 600")
        .never_saying("hushed");
    mode(0o600).never_saying("holds a secret");
}

#[test]
fn definitions_that_are_missing_or_none_are_told_before_anything_else() {
    let directory =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(uuid::Uuid::now_v7().to_string());
    let path = directory.to_str().expect("text");
    let setting = format!("definitions.paths={path}");
    for args in [&["validate", path][..], &["run", "--set", &setting]] {
        run(lapse_with(&nowhere(), args)).with_code(4).saying(path);
    }
    std::fs::create_dir(&directory).expect("a directory can be made");
    run(lapse_with(&nowhere(), &["run", "--set", &setting]))
        .with_code(8)
        .saying("no saga can start")
        .saying(path);
    let _ = std::fs::remove_dir(&directory);
}

#[tokio::test]
async fn an_outbox_without_a_broker_to_go_to_is_exit_code_8_and_few_lines() {
    let url = TestDatabase::create().await.url;
    sqlx::PgConnection::connect(&url)
        .await
        .unwrap()
        .execute(
            "create table outbox (id bigint primary key, aggregatetype text not null,
               aggregateid text not null, type text not null, payload jsonb);
             insert into outbox values (1, 'lapse.schedule', 'k', 'order.placed', '{}')",
        )
        .await
        .unwrap();
    let config = nowhere();
    let relay = ["outbox-relay", "--once", "--database-url", &url];

    let ended = run(lapse_with(&config, &relay))
        .with_code(8)
        .saying("kafka does not answer at")
        .saying(&config.kafka.brokers);

    let lines = ended.stderr.lines().count();
    assert!(lines < 12, "{lines} lines: {}", ended.stderr);
}

#[tokio::test]
async fn a_broker_that_makes_no_topics_is_taken_for_that_of_lapse_dev() {
    let mut settings = nowhere();
    let broker = Broker::start(&settings.kafka_settings()).expect("the broker starts");
    settings.kafka.brokers = broker.address().to_owned();

    for command in ["create", "check"] {
        run(lapse_with(&settings, &["topics", command]))
            .with_code(8)
            .saying("that of lapse dev")
            .saying("new shell");
    }
}

#[tokio::test]
async fn run_refuses_missing_topics_and_says_how_to_make_them() {
    let mut settings = config(&TestDatabase::create().await);
    let broker = Broker::start(&settings.kafka_settings()).expect("the broker starts");
    settings.kafka.brokers = broker.address().to_owned();
    settings.kafka.prefix = "elsewhere.".to_owned();
    run(lapse_with(&settings, &["run", "--migrate"]))
        .with_code(3)
        .saying("topic elsewhere.schedule: doesn't exist")
        .saying("lapse topics create");
    let name = "cli::refusals::run_refuses_missing_topics_and_says_how_to_make_them";
    let Some(kafka) = kafka_or_left_out(name) else {
        return;
    };
    settings.kafka.brokers = kafka;
    settings.kafka.prefix = format!("nonesuch-{}.", uuid::Uuid::now_v7());
    run(lapse_with(&settings, &["run", "--migrate"]))
        .with_code(3)
        .saying("schedule: doesn't exist")
        .saying("lapse topics create");
}

#[tokio::test]
async fn run_without_its_tables_says_how_to_make_them() {
    let name = "cli::refusals::run_without_its_tables_says_how_to_make_them";
    let Some(live) = crate::support::live::Live::on_kafka(name).await else {
        return;
    };
    let mut config = live.config.clone();
    config.postgres.url = TestDatabase::create().await.url;
    run(lapse_with(&config, &["run"]))
        .with_code(1)
        .saying("lapse migrate");
    config.postgres.url = nowhere().postgres.url;
    run(lapse_with(&config, &["run"])).with_code(8);
}

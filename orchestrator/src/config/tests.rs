//! What is refused, in which words, and how texts become settings.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::layers::{environment, is_list, value};
use super::*;

/// The settings that these flags give.
fn with(flags: &[(&str, &str)]) -> anyhow::Result<Config> {
    let mut builder =
        ::config::Config::builder().add_source(::config::Config::try_from(&Config::default())?);
    for (key, text) in flags {
        builder = builder.set_override(key, value(key, text)?)?;
    }
    let config: Config = builder.build()?.try_deserialize()?;
    config.check()?;
    Ok(config)
}

fn variables(list: &[(&str, &str)]) -> anyhow::Result<Vec<(String, String)>> {
    environment(list.iter().map(|(name, value)| (name.into(), value.into())))
}

fn pair(key: &str, value: &str) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

#[test]
fn the_defaults_are_allowed() {
    with(&[]).expect("nothing is wrong");
}

#[test]
fn a_value_outside_its_range_is_refused_with_key_value_and_range() {
    for (key, low, high, allowed) in [
        ("executor.batch_max", "0", "5001", "1 to 5000"),
        ("executor.slots", "0", "65", "1 to 64"),
        ("executor.poll", "9ms", "5001ms", "10ms to 5s"),
        ("sweep.every", "999ms", "301s", "1s to 5m"),
        ("shop.connections", "0", "201", "1 to 200"),
        ("postgres.writers", "1", "65", "2 to 64"),
        ("postgres.readers", "0", "65", "1 to 64"),
        ("kafka.partitions", "0", "1001", "1 to 1000"),
        ("kafka.memory_mb", "15", "65537", "16 to 65536"),
        ("executor.held_max", "0", "1000001", "to 1000000"),
        ("kafka.replication", "0", "32768", "1 to 32767"),
    ] {
        for wrong in [low, high] {
            let refused = with(&[(key, wrong)]).expect_err(key).to_string();
            let says = format!("{key} is {wrong}; allowed is ");
            assert!(refused.starts_with(&says), "{says}: {refused}");
            assert!(refused.contains(allowed), "{allowed}: {refused}");
        }
    }
}

#[test]
fn the_ends_of_every_range_are_allowed() {
    for flags in [
        &[("executor.batch_max", "1"), ("executor.held_max", "1")][..],
        &[
            ("executor.batch_max", "5000"),
            ("executor.held_max", "5000"),
        ],
        &[("executor.held_max", "1000000")],
        &[("executor.poll", "10ms"), ("sweep.every", "1s")],
        &[("executor.poll", "5s"), ("sweep.every", "5m")],
        &[("postgres.writers", "64"), ("postgres.readers", "64")],
        &[("kafka.partitions", "1"), ("kafka.memory_mb", "16")],
        &[("kafka.partitions", "1000"), ("kafka.memory_mb", "65536")],
        &[(
            "postgres.url",
            "postgresql://somebody@db.example:5433/lapse",
        )],
        &[("postgres.url", "postgres:///lapse?host=/run/postgresql")],
        &[("participants.a.url", "http://other/base/")],
        &[
            ("participants.a.url", "https://other"),
            ("participants.a.token", "t"),
        ],
        &[
            ("participants.a.url", "http://[::1]:8390"),
            ("participants.a.token_file", "f"),
        ],
        &[
            ("order_owners.a.url", "http://other"),
            ("order_owners.a.token", "t"),
            ("order_owners.a.insecure", "true"),
        ],
        &[("participants.a.transport", "kafka")],
    ] {
        with(flags).unwrap_or_else(|refused| panic!("{flags:?}: {refused:#}"));
    }
}

#[test]
fn what_the_coordinator_would_refuse_is_refused_at_once() {
    for (flags, words) in [
        (
            &[("executor.held_max", "499")][..],
            "executor.batch_max (500)",
        ),
        (&[("kafka.partitions", "1000")], "give at least 1125"),
        (&[("kafka.buckets", "1ms")], "shorter than 100ms"),
        (&[("kafka.buckets", "")], "kafka.buckets is empty"),
        (&[("kafka.buckets", "5m,1m")], "ascend"),
        (&[("kafka.brokers", " ")], "kafka.brokers is empty"),
        (&[("kafka.group", "")], "kafka.group is empty"),
        (&[("kafka.prefix", "no spaces.")], "kafka.prefix"),
        (&[("kafka.properties.acks", "0")], "acks can't be changed"),
        (&[("kafka.properties.no.such", "hushed")], "\"no.such\""),
        (
            &[("kafka.properties.consumer.fetch.min.bytes", "x")],
            "fetch.min.bytes",
        ),
        (&[("postgres.url", "somewhere")], "postgres.url"),
        (&[("postgres.url", "mysql://u:hushed@h/d")], "postgres.url"),
        (
            &[("postgres.url", "postgres://u:hushed@h:port/d")],
            "postgres.url",
        ),
        (&[("shop.url", "http://u:hushed@h/d")], "shop.url"),
        (
            &[("participants.a.url", "ftp://h")],
            "participants.a.url is not http://",
        ),
        (
            &[("participants.a.single", "true")],
            "participants.a.url is empty",
        ),
        (
            &[("participants.a.url", "https://u:hushed@h")],
            "participants.a.token_file",
        ),
        (
            &[("order_owners.a.url", "https://h/?key=hushed")],
            "order_owners.a.url has a query",
        ),
        (
            &[
                ("participants.a.url", "http://h"),
                ("participants.a.token", "hushed"),
            ],
            "participants.a.insecure = true",
        ),
        (
            &[
                ("participants.a.url", "https://h"),
                ("participants.a.token", "hushed"),
                ("participants.a.token_file", "f"),
            ],
            "both set",
        ),
        (
            &[
                ("participants.a.url", "http://h"),
                ("participants.a.ca_file", "f"),
            ],
            "participants.a.ca_file",
        ),
        (
            &[
                ("participants.a.url", "http://h"),
                ("participants.a.in_flight", "0"),
            ],
            "participants.a.in_flight is 0; allowed is 1 to 256",
        ),
        (
            &[
                ("participants.a.url", "http://h"),
                ("participants.a.transport", "kafka"),
            ],
            "participants.a.transport is kafka",
        ),
    ] {
        let refused = format!("{:#}", with(flags).expect_err(words));
        assert!(refused.contains(words), "{words}: {refused}");
        assert!(!refused.contains("hushed"), "{refused}");
    }
}

#[test]
fn lists_are_separated_by_commas_or_written_as_in_toml() {
    for text in ["1m, 5m", "[\"1m\", \"5m\"]", "1m,5m,"] {
        let buckets = with(&[("kafka.buckets", text)]).expect(text).kafka.buckets;
        assert_eq!(buckets, [Span::from_secs(60), Span::from_secs(300)]);
    }
    let paths = |text| {
        with(&[("definitions.paths", text)])
            .expect(text)
            .definitions
            .paths
    };
    assert_eq!(paths("a.yaml,b c"), [Path::new("a.yaml"), Path::new("b c")]);
    assert_eq!(paths("['a,b.yaml']"), [Path::new("a,b.yaml")]);
    assert!(paths("").is_empty());
    assert!(with(&[("kafka.buckets", "[1m")]).is_err());
}

#[test]
fn properties_are_named_as_librdkafka_names_them() {
    let properties = with(&[
        ("kafka.properties.socket.keepalive.enable", "true"),
        ("kafka.properties.consumer.fetch.min.bytes", "2"),
    ])
    .expect("both exist")
    .kafka
    .properties;
    let expected = [
        pair("consumer.fetch.min.bytes", "2"),
        pair("socket.keepalive.enable", "true"),
    ];
    assert_eq!(properties, BTreeMap::from(expected));
}

#[test]
fn a_file_may_quote_a_property_or_not_and_a_flag_wins() {
    let file = "[properties]\n\"client.rack\" = \"a\"\nsocket.keepalive.enable = true\n\"linger.ms\" = 7\n";
    let kafka: Kafka = ::config::Config::builder()
        .add_source(::config::File::from_str(file, ::config::FileFormat::Toml))
        .set_override("properties.client.rack", "b")
        .and_then(|builder| builder.build())
        .and_then(::config::Config::try_deserialize)
        .expect("right");
    let expected = [
        pair("client.rack", "b"),
        pair("linger.ms", "7"),
        pair("socket.keepalive.enable", "true"),
    ];
    assert_eq!(kafka.properties, BTreeMap::from(expected));
}

#[test]
fn variables_with_two_underscores_are_settings_and_win_over_shared_names() {
    let layer = variables(&[
        ("LAPSE__POSTGRES__URL", "own"),
        ("DATABASE_URL", "shared"),
        ("LAPSE__KAFKA__MEMORY_MB", "64"),
        ("LAPSE__KAFKA__PROPERTIES__SECURITY_PROTOCOL", "plaintext"),
        ("LAPSE__PARTICIPANTS__ORDERS__URL", "http://shop"),
        ("LAPSE__ORDER_OWNERS__ORDERS__TOKEN_FILE", "f"),
    ])
    .expect("all are right");
    let expected = [
        pair("postgres.url", "shared"),
        pair("postgres.url", "own"),
        pair("kafka.memory_mb", "64"),
        pair("kafka.properties.security.protocol", "plaintext"),
        pair("participants.orders.url", "http://shop"),
        pair("order_owners.orders.token_file", "f"),
    ];
    assert_eq!(layer, expected);
}

#[test]
fn a_variable_that_looks_like_a_setting_is_refused_with_the_right_spelling() {
    for (name, meant) in [
        ("LAPSE_KAFKA_BROKERS", "LAPSE__KAFKA__BROKERS"),
        ("LAPSE_KAFKA__BROKERS", "LAPSE__KAFKA__BROKERS"),
        ("LAPSE_EXECUTOR_BATCH_MAX", "LAPSE__EXECUTOR__BATCH_MAX"),
        (
            "LAPSE_KAFKA_PROPERTIES_LINGER_MS",
            "LAPSE__KAFKA__PROPERTIES__LINGER_MS",
        ),
        ("LAPSE__KAFKA_BROKERS", "LAPSE__SECTION__KEY"),
        ("LAPSE__PARTICIPANTS__URL", "LAPSE__SECTION__NAME__KEY"),
        (
            "LAPSE_ORDER_OWNERS__ORDERS__URL",
            "LAPSE__ORDER_OWNERS__ORDERS__URL",
        ),
        ("LAPSE__KAFKA__PROPERTIES__", "LAPSE__SECTION__KEY"),
    ] {
        let refused = variables(&[(name, "x")]).expect_err(name).to_string();
        assert!(refused.contains(meant), "{name}: {refused}");
    }
}

#[test]
fn variables_of_others_are_left_alone() {
    for (name, value) in [
        ("LAPSE_TEST_KAFKA", "x"),
        ("LAPSE_PG_BIN", "x"),
        ("LAPSE_HOME", "x"),
        ("LAPSE_PLANT", "x"),
        ("LAPSE_SIMULATION_SEED", "1"),
        ("LAPSE_KAFKA_FROM", "x"),
        ("LAPSE_KAFKA_SERVICE_HOST", "10.0.0.1"),
        ("LAPSE_KAFKA_PORT", "tcp://10.0.0.1:9092"),
        ("LAPSE_KAFKA_PORT_9092_TCP_ADDR", "10.0.0.1"),
        ("HOME", "x"),
    ] {
        assert_eq!(variables(&[(name, value)]).expect(name), []);
    }
}

#[test]
fn only_our_own_variables_must_be_utf_8() {
    let odd = || OsString::from_vec(b"LAPSE__\xff".to_vec());
    let read = |name: OsString, value: OsString| environment([(name, value)]);
    assert_eq!(read("FOREIGN".into(), odd()).expect("not ours"), []);
    let foreign = OsString::from_vec(b"FOREIGN\xff".to_vec());
    assert_eq!(read(foreign, "x".into()).expect("not ours"), []);
    assert!(read(odd(), "x".into()).is_err());
    let refused = read("LAPSE__KAFKA__GROUP".into(), odd()).expect_err("ours");
    assert!(
        refused.to_string().contains("LAPSE__KAFKA__GROUP"),
        "{refused}"
    );
    assert!(read("DATABASE_URL".into(), odd()).is_err());
}

#[test]
fn a_token_is_never_printed() {
    let config = with(&[
        ("participants.a.url", "https://shop"),
        ("participants.a.token", "hushed"),
    ])
    .expect("right");
    assert_eq!(config.participants["a"].token.reveal(), "hushed");
    assert!(!format!("{config:?}").contains("hushed"));
    let wrong = [
        ("participants.a.token", "hushed"),
        ("participants.a.tokken", "hushed"),
    ];
    let refused = format!("{:#}", with(&wrong).expect_err("no such key"));
    assert!(!refused.contains("hushed"), "{refused}");
}

const TABLE: &str = r#"
[order_owners.orders]
database_url = "mysql://reader:secret@db/shop"
table = "t_order"
order_type = "normal"
pending = [10, "WAIT_PAY"]
time_zone = "Asia/Shanghai"
look_ahead = "30s"
[order_owners.orders.columns]
order_id = "order_no"
status = "status"
due_at = "expire_time"
"#;

fn of_toml(text: &str) -> anyhow::Result<Config> {
    let file = ::config::File::from_str(text, ::config::FileFormat::Toml);
    let config: Config = ::config::Config::builder()
        .add_source(::config::Config::try_from(&Config::default())?)
        .add_source(file)
        .build()?
        .try_deserialize()?;
    config.check()?;
    Ok(config)
}

#[test]
fn an_order_owner_can_be_a_table() {
    let config = of_toml(TABLE).expect("nothing is wrong");
    let owner = &config.order_owners["orders"];
    assert!(owner.is_table());
    assert_eq!(owner.pending, ["10", "WAIT_PAY"]);
    assert_eq!(owner.look_ahead, Span::from_secs(30));
    let url = "LAPSE__ORDER_OWNERS__ORDERS__DATABASE_URL";
    let read = variables(&[(url, "postgres://db/shop")]).expect("it is one");
    assert_eq!(
        read,
        [pair(
            "order_owners.orders.database_url",
            "postgres://db/shop"
        )]
    );
}

#[test]
fn an_order_table_that_can_not_be_read_is_refused_by_the_key_and_without_its_url() {
    for (right, wrong, words) in [
        (
            "mysql://reader",
            "oracle://reader",
            "database_url is not postgres://",
        ),
        (
            "table = \"t_order\"",
            "url = \"http://x\"",
            "database_url: give one of them",
        ),
        (
            "table = \"t_order\"",
            "",
            "order_owners.orders.table is empty",
        ),
        (
            "due_at = \"expire_time\"",
            "",
            "columns.created_at: give one of them",
        ),
        (
            "due_at =",
            "created_at =",
            "pay_within goes with order_owners.orders.columns.created_at",
        ),
        ("order_type = \"normal\"", "", "the type of all orders"),
        ("[10, \"WAIT_PAY\"]", "[]", "list the statuses"),
        (
            "look_ahead = \"30s\"",
            "look_ahead = \"3s\"",
            "more than sweep.every (5s) to 1d",
        ),
        (
            "status = \"status\"",
            "state = \"status\"",
            "unknown field `state`",
        ),
    ] {
        let error = of_toml(&TABLE.replace(right, wrong)).expect_err(wrong);
        let said = format!("{error:#}");
        assert!(said.contains(words), "{said}");
        assert!(!said.contains("secret"), "{said}");
        assert!(!said.contains("order_owners.order_owners"), "{said}");
    }
}

#[test]
fn every_setting_that_is_a_list_can_be_given_as_one_text() {
    let mut config = Config::default();
    let x = || "x".to_owned();
    config.participants.insert(x(), Participant::default());
    config.order_owners.insert(x(), OrderOwner::default());
    config.alerts.webhooks.insert(x(), Webhook::default());
    let config = serde_json::to_value(config).expect("settings are values");
    let mut lists = Vec::new();
    let mut open = vec![(String::new(), config)];
    while let Some((key, value)) = open.pop() {
        match value {
            serde_json::Value::Array(_) => lists.push(key),
            serde_json::Value::Object(fields) => {
                let below = |(name, value)| (format!("{key}.{name}"), value);
                open.extend(fields.into_iter().map(below));
            }
            _ => assert!(!is_list(key.trim_start_matches('.')), "{key}"),
        }
    }
    assert!(lists.len() >= 5, "{lists:?}");
    for key in lists {
        assert!(is_list(key.trim_start_matches('.')), "{key}");
    }

    let owner = with(&[
        ("order_owners.shop.database_url", "mysql://db/shop"),
        ("order_owners.shop.table", "t_order"),
        ("order_owners.shop.order_type", "normal"),
        ("order_owners.shop.columns.order_id", "id"),
        ("order_owners.shop.columns.status", "status"),
        ("order_owners.shop.columns.due_at", "due_at"),
        ("order_owners.shop.pending", "WAIT_PAY, 10"),
        ("order_owners.shop.paid", "[\"PAID\"]"),
    ]);
    let owner = &owner.expect("all of it is text").order_owners["shop"];
    assert_eq!(owner.pending, ["WAIT_PAY", "10"]);
    assert_eq!(owner.paid, ["PAID"]);
}

/// What reading a file with this text says.
fn refused_file(text: &str) -> String {
    let directory = std::env::temp_dir().join(format!("lapse-config-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir(&directory).expect("a directory can be made");
    let file = directory.join("lapse.toml");
    std::fs::write(&file, text).expect("a file can be written");
    let refused = load(Some(&file), &[]);
    std::fs::remove_dir_all(&directory).expect("it can be taken away");
    format!("{:#}", refused.expect_err(text))
}

#[test]
fn nothing_that_is_in_a_settings_file_is_shown_when_it_can_not_be_read() {
    for (text, words) in [
        (
            "[postgres]\nurl = postgres://a:hushed@h/x\n",
            "at line 2, column 7: ",
        ),
        (
            "[postgres]\nurl = \"postgres://a:hushed@h/x\n",
            "at line 2, column ",
        ),
        (
            "[postgres]\nurl = \"postgres://a:hu\"hushed@h/x\"\n",
            "at line 2, column ",
        ),
        ("[postgres]\nurl = '''\nhushed\n", "at line "),
        ("[http.tokens]\na = \"x\\hushed\"\n", "at line 2, column "),
        ("[http]\na = 1\nhushed hushed\n", "at line 3, column "),
        ("postgres = \"postgres://a:hushed@h/x\"\n", "`postgres`"),
        (
            "[participants]\norders = \"hushed\"\n",
            "`participants.orders`",
        ),
        (
            "[participants.a]\ntransport = \"hushed\"\n",
            "not one of the words that it can be for key `participants.a.transport`",
        ),
        (
            "[participants.a]\nin_flight = \"hushed\"\n",
            "participants.a.in_flight",
        ),
        (
            "[participants.a]\ntoken = [\"hushed\"]\n",
            "participants.a.token",
        ),
        ("[postgres]\nwriters = \"hushed\"\n", "postgres.writers"),
        ("[sweep]\nevery = \"hushed\"\n", "such as 250ms"),
        (
            "[http]\nlisten = \"hushed:8999\"\n",
            "such as 127.0.0.1:8380",
        ),
        ("[http.tokens]\nops = \"hushed\"\n", "lapse token new"),
        ("[kafka]\nbuckets = [\"hushed\"]\n", "kafka.buckets"),
        (
            "[kafka.properties]\na = [\"hushed\"]\n",
            "must be one value",
        ),
        (
            "[order_owners.a]\ndue_unit = \"hushed\"\n",
            "order_owners.a.due_unit",
        ),
        ("[log]\nformat = \"hushed\"\n", "log.format"),
    ] {
        let refused = refused_file(text);
        assert!(!refused.contains("hushed"), "{refused}");
        assert!(refused.contains(words), "{words}: {refused}");
    }
    let refused = with(&[("kafka.buckets", "['hushed")]).expect_err("no array");
    assert!(!format!("{refused:#}").contains("hushed"), "{refused:#}");
}

#[test]
fn a_name_that_no_definition_can_use_is_refused() {
    let too_long = "x".repeat(65);
    for name in ["orders/eu", "Orders", "1st", "a b", "", "ümlaut", &too_long] {
        for (section, rest) in [
            ("participants", "transport = \"kafka\""),
            ("order_owners", "url = \"http://127.0.0.1/\""),
        ] {
            let text = format!("[{section}.\"{name}\"]\n{rest}\n");
            let refused = format!("{:#}", of_toml(&text).expect_err(&text));
            assert!(refused.contains("is no name"), "{refused}");
            assert!(refused.starts_with(section), "{refused}");
        }
    }
    of_toml("[participants.orders-eu_2]\ntransport = \"kafka\"\n").expect("a name");
}

#[test]
fn settings_of_another_transport_are_refused_by_name() {
    for (setting, name) in [
        ("token = \"hushed\"", "token"),
        ("token_file = \"f\"", "token_file"),
        ("single = true", "single"),
        ("in_flight = 9", "in_flight"),
        ("ca_file = \"f\"", "ca_file"),
        ("insecure = true", "insecure"),
    ] {
        let text = format!("[participants.a]\ntransport = \"kafka\"\n{setting}\n");
        let refused = format!("{:#}", of_toml(&text).expect_err(setting));
        let words = format!("participants.a.{name} is set, and participants.a.transport is kafka");
        assert!(refused.contains(&words), "{refused}");
        assert!(!refused.contains("hushed"), "{refused}");
        if !matches!(name, "single" | "in_flight") {
            let with_it = format!("[order_owners.orders]\n{setting}\n");
            let text = TABLE.replace("[order_owners.orders]\n", &with_it);
            let refused = format!("{:#}", of_toml(&text).expect_err(setting));
            let words = format!("order_owners.orders.{name} is set, and ");
            assert!(refused.contains(&words), "{refused}");
        }
    }
    for (setting, name) in [
        ("table = \"t\"", "table"),
        ("columns.tenant = \"t\"", "columns.tenant"),
        ("pending = [\"10\"]", "pending"),
        ("paid = [\"20\"]", "paid"),
        ("order_type = \"t\"", "order_type"),
        ("tenant = \"t\"", "tenant"),
        ("pay_within = \"30m\"", "pay_within"),
        ("time_zone = \"UTC\"", "time_zone"),
        ("due_unit = \"s\"", "due_unit"),
        ("filter = \"1 = 1\"", "filter"),
    ] {
        let text = format!("[order_owners.a]\nurl = \"http://127.0.0.1/\"\n{setting}\n");
        let refused = format!("{:#}", of_toml(&text).expect_err(setting));
        let words = format!("order_owners.a.{name} is set, and ");
        assert!(refused.contains(&words), "{refused}");
    }
}

#[test]
fn a_database_url_that_can_not_be_read_says_how_one_is_written() {
    for url in [
        "mysqlx://u:hushed@h/d",
        "h/d",
        "mysql://u:hu#shed@h/d",
        "postgres://u:hu/shed@h/d",
    ] {
        let refused = format!("{:#}", with(&[("outbox.url", url)]).expect_err(url));
        assert!(
            refused.contains("outbox.url is not postgres://"),
            "{refused}"
        );
        assert!(refused.contains("percent-encode #, /, @"), "{refused}");
        assert!(!refused.contains("shed"), "{refused}");
    }
    for url in [
        "postgres://u:hu%23@h/d",
        "mysql://h/d",
        "mariadb://u@h:3307/d",
    ] {
        with(&[("outbox.url", url)]).expect(url);
    }
    let refused = with(&[("postgres.url", "postgres://u:hu#shed@h/d")]).expect_err("a #");
    let refused = format!("{refused:#}");
    assert!(
        refused.contains("percent-encode") && !refused.contains("shed"),
        "{refused}"
    );
}

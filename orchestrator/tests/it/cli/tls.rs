//! Postgres, Kafka and webhooks over TLS: trusted by authority, name and password; everything else is refused in words.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use lapse::config::{Columns, Config, OrderOwner};
use lapse::foreign::SqlOwner;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{Ended, lapse, lapse_with, run};
use crate::database::TestDatabase;
use crate::support::certificates::{Authority, Certified};
use crate::support::live::{Live, config, kafka_or_left_out, mysql_or_left_out};

/// However it is refused, nobody waits longer.
const WITHIN: Duration = Duration::from_secs(30);
const PASSWORD: &str = "a password\"with everything";

/// A server of scripts/, gone with it.
struct Server {
    script: PathBuf,
    name: String,
    exports: BTreeMap<String, String>,
}

impl Server {
    fn start(script: &str, authority: &Authority) -> Server {
        let scripts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../scripts");
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut server = Server {
            script: scripts.join(script),
            name: format!("tls-{}-{n}", std::process::id()),
            exports: BTreeMap::new(),
        };
        let directory = authority.directory().display().to_string();
        let started = server.run(&["start", "--tls", &directory]);
        for line in started.lines() {
            let line = line.strip_prefix("export ").unwrap_or(line);
            let (name, value) = line.split_once('=').expect("NAME=VALUE");
            server.exports.insert(name.to_owned(), value.to_owned());
        }
        server
    }

    fn run(&self, args: &[&str]) -> String {
        let mut command = Command::new(&self.script);
        command.args(args).args(["--name", &self.name]);
        command.env("LAPSE_HOME", env!("CARGO_TARGET_TMPDIR"));
        command.env("LAPSE_KAFKA_FROM", "maven");
        let output = command.output().expect("the script can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.run(&["stop"]);
    }
}

/// Refused like this, soon, in these words.
fn refused(command: Command, code: i32, words: &str) -> Ended {
    let began = Instant::now();
    let ended = run(command).with_code(code).saying(words);
    assert!(began.elapsed() < WITHIN, "it took {:?}", began.elapsed());
    ended
}

#[test]
fn postgres_over_tls_is_trusted_by_its_authority_and_name_only() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let Certified { certificate, key } = authority.certify("127.0.0.1");
    authority.write("server.crt", &certificate);
    authority.write("server.key", &key);
    let server = Server::start("postgres", &authority);
    let url = &server.exports["DATABASE_URL"];
    let migrate = |url: &str, parameters: String| {
        lapse(&["migrate", "--database-url", &format!("{url}?{parameters}")])
    };
    let trusting = |file: String| format!("sslmode=verify-full&sslrootcert={file}");

    run(migrate(url, trusting(authority.file()))).with_code(0);

    let unknown = "add sslrootcert=FILE to the URL";
    refused(migrate(url, trusting(stranger.file())), 8, unknown);
    refused(migrate(url, "sslmode=verify-full".to_owned()), 8, unknown);
    let elsewhere = url.replace("127.0.0.1", "localhost");
    let wrong_name = migrate(&elsewhere, trusting(authority.file()));
    refused(wrong_name, 8, "a name that the server's certificate holds");
    let mut shop = migrate(url, trusting(authority.file()));
    let shop_url = format!("{url}?{}", trusting(stranger.file()));
    shop.env("LAPSE__SHOP__ENABLED", "true");
    shop.env("LAPSE__SHOP__URL", shop_url);
    refused(shop, 8, "UnknownIssuer");
}

#[tokio::test]
async fn postgres_without_tls_is_refused_where_a_certificate_is_asked_for() {
    let database = TestDatabase::create().await;
    let url = database
        .options
        .ssl_mode(sqlx::postgres::PgSslMode::VerifyFull);
    let url = sqlx::ConnectOptions::to_url_lossy(&url).to_string();

    refused(
        lapse(&["migrate", "--database-url", &url]),
        8,
        "sslmode=disable",
    );
}

/// This machine by an address that is not loopback, as if it were another.
fn as_if_elsewhere(url: &str) -> String {
    assert!(url.contains("127.0.0.1"), "a server on loopback");
    url.replace("127.0.0.1", "0.0.0.0")
}

/// What an order owner's database says to a coordinator that looks for a table it does not have.
async fn asked(database_url: String) -> String {
    lapse::tls::install();
    let settings = OrderOwner {
        database_url,
        table: "no_such_table".to_owned(),
        columns: Columns {
            order_id: "id".to_owned(),
            ..Columns::default()
        },
        ..OrderOwner::default()
    };
    let owner = SqlOwner::open("orders", &settings).expect("the URL is right");
    owner.check().await.expect_err("no table").to_string()
}

const LET_IN: &str = "there is no table no_such_table";

#[tokio::test]
async fn an_order_owners_postgres_elsewhere_must_show_its_certificate() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let Certified { certificate, key } = authority.certify("0.0.0.0");
    authority.write("server.crt", &certificate);
    authority.write("server.key", &key);
    let server = Server::start("postgres", &authority);
    let url = as_if_elsewhere(&server.exports["DATABASE_URL"]);

    let trusted = asked(format!("{url}?sslrootcert={}", authority.file())).await;
    assert!(trusted.contains(LET_IN), "{trusted}");
    for parameters in [format!("?sslrootcert={}", stranger.file()), String::new()] {
        let refused = asked(format!("{url}{parameters}")).await;
        assert!(refused.contains("certificate"), "{refused}");
    }
    let url = TestDatabase::create().await.url;
    let (without_mode, _) = url.split_once('?').unwrap_or((&url, ""));
    let without_tls = as_if_elsewhere(without_mode);
    let refused = asked(without_tls.clone()).await;
    assert!(refused.contains("does not support TLS"), "{refused}");
    let named = asked(format!("{without_tls}?sslmode=disable")).await;
    assert!(named.contains(LET_IN), "{named}");
}

#[tokio::test]
async fn an_order_owners_mysql_elsewhere_must_show_its_certificate() {
    let Some(server) = mysql_or_left_out(concat!(
        module_path!(),
        "::an_order_owners_mysql_elsewhere_must_show_its_certificate"
    )) else {
        return;
    };

    let here = asked(server.clone()).await;
    assert!(here.contains(LET_IN), "{here}");
    let refused = asked(as_if_elsewhere(&server)).await;
    assert!(!refused.contains(LET_IN), "{refused}");
    let named = asked(format!("{}?ssl-mode=DISABLED", as_if_elsewhere(&server))).await;
    assert!(named.contains(LET_IN), "{named}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_over_tls_is_trusted_by_its_authority_name_and_password_only() {
    let name = concat!(
        module_path!(),
        "::kafka_over_tls_is_trusted_by_its_authority_name_and_password_only"
    );
    if kafka_or_left_out(name).is_none() {
        return;
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let Certified { certificate, key } = authority.certify("127.0.0.1");
    authority.write("keystore.pem", &format!("{key}{certificate}"));
    authority.write("password", &PASSWORD.replace('"', ""));
    let server = Server::start("kafka", &authority);
    let tls = &server.exports["LAPSE_TEST_KAFKA_TLS"];
    let login = &server.exports["LAPSE_TEST_KAFKA_LOGIN"];
    let base = config(&TestDatabase::create().await);
    let lapse = |args: &[&str], brokers: &str, properties: &[(&str, &str)]| {
        let mut config = base.clone();
        config.kafka.brokers = brokers.to_owned();
        config.kafka.replication = 1;
        let mut command = lapse_with(&config, args);
        for (name, value) in properties {
            command.args(["--set", &format!("kafka.properties.{name}={value}")]);
        }
        command
    };
    let ssl = ("security.protocol", "SSL");
    let (own, other) = (authority.file(), stranger.file());
    let (own, other) = (("ssl.ca.location", &*own), ("ssl.ca.location", &*other));
    let create = &["topics", "create"][..];

    run(lapse(create, tls, &[ssl, own])).with_code(0);
    refused(lapse(create, tls, &[ssl, other]), 8, "is not trusted");
    refused(lapse(create, tls, &[ssl]), 8, "is not trusted");
    let elsewhere = tls.replace("127.0.0.1", "localhost");
    refused(lapse(create, &elsewhere, &[ssl, own]), 8, "is not trusted");
    // A TLS listener just hangs up on whoever speaks without.
    refused(lapse(create, tls, &[]), 8, "security.protocol");
    let plain = &server.exports["LAPSE_TEST_KAFKA"];
    refused(lapse(create, plain, &[ssl, own]), 8, "security.protocol");

    let password = PASSWORD.replace('"', "");
    let sasl = ("security.protocol", "SASL_SSL");
    let user = ("sasl.username", "lapse");
    for mechanism in ["PLAIN", "SCRAM-SHA-512"] {
        let mechanism = ("sasl.mechanism", mechanism);
        let right = [sasl, own, user, mechanism, ("sasl.password", &password)];
        run(lapse(&["topics", "check"], login, &right)).with_code(0);
        let wrong = [sasl, own, user, mechanism, ("sasl.password", "hushed")];
        for args in [create, &["run"]] {
            let ended = refused(lapse(args, login, &wrong), 6, "refuses the log-in");
            assert!(!ended.stderr.contains("hushed"), "{}", ended.stderr);
        }
    }
    let mut from_file = lapse(
        create,
        login,
        &[sasl, own, user, ("sasl.mechanism", "PLAIN")],
    );
    let file = authority.write("from-an-editor", &format!("{password}\n"));
    from_file.env("LAPSE__KAFKA__PASSWORD_FILE", file);
    run(from_file).with_code(0);

    let properties = [
        sasl,
        own,
        user,
        ("sasl.mechanism", "SCRAM-SHA-512"),
        ("sasl.password", &password),
    ];
    let mut config = base;
    config.kafka.brokers = login.clone();
    config.kafka.replication = 1;
    let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    config.kafka.properties = properties.map(pair).into();
    an_order_is_cancelled(config).await;
}

async fn an_order_is_cancelled(config: Config) {
    let live = Live::on(config).await;
    let service = live.start().await;
    let placed = live.place("over-tls", TimeDelta::milliseconds(200)).await;
    live.schedule(&service, &[placed]).await;
    live.story_in("over-tls", "completed", WITHIN).await;
    service.stop().await;
}

/// A server that answers 204 to whoever trusts it.
fn receiver(Certified { certificate, key }: Certified) -> SocketAddr {
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
    lapse::tls::install();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("they belong together");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let config = Arc::new(config);
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let connection = ServerConnection::new(config.clone()).expect("the settings are right");
            let mut stream = StreamOwned::new(connection, socket);
            let mut request = Vec::new();
            let mut part = [0; 1_024];
            while !request.ends_with(b"\"alert.raised\"}") {
                match stream.read(&mut part) {
                    Ok(read) if read > 0 => request.extend_from_slice(&part[..read]),
                    // Not trusted: gone without a request.
                    _ => break,
                }
            }
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n");
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    address
}

#[test]
fn a_webhook_over_tls_is_trusted_by_its_authority_and_name_only() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let address = receiver(authority.certify("127.0.0.1"));
    let test = |host: &str, ca_file: &str| {
        let url = format!("https://{host}:{}/s3cret-path", address.port());
        let mut command = lapse(&["alerts", "test", "pager"]);
        command.env("LAPSE__ALERTS__WEBHOOKS__PAGER__URL", url);
        command.env(
            "LAPSE__ALERTS__WEBHOOKS__PAGER__SECRET",
            crate::webhooks::SECRET,
        );
        command.env("LAPSE__ALERTS__WEBHOOKS__PAGER__CA_FILE", ca_file);
        command
    };

    run(test("127.0.0.1", &authority.file())).with_code(0);

    for refused_one in [
        test("127.0.0.1", &stranger.file()),
        test("localhost", &authority.file()),
        test("127.0.0.1", ""),
    ] {
        let ended = refused(refused_one, 8, "certificate");
        assert!(!ended.stderr.contains("s3cret-path"), "{}", ended.stderr);
    }
}

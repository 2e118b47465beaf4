//! Encrypted connections: who does the cryptography, and when a database must show a certificate.
//!
//! For: everything that connects. Relies on rustls with ring, the roots of the system, and `sslrootcert` (MySQL: `ssl-ca`)
//! in a URL. Never: connects without TLS to another machine unless the URL says so.

use std::net::IpAddr;

use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use sqlx::postgres::{PgConnectOptions, PgSslMode};

/// Makes ring the provider of cryptography of this process. Once is enough; again is harmless.
pub fn install() {
    // Refused only when one is installed already: that is this one, there is no other in the program.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Reads a Postgres URL. To another machine TLS with a certificate of that name is the default (`sslmode=verify-full`);
/// on a socket and on loopback it stays sqlx's (`prefer`). Every Postgres URL of the settings comes through here.
///
/// # Errors
/// As sqlx says; the URL is not in it.
pub fn postgres(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
    let options: PgConnectOptions = url.parse()?;
    let is_default = !names_a_mode(url) && matches!(options.get_ssl_mode(), PgSslMode::Prefer);
    if is_default && !is_here(&options) {
        return Ok(options.ssl_mode(PgSslMode::VerifyFull));
    }
    Ok(options)
}

/// Reads a MySQL URL, by the same rule: to another machine `ssl-mode=VERIFY_IDENTITY` is the default, here sqlx's
/// (`PREFERRED`). Every MySQL URL of the settings comes through here.
///
/// # Errors
/// As sqlx says; the URL is not in it.
pub fn mysql(url: &str) -> Result<MySqlConnectOptions, sqlx::Error> {
    let options: MySqlConnectOptions = url.parse()?;
    let is_here = options.get_socket().is_some() || is_loopback(options.get_host());
    if names_a_mode(url) || is_here {
        return Ok(options);
    }
    Ok(options.ssl_mode(MySqlSslMode::VerifyIdentity))
}

/// What a person can do about a connection that TLS refused; empty for any other error.
pub fn advice(error: &sqlx::Error) -> &'static str {
    let words = error.to_string();
    if words.contains("server does not support TLS") {
        return "; turn TLS on there (ssl = on), or add sslmode=disable to the URL if everybody on the way may read along";
    }
    if words.contains("not valid for name") || words.contains("NotValidForName") {
        return "; connect by a name that the server's certificate holds";
    }
    if words.contains("invalid peer certificate") {
        return "; add sslrootcert=FILE to the URL, with the certificate of the authority that signed the server's";
    }
    ""
}

fn names_a_mode(url: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let names = query.split('&').filter_map(|pair| pair.split('=').next());
    names
        .into_iter()
        .any(|name| matches!(name, "sslmode" | "ssl-mode"))
}

/// A socket or loopback.
fn is_here(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    options.get_socket().is_some() || host.starts_with('/') || is_loopback(host)
}

/// Whether a host of a URL is this machine.
pub fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(url: &str) -> String {
        format!("{:?}", postgres(url).expect("a URL").get_ssl_mode())
    }

    #[test]
    fn another_machine_must_show_its_certificate_unless_the_url_says_otherwise() {
        for url in [
            "postgres://lapse@db/lapse",
            "postgres://lapse:sslmode@db.example.com:6432/lapse?application_name=sslmode",
            "postgres://lapse@10.0.0.7/lapse",
            "postgres://lapse@[fd00::1]/lapse?sslrootcert=ca.pem",
            "postgres://lapse@localhost.example.com/lapse",
        ] {
            assert_eq!(mode(url), "VerifyFull", "{url}");
        }
        for url in [
            "postgres://lapse@127.0.0.1/lapse",
            "postgres://lapse@[::1]/lapse",
            "postgres://lapse@LocalHost/lapse",
            "postgres://lapse@%2Fvar%2Frun%2Fpostgresql/lapse",
            "postgres:///lapse?host=/var/run/postgresql",
            "postgres://lapse@db/lapse?sslmode=prefer",
        ] {
            assert_eq!(mode(url), "Prefer", "{url}");
        }
        assert_eq!(mode("postgres://db/lapse?sslmode=disable"), "Disable");
        assert_eq!(mode("postgres://db/lapse?ssl-mode=require"), "Require");
    }

    #[test]
    fn another_mysql_must_show_its_certificate_unless_the_url_says_otherwise() {
        let mode = |url: &str| format!("{:?}", mysql(url).expect("a URL").get_ssl_mode());
        for url in [
            "mysql://lapse@db/shop",
            "mariadb://lapse:ssl-mode@10.0.0.7:3307/shop?ssl-ca=ca.pem",
            "mysql://lapse@[fd00::1]/shop",
        ] {
            assert_eq!(mode(url), "VerifyIdentity", "{url}");
        }
        for url in [
            "mysql://lapse@127.0.0.1/shop",
            "mysql://lapse@[::1]/shop",
            "mysql://lapse@localhost/shop",
            "mysql://lapse@db/shop?socket=/run/mysqld.sock",
            "mysql://lapse@db/shop?ssl-mode=PREFERRED",
        ] {
            assert_eq!(mode(url), "Preferred", "{url}");
        }
        assert_eq!(mode("mysql://db/shop?sslmode=disabled"), "Disabled");
        assert_eq!(mode("mysql://db/shop?ssl-mode=REQUIRED"), "Required");
    }

    #[test]
    fn installing_twice_is_harmless() {
        install();
        install();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }
}

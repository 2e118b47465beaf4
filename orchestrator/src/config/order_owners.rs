//! `[order_owners.NAME]`: who knows, outside this process, which orders are overdue: a service over HTTP, or a table.
//!
//! Never: repeats a database URL, it may hold a password.

use std::path::PathBuf;

use anyhow::ensure;
use lapse_sagas::Span;
use serde::{Deserialize, Serialize};

use super::Secret;
use super::check::{check_any_database, none_set};
use super::remote::Remote;
use crate::participants::http::Address;

/// One order owner.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OrderOwner {
    /// Its base URL (`http://…`), which answers `{url}/v1/overdue-orders` and `{url}/v1/paid-orders`.
    pub url: String,
    /// Sent as bearer token. Rather use `token_file`.
    pub token: Secret,
    /// A file whose first line is the token; read at the start.
    pub token_file: PathBuf,
    /// A PEM file of the authorities that are believed instead of this machine's.
    pub ca_file: PathBuf,
    /// The token may go over `http://` to another machine, where others may read it.
    pub insecure: bool,
    /// How far ahead the sweep asks: these orders need no event, they are taken over and cancelled on time. Zero: only
    /// what is 5 s late.
    pub look_ahead: Span,
    /// Instead of `url`, the database its orders are in: `postgres://…` or `mysql://…`, of the primary. It is only read.
    pub database_url: String,
    /// `table`, or `schema.table`.
    pub table: String,
    /// Where in the table things are.
    pub columns: Columns,
    /// Values of the status column of orders that await payment.
    pub pending: Vec<String>,
    /// Values of it of paid orders, for the guard.
    pub paid: Vec<String>,
    /// Order type where there is no column for it, or nothing in it.
    pub order_type: String,
    /// Tenant where there is no column for it; empty: `default`.
    pub tenant: String,
    /// The due time is so long after `columns.created_at`.
    pub pay_within: Span,
    /// The zone of a time column that has none, such as `Asia/Shanghai`.
    pub time_zone: String,
    /// Unit of a due time that is a number.
    pub due_unit: DueUnit,
    /// One more condition in the database's own SQL, such as `deleted = 0`. It goes into the statement as it is.
    pub filter: String,
}

/// Names of columns.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Columns {
    /// The order's id, unique within its tenant: text, integer or UUID.
    pub order_id: String,
    /// Its status.
    pub status: String,
    /// When it falls due; either this or `created_at`.
    pub due_at: String,
    /// When it was placed.
    pub created_at: String,
    /// Its type.
    pub order_type: String,
    /// Whose it is.
    pub tenant: String,
    /// Its holding period, a number; without it every order is in its first.
    pub generation: String,
}

/// Since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DueUnit {
    /// Not a number.
    #[default]
    None,
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
}

impl OrderOwner {
    /// Whether its orders are read from a table.
    pub fn is_table(&self) -> bool {
        !self.database_url.is_empty()
    }

    /// What is wrong, with the key.
    pub(crate) fn check(&self, name: &str, sweep_every: Span) -> anyhow::Result<()> {
        let prefix = format!("order_owners.{name}");
        let key = |key: &str| format!("{prefix}.{key}");
        ensure!(
            self.url.is_empty() != self.database_url.is_empty(),
            "{} and {}: give one of them",
            key("url"),
            key("database_url")
        );
        let longest = Span::from_secs(24 * 3_600);
        ensure!(
            self.look_ahead == Span::default()
                || (self.look_ahead > sweep_every && self.look_ahead <= longest),
            "{} is {}; allowed is 0s, or more than sweep.every ({sweep_every}) to {longest}",
            key("look_ahead"),
            self.look_ahead
        );
        if self.is_table() {
            let goes_without = format!("{} is, too", key("database_url"));
            none_set(&prefix, &self.of_http(), &goes_without)?;
            return self.check_table(key);
        }
        let goes_without = format!("{} is, too", key("url"));
        none_set(&prefix, &self.of_table(), &goes_without)?;
        self.remote().check(&prefix)
    }

    fn of_http(&self) -> [(&'static str, bool); 4] {
        [
            ("token", !self.token.is_empty()),
            ("token_file", !self.token_file.as_os_str().is_empty()),
            ("ca_file", !self.ca_file.as_os_str().is_empty()),
            ("insecure", self.insecure),
        ]
    }

    fn of_table(&self) -> [(&'static str, bool); 16] {
        let columns = &self.columns;
        [
            ("table", !self.table.is_empty()),
            ("columns.order_id", !columns.order_id.is_empty()),
            ("columns.status", !columns.status.is_empty()),
            ("columns.due_at", !columns.due_at.is_empty()),
            ("columns.created_at", !columns.created_at.is_empty()),
            ("columns.order_type", !columns.order_type.is_empty()),
            ("columns.tenant", !columns.tenant.is_empty()),
            ("columns.generation", !columns.generation.is_empty()),
            ("pending", !self.pending.is_empty()),
            ("paid", !self.paid.is_empty()),
            ("order_type", !self.order_type.is_empty()),
            ("tenant", !self.tenant.is_empty()),
            ("pay_within", self.pay_within != Span::default()),
            ("time_zone", !self.time_zone.is_empty()),
            ("due_unit", self.due_unit != DueUnit::None),
            ("filter", !self.filter.is_empty()),
        ]
    }

    fn check_table(&self, key: impl Fn(&str) -> String) -> anyhow::Result<()> {
        check_any_database(&key("database_url"), &self.database_url)?;
        let columns = &self.columns;
        let needed = [
            ("table", &self.table),
            ("columns.order_id", &columns.order_id),
            ("columns.status", &columns.status),
        ];
        for (name, value) in needed {
            ensure!(!value.is_empty(), "{} is empty", key(name));
        }
        ensure!(
            columns.due_at.is_empty() != columns.created_at.is_empty(),
            "{} and {}: give one of them",
            key("columns.due_at"),
            key("columns.created_at")
        );
        ensure!(
            columns.created_at.is_empty() == (self.pay_within == Span::default()),
            "{} goes with {}, and neither without the other",
            key("pay_within"),
            key("columns.created_at")
        );
        ensure!(
            !(columns.order_type.is_empty() && self.order_type.is_empty()),
            "{} and {} are empty; name the column, or the type of all orders",
            key("columns.order_type"),
            key("order_type")
        );
        ensure!(
            !self.pending.is_empty(),
            "{} is empty; list the statuses of orders that await payment",
            key("pending")
        );
        Ok(())
    }

    fn remote(&self) -> Remote<'_> {
        Remote {
            url: &self.url,
            token: &self.token,
            token_file: &self.token_file,
            ca_file: &self.ca_file,
            insecure: self.insecure,
        }
    }

    /// Where it is reached; reads the files.
    pub(crate) fn address(&self, key: &str) -> anyhow::Result<Address> {
        self.remote().address(key)
    }
}

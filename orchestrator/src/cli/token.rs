//! `lapse token new`: a secret for the HTTP interface, printed once, and the line for the settings that knows it again.

use serde_json::json;

use super::{Context, Exit, answer};
use crate::config::{Access, Token};

/// `lapse token …`
#[derive(clap::Subcommand)]
pub(super) enum Command {
    /// Make one; nothing is stored.
    New {
        /// Who will use it: the actor in histories.
        name: String,
        /// It may look and change nothing.
        #[arg(long)]
        read_only: bool,
    },
}

pub(super) fn run(context: &Context, command: Command) -> anyhow::Result<()> {
    let Command::New { name, read_only } = command;
    Token::check_name(&name).map_err(Exit::Invalid)?;
    let access = if read_only {
        Access::ReadOnly
    } else {
        Access::Full
    };
    let (secret, token) = Token::generate(access)?;
    let setting = format!("{name} = \"{token}\"");
    let body = json!({ "name": name, "token": secret, "setting": setting });
    answer::print(context.output, "token-new", &body, || {
        format!(
            "{secret}\n\nShown once. Put this into the settings of every coordinator, and start them anew:\n\n[http.tokens]\n{setting}"
        )
    })
}

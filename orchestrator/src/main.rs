//! The binary `lapse`: parses the command line, runs one command, turns its end into an exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    lapse::cli::main()
}

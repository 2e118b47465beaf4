//! One mistake in a definition file, in the form that editors and people jump to: `file:line:column: code: message`.
//!
//! The codes are stable: D001-D009 reading, D010-D039 meaning, D040-D049 between files, D050-D059 warnings.

use std::fmt;

/// A mistake, or a warning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The file, as it was named to the reader.
    pub file: String,
    /// From 1, where it is known.
    pub line: Option<u64>,
    /// From 1, where it is known.
    pub column: Option<u64>,
    /// Stable, such as `D012`.
    pub code: &'static str,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl Problem {
    /// A problem of the file as a whole.
    pub(crate) fn of_file(file: &str, code: &'static str, message: impl Into<String>) -> Problem {
        Problem {
            file: file.to_owned(),
            line: None,
            column: None,
            code,
            message: message.into(),
        }
    }

    /// Whether it only warns.
    pub fn is_warning(&self) -> bool {
        self.code.starts_with("D05")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(column) = self.column {
            write!(f, ":{column}")?;
        }
        write!(f, ": {}: {}", self.code, self.message)
    }
}

impl std::error::Error for Problem {}

//! Values in definitions: plain YAML is a literal; text that starts with `=` is looked up in what the saga knows.
//!
//! Shape: `=event.a.b`, `=saga.cause`, `=steps.cancel_order.output.x`: dotted names, nothing else. Relies on nothing.
//! Never: computes, or fails at run time: a name that is absent gives null.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A literal, or a path into what the saga knows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub enum Expression {
    /// The value itself.
    Literal(Value),
    /// Where to look.
    Path(Path),
}

/// A dotted name whose first part says where to look.
#[derive(Clone, PartialEq, Debug)]
pub struct Path {
    root: Root,
    rest: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Root {
    Event,
    Saga,
    Steps,
}

/// What an expression can look into.
pub struct Scope<'a> {
    /// The event that started the saga, as the producer wrote it.
    pub event: &'a Value,
    /// `tenant`, `business_key`, `generation`, `cause`, `due_at`.
    pub saga: &'a Value,
    /// By step id: `{"output": …}`.
    pub steps: &'a Value,
}

impl Expression {
    /// The value, null if the path leads nowhere.
    pub fn evaluate(&self, scope: &Scope<'_>) -> Value {
        let path = match self {
            Expression::Literal(value) => return value.clone(),
            Expression::Path(path) => path,
        };
        let root = match path.root {
            Root::Event => scope.event,
            Root::Saga => scope.saga,
            Root::Steps => scope.steps,
        };
        path.rest
            .iter()
            .try_fold(root, |value, name| value.get(name))
            .cloned()
            .unwrap_or(Value::Null)
    }

    /// The step this expression reads, if it reads one.
    pub fn step_read(&self) -> Option<&str> {
        match self {
            Expression::Path(path) if path.root == Root::Steps => {
                path.rest.first().map(String::as_str)
            }
            _ => None,
        }
    }
}

impl TryFrom<Value> for Expression {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let Value::String(text) = &value else {
            return Ok(Expression::Literal(value));
        };
        let Some(path) = text.strip_prefix('=') else {
            return Ok(Expression::Literal(value));
        };
        let wrong =
            || format!("{text:?} is not a path; write =event.…, =saga.… or =steps.<id>.output.…");
        let mut parts = path.split('.');
        let root = match parts.next() {
            Some("event") => Root::Event,
            Some("saga") => Root::Saga,
            Some("steps") => Root::Steps,
            _ => return Err(wrong()),
        };
        let rest: Vec<String> = parts.map(str::to_owned).collect();
        let named = |part: &String| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        if rest.is_empty() || !rest.iter().all(named) {
            return Err(wrong());
        }
        Ok(Expression::Path(Path { root, rest }))
    }
}

impl From<Expression> for Value {
    fn from(expression: Expression) -> Value {
        match expression {
            Expression::Literal(value) => value,
            Expression::Path(path) => Value::String(format!("={path}")),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.root {
            Root::Event => "event",
            Root::Saga => "saga",
            Root::Steps => "steps",
        })?;
        self.rest.iter().try_for_each(|part| write!(f, ".{part}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: Value) -> Result<Expression, String> {
        Expression::try_from(value)
    }

    #[test]
    fn a_path_finds_what_is_there_and_null_otherwise() {
        let scope = Scope {
            event: &json!({"order_id": "o1", "payment": {"method": "card"}}),
            saga: &json!({"cause": "timeout"}),
            steps: &json!({"cancel_order": {"output": {"cancelled": 1}}}),
        };
        let at = |text: &str| parse(json!(text)).expect(text).evaluate(&scope);
        assert_eq!(at("=event.payment.method"), json!("card"));
        assert_eq!(at("=saga.cause"), json!("timeout"));
        assert_eq!(at("=steps.cancel_order.output.cancelled"), json!(1));
        assert_eq!(at("=event.nothing.here"), Value::Null);
        assert_eq!(
            at("event.order_id"),
            json!("event.order_id"),
            "without = it is a literal"
        );
    }

    #[test]
    fn what_is_not_a_path_is_refused() {
        for text in [
            "=",
            "=event",
            "=order.id",
            "=event..x",
            "=event.a b",
            "=event.a+1",
        ] {
            assert!(parse(json!(text)).is_err(), "{text:?} was accepted");
        }
    }
}

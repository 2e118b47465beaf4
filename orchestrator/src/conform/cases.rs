//! The list of all cases.

use std::future::Future;
use std::pin::Pin;

use super::scene::{Scene, Stop};
use super::{barrier, batch, wire};

/// The case that all others need.
pub(super) const PLAIN: &str = "plain_action";

const ANSWERS: &str = "docs/participants.md, An answer";
const BARRIER: &str = "docs/participants.md, The barrier";
const TRANSPORT: &str = "docs/participants.md, Over HTTP";
const COMMAND: &str = "docs/participants.md, A command";

/// One case.
pub struct Case {
    /// Stable name.
    pub name: &'static str,
    /// What is tried.
    pub promise: &'static str,
    /// Where the contract says it.
    pub read: &'static str,
    /// Tries it.
    pub(super) attempt: Attempt,
}

type Attempt = for<'s> fn(&'s Scene<'s>) -> Ended<'s>;
pub(super) type Ended<'s> = Pin<Box<dyn Future<Output = Result<(), Stop>> + Send + 's>>;

/// Every case, in the order in which they are tried.
pub const CASES: &[Case] = &[
    Case {
        name: PLAIN,
        promise: "an action is applied and answered done",
        read: ANSWERS,
        // Tried by the preparation: every other case compares with what it saw.
        attempt: |_| Box::pin(async { Ok(()) }),
    },
    Case {
        name: "repeated_action",
        promise: "a repeated action has the same answer and no second effect",
        read: BARRIER,
        attempt: |scene| Box::pin(barrier::repeated_action(scene)),
    },
    Case {
        name: "other_payload",
        promise: "an id used with another order, input or operation is a mismatch",
        read: BARRIER,
        attempt: |scene| Box::pin(barrier::other_payload(scene)),
    },
    Case {
        name: "undone_action",
        promise: "a compensation undoes its action, once",
        read: BARRIER,
        attempt: |scene| Box::pin(barrier::undone_action(scene)),
    },
    Case {
        name: "compensation_first",
        promise: "a compensation before its action undoes nothing and is done",
        read: BARRIER,
        attempt: |scene| Box::pin(barrier::compensation_first(scene)),
    },
    Case {
        name: "late_action",
        promise: "an action after its own compensation is superseded",
        read: BARRIER,
        attempt: |scene| Box::pin(barrier::late_action(scene)),
    },
    Case {
        name: "concurrent_pair",
        promise: "the same command many times at once has one effect; action and compensation at once end undone",
        read: BARRIER,
        attempt: |scene| Box::pin(barrier::concurrent_pair(scene)),
    },
    Case {
        name: "expired",
        promise: "a command that is too old and not known is expired; a known one has its answer",
        read: COMMAND,
        attempt: |scene| Box::pin(barrier::expired(scene)),
    },
    Case {
        name: "slow",
        promise: "a caller that gives up early and repeats sees one effect",
        read: BARRIER,
        attempt: |scene| Box::pin(barrier::slow(scene)),
    },
    Case {
        name: "batch_with_one_bad_command",
        promise: "a bad command does not sink its batch",
        read: TRANSPORT,
        attempt: |scene| Box::pin(batch::one_bad_command(scene)),
    },
    Case {
        name: "unknown_operation",
        promise: "an operation that nobody knows is refused, and nothing is applied",
        read: TRANSPORT,
        attempt: |scene| Box::pin(batch::unknown_operation(scene)),
    },
    Case {
        name: "huge",
        promise: "500 commands in one call have 500 answers; a body far too large does no harm",
        read: TRANSPORT,
        attempt: |scene| Box::pin(batch::huge(scene)),
    },
    Case {
        name: "unknown_fields",
        promise: "fields of later versions are ignored",
        read: COMMAND,
        attempt: |scene| Box::pin(wire::unknown_fields(scene)),
    },
    Case {
        name: "garbage",
        promise: "what is no command is refused (4xx), and the service works on",
        read: TRANSPORT,
        attempt: |scene| Box::pin(wire::garbage(scene)),
    },
    Case {
        name: "reset_in_the_middle",
        promise: "a connection that is cut while a command is sent or answered costs nothing but a repetition",
        read: BARRIER,
        attempt: |scene| Box::pin(wire::reset_in_the_middle(scene)),
    },
];

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rule of a call for launches that weft has deferred.

/// Rule of an entry point for deferred launches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueRule {
    /// Empties the queue first. The error of a deferred launch replaces the call.
    Empties,
    /// Empties the queue first, and is made despite such an error: a refusal would leak the object
    /// that the call ends or gives back. The error waits for another call.
    GivesBack,
    /// May be deferred behind launches; else as [`QueueRule::Empties`].
    Deferrable,
    /// Its hook handles the queue.
    Itself,
    /// Need not wait. It reads or makes only objects that no earlier launch can change, and changes
    /// nothing that such a launch uses.
    SyncFree,
}

/// Every rule with its name in the table.
const NAMES: [(QueueRule, &str); 5] = [
    (QueueRule::Empties, "empties"),
    (QueueRule::GivesBack, "gives-back"),
    (QueueRule::Deferrable, "deferrable"),
    (QueueRule::Itself, "itself"),
    (QueueRule::SyncFree, "sync-free"),
];

impl QueueRule {
    /// The rule of a name.
    pub fn parse(text: &str) -> Option<Self> {
        NAMES.iter().find(|(_, name)| *name == text).map(|(rule, _)| *rule)
    }

    /// Whether the call waits for the queue before it goes to the driver.
    pub const fn waits(self) -> bool {
        match self {
            QueueRule::Empties | QueueRule::GivesBack | QueueRule::Deferrable => true,
            QueueRule::Itself | QueueRule::SyncFree => false,
        }
    }
}

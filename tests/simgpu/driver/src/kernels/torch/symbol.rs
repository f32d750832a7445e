// SPDX-License-Identifier: MIT OR Apache-2.0
//! Just enough parsing of C++ symbols to distinguish PyTorch's elementwise kernels.
//!
//! Not a demangler: it reads the pieces of symbols that `functor.rs` and `elementwise.rs` look for,
//! one after the other. It refuses every symbol that is not as expected.
#![forbid(unsafe_code)]

use super::value::Type;

/// A place in a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symbol<'a>(pub(super) &'a str);

impl<'a> Symbol<'a> {
    /// The rest of the symbol after this text, if the symbol continues with it.
    pub(super) fn after(self, text: &str) -> Option<Symbol<'a>> {
        self.0.strip_prefix(text).map(Symbol)
    }

    /// The rest after the first occurrence of this text.
    pub(super) fn find(self, text: &str) -> Option<Symbol<'a>> {
        self.0.split_once(text).map(|(_, rest)| Symbol(rest))
    }

    /// Does this text occur in the rest of the symbol?
    pub(super) fn has(self, text: &str) -> bool {
        self.0.contains(text)
    }

    /// An element type, and the rest after it.
    pub(super) fn element(self) -> Option<(Type, Symbol<'a>)> {
        for (text, of) in [("N3c104HalfE", Type::Half), ("N3c108BFloat16E", Type::BFloat16)] {
            if let Some(rest) = self.after(text) {
                return Some((of, rest));
            }
        }
        let code = *self.0.as_bytes().first()?;
        Some((Type::of_code(code)?, Symbol(self.0.get(1..)?)))
    }

    /// An element type that may be written as a reference to one that was read before.
    pub(super) fn element_or(self, before: Type) -> Option<(Type, Symbol<'a>)> {
        match self.substitution() {
            Some(rest) => Some((before, rest)),
            None => self.element(),
        }
    }

    /// The rest after a substitution (`S_`, `S4_`).
    fn substitution(self) -> Option<Symbol<'a>> {
        let rest = self.0.strip_prefix('S')?;
        let end = rest.find('_')?;
        let digits = rest.get(..end)?;
        let plain = digits
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase());
        plain.then(|| rest.get(end + 1..).map(Symbol)).flatten()
    }

    /// A decimal number, and the rest after it.
    pub(super) fn number(self) -> Option<(usize, Symbol<'a>)> {
        let end = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
        Some((self.0.get(..end)?.parse().ok()?, Symbol(self.0.get(end..)?)))
    }
}

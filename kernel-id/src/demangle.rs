// SPDX-License-Identifier: MIT OR Apache-2.0
//! Readable names for symbols.
//!
//! A demangled kernel of a template library has thousands of characters. [`short`] keeps the parts
//! that separate kernels: the function without namespaces, and its first template arguments without
//! theirs. `at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>,
//! std::array<char*, 1ul> >` becomes `vectorized_elementwise_kernel<4, FillFunctor<…>, array<…>>`.

use std::fmt;

use cpp_demangle::{DemangleOptions, DemangleWrite, ParseOptions, Symbol};

/// Deepest nesting that is followed. The demangler recurses; a hostile symbol must not overflow a
/// job's stack.
const RECURSION: u32 = 96;

/// Longest demangled text, bytes. Substitutions can make it grow exponentially with the symbol.
const MAX_TEXT_BYTES: usize = 64 * 1024;

/// Longest short name, characters; a table line with figures still fits a terminal.
pub const MAX_SHORT: usize = 72;

/// The whole demangled name with parameters, or the symbol itself if not mangled (C, Triton, XLA).
pub fn full(symbol: &str) -> String {
    demangled(symbol, DemangleOptions::new()).unwrap_or_else(|| symbol.to_owned())
}

/// The short name, at most [`MAX_SHORT`] characters.
pub fn short(symbol: &str) -> String {
    let options = DemangleOptions::new()
        .no_params()
        .no_return_type()
        .hide_expression_literal_types();
    match demangled(symbol, options) {
        Some(text) => shorten(&text),
        None => cut(symbol, MAX_SHORT),
    }
}

/// A writer with bounded length.
struct BoundedText(String);

impl DemangleWrite for BoundedText {
    fn write_string(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > MAX_TEXT_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

fn demangled(symbol: &str, options: DemangleOptions) -> Option<String> {
    if !symbol.starts_with("_Z") && !symbol.starts_with("__Z") {
        return None;
    }
    let parsing = ParseOptions::default().recursion_limit(RECURSION);
    let parsed = Symbol::new_with_options(symbol, &parsing).ok()?;
    let mut text = BoundedText(String::new());
    parsed
        .structured_demangle(&mut text, &options.recursion_limit(RECURSION))
        .ok()?;
    (!text.0.is_empty()).then_some(text.0)
}

/// Shortens a demangled name without parameters.
fn shorten(text: &str) -> String {
    let (name, arguments) = split_template(last_segment(text));
    let Some(arguments) = arguments else {
        return cut(name, MAX_SHORT);
    };
    let arguments = split_top(arguments, ",");
    let mut out = cut(name, MAX_SHORT - 3);
    out.push('<');
    let mut room = MAX_SHORT.saturating_sub(out.chars().count() + 1);
    for (index, argument) in arguments.iter().enumerate() {
        let (head, inner) = split_template(last_segment(argument.trim()));
        let mut piece = String::from(if index == 0 { "" } else { ", " });
        piece.push_str(head);
        if inner.is_some() {
            piece.push_str("<…>");
        }
        let length = piece.chars().count();
        // An omitted argument needs its own mark, ", …".
        let mark = if index + 1 == arguments.len() { 0 } else { 3 };
        if length + mark > room {
            out.push_str(if index == 0 { "…" } else { ", …" });
            break;
        }
        room -= length;
        out.push_str(&piece);
    }
    out.push('>');
    out
}

/// The text after the last `::` outside brackets.
fn last_segment(text: &str) -> &str {
    split_top(text, "::").last().copied().unwrap_or(text)
}

/// `("f", Some("int, 4"))` for `f<int, 4>`; `("operator<", None)` for `operator<`.
fn split_template(text: &str) -> (&str, Option<&str>) {
    let start = operator_length(text);
    let open = text.get(start..).and_then(|rest| rest.find('<')).map(|at| at + start);
    match (open, text.rfind('>')) {
        (Some(open), Some(close)) if close > open => (text.get(..open).unwrap_or(text), text.get(open + 1..close)),
        _ => (text, None),
    }
}

/// Length of a leading operator name that contains angle brackets.
fn operator_length(text: &str) -> usize {
    const NAMES: [&str; 8] = [
        "operator<=>",
        "operator<<=",
        "operator>>=",
        "operator<<",
        "operator>>",
        "operator->",
        "operator<",
        "operator>",
    ];
    NAMES
        .iter()
        .find(|name| text.starts_with(**name))
        .map_or(0, |name| name.len())
}

/// Splits at separators outside brackets.
fn split_top<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let mut parts = Vec::new();
    let (mut depth, mut from, mut at) = (0i32, 0, 0);
    while let Some(rest) = text.get(at..)
        && let Some(next) = rest.chars().next()
    {
        let operator = operator_length(rest);
        if operator > 0 {
            at += operator;
            continue;
        }
        if depth <= 0 && rest.starts_with(separator) {
            parts.push(text.get(from..at).unwrap_or_default());
            at += separator.len();
            from = at;
            continue;
        }
        match next {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        at += next.len_utf8();
    }
    parts.push(text.get(from..).unwrap_or_default());
    parts
}

/// The text in at most `width` characters, with a mark if it is cut.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_mangled_stay() {
        for name in [
            "triton_poi_fused_add_0",
            "fusion_12",
            "ampere_sgemm_128x64_tn",
            "",
            "_",
            "_Z",
            "_Znonsense!",
        ] {
            assert_eq!(short(name), name);
            assert_eq!(full(name), name);
        }
    }

    #[test]
    fn functions_lose_their_parameters() {
        assert_eq!(short("_Z4axpyfPfS_"), "axpy");
        assert_eq!(full("_Z4axpyfPfS_"), "axpy(float, float*, float*)");
    }

    #[test]
    fn namespaces_and_inner_arguments_go() {
        let symbol = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_";
        assert_eq!(
            short(symbol),
            "vectorized_elementwise_kernel<4, FillFunctor<…>, array<…>>"
        );
        assert!(full(symbol).starts_with("void at::native::vectorized_elementwise_kernel<4,"));
    }

    #[test]
    fn splitting_respects_brackets_and_operators() {
        assert_eq!(shorten("a::b<c::d<e>, (f::g)1>::h<i::j>"), "h<j>");
        assert_eq!(shorten("(anonymous namespace)::k"), "k");
        assert_eq!(shorten("x::operator<"), "operator<");
        assert_eq!(shorten("x::operator<< <int>"), "operator<< <int>");
    }

    #[test]
    fn ceiling_of_a_short_name() {
        let many = format!("f<{}>", vec!["abcdef"; 40].join(", "));
        assert!(shorten(&many).chars().count() <= MAX_SHORT, "{}", shorten(&many));
        assert!(shorten(&many).ends_with(", …>"));
        assert!(shorten(&format!("{}<int>", "n".repeat(500))).chars().count() <= MAX_SHORT);
        assert_eq!(short(&"s".repeat(500)).chars().count(), MAX_SHORT);
    }

    #[test]
    fn ceiling_of_a_symbol_that_grows_when_demangled() {
        // Each S_ refers to all before it: the text doubles with every step.
        let mut symbol = String::from("_Z1fI");
        for _ in 0..40 {
            symbol.push_str("1aIS_S_EIS0_S0_E");
        }
        symbol.push_str("Evv");
        assert!(short(&symbol).chars().count() <= MAX_SHORT);
        // Nesting deeper than the demangler may follow.
        let deep = format!("_Z1f{}i", "P".repeat(100_000));
        assert!(short(&deep).chars().count() <= MAX_SHORT);
    }
}

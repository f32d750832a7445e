// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures of promises to users: an SLO that requests keep, and the time of a token.
//!
//! **Attained** is the part of the requests whose latency, from arrival to answer, is within the
//! SLO. At random arrivals the service may miss it even in a solo run, so that figure is given too.
//!
//! **TPOT**, time per output token: a job whose waits return with a token answers it when the host
//! thread returns from that wait. A token's time is from there to the next such return in the same
//! request. The first token of a request, which includes the prompt, has none. The mean is over all
//! tokens of the requests that count.
#![forbid(unsafe_code)]

use serde::Serialize;
use weft_player::TokenTime;

use crate::Ns;
use crate::measure::Latency;

/// The attainment of an SLO.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SloFigures {
    /// The SLO, ns.
    pub limit: Ns,
    /// The part of the requests within it.
    pub attained: f64,
    /// The same in a solo run, with the same arrivals.
    pub alone: f64,
    /// Among the requests within it in a solo run, the part that is within it here.
    pub kept: f64,
}

impl SloFigures {
    /// The figures of these latencies, ns, and those of the same requests in a solo run.
    pub fn of(limit: Ns, with: &[Ns], alone: &[Ns]) -> SloFigures {
        let part = |count: usize, of: usize| count as f64 / of.max(1) as f64;
        let within = |latencies: &[Ns]| latencies.iter().filter(|latency| **latency <= limit).count();
        let kept = with
            .iter()
            .zip(alone)
            .filter(|(with, alone)| **with <= limit && **alone <= limit);
        SloFigures {
            limit,
            attained: part(within(with), with.len()),
            alone: part(within(alone), alone.len()),
            kept: part(kept.count(), within(alone)),
        }
    }
}

/// Times of tokens, ns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TokenFigures {
    /// Shared with other jobs; the mean is the TPOT.
    pub with: Latency,
    /// In a solo run.
    pub alone: Latency,
}

impl TokenFigures {
    /// The figures of the requests from number `warmup` on; `None` if there are no tokens.
    pub fn of(with: &[TokenTime], alone: &[TokenTime], warmup: u64) -> Option<TokenFigures> {
        let counted = |tokens: &[TokenTime]| {
            let counted = tokens.iter().filter(|token| token.request >= warmup);
            Latency::of(&counted.map(|token| token.time).collect::<Vec<Ns>>())
        };
        let (with, alone) = (counted(with), counted(alone));
        (with.count > 0 && alone.count > 0).then_some(TokenFigures { with, alone })
    }

    /// TPOT over that of the solo run.
    pub fn slowdown(&self) -> f64 {
        self.with.mean / self.alone.mean.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_slo_is_judged_by_each_request() {
        let figures = SloFigures::of(100, &[90, 101, 100, 300], &[80, 99, 98, 200]);
        assert_eq!((figures.attained, figures.alone), (0.5, 0.75));
        assert!((figures.kept - 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn tokens_of_the_warmup_do_not_count() {
        let token = |request, time| TokenTime { request, time };
        let alone = [token(0, 5), token(1, 10), token(1, 10)];
        let with = [token(0, 500), token(1, 11), token(1, 13)];
        let figures = TokenFigures::of(&with, &alone, 1).expect("tokens");
        assert!((figures.slowdown() - 1.2).abs() < 1e-9);
        assert_eq!(TokenFigures::of(&with, &alone, 2), None);
    }
}

// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that are really executed: their launch gets an effect, made from its parameters.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use simgpu_device::{KernelLaunch, Times};

use crate::abi::Error;
use crate::context::Context;
use crate::effect::Effect;
use crate::export::note;
use crate::kernels::{Call, KernelEffect, KernelFault, Memory};
use crate::launch::Params;
use crate::module::fault::LaunchFailure;
use crate::module::function::Function;
use crate::space::raw;
use crate::space::table::{Side, is_mapped, is_reachable, side};

/// A kernel that takes this host longer is executed while the device runs on, not by the thread
/// that waits at last. Waking another thread takes about as long.
const LONG: Duration = Duration::from_micros(20);

/// The memory a kernel sees: memory that the driver has handed out, and host memory the device can
/// reach.
struct Reachable;

fn check(address: u64, size: usize) -> Result<(), KernelFault> {
    let size = size as u64;
    if size == 0 || (is_mapped(address) && is_reachable(address, size)) {
        Ok(())
    } else {
        Err(KernelFault::Address(address))
    }
}

impl Memory for Reachable {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), KernelFault> {
        check(address, bytes.len())?;
        raw::read(address, bytes);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), KernelFault> {
        check(address, bytes.len())?;
        raw::write(address, bytes);
        Ok(())
    }
}

/// Says once that an executed kernel did not run. Its memory stays as it was, as with every kernel
/// that is only timed.
fn missed(name: &str, fault: KernelFault) {
    static SAID: AtomicBool = AtomicBool::new(false);
    note(&format!("{name} was not executed: {fault:?}"), &SAID);
}

/// The effect of a launch, if its kernel is an executed one. A spinning kernel also makes the
/// launch a held one.
pub(super) fn effect(
    function: &Function,
    params: &Params,
    launch: &mut KernelLaunch,
    context: &Arc<Context>,
) -> Option<Effect> {
    if let Some(error) = function.fault.as_ref().and_then(LaunchFailure::now) {
        let context = context.clone();
        // At once: calls that do not wait meet the error too.
        return Some(Effect::RunPromptly(Box::new(move || context.fail(error))));
    }
    let layout = function.params();
    match function.executed.as_ref()? {
        KernelEffect::Compute(compute) => {
            let (compute, params, layout) = (compute.clone(), params.buffer.clone(), layout.to_vec());
            let name = function.name.clone();
            // Other kernels are not fully known, so their failure is more likely a gap of this
            // simulation than a mistake of the client.
            let (is_ours, context) = (name.starts_with("simgpu_"), context.clone());
            let (slow, was_slow) = (function.is_slow.clone(), function.is_slow.load(Ordering::Relaxed));
            let run = Box::new(move || {
                let begin = Instant::now();
                let call = Call {
                    buffer: &params,
                    params: &layout,
                };
                match compute(&call, &Reachable) {
                    Err(KernelFault::Address(_)) if is_ours => context.fail(Error::ILLEGAL_ADDRESS),
                    Err(fault) => missed(&name, fault),
                    Ok(()) => {}
                }
                if begin.elapsed() >= LONG {
                    slow.store(true, Ordering::Relaxed);
                }
            });
            Some(if was_slow {
                Effect::RunPromptly(run)
            } else {
                Effect::Run(run)
            })
        }
        KernelEffect::Clocked(clocked) => {
            let call = Call {
                buffer: &params.buffer,
                params: layout,
            };
            let clocked = match clocked(&call) {
                Ok(clocked) => clocked,
                Err(fault) => {
                    missed(&function.name, fault);
                    return None;
                }
            };
            launch.duration = clocked.duration;
            let prompt = clocked.to.is_some_and(|to| side(to) == Side::Pinned);
            let name = function.name.clone();
            let end = move |times: Times| {
                if let Err(fault) = (clocked.end)(&Reachable, (times.start, times.end)) {
                    missed(&name, fault);
                }
            };
            Some(Effect::Timed(Box::new(end), prompt))
        }
        KernelEffect::Spin(spin) => {
            let call = Call {
                buffer: &params.buffer,
                params: layout,
            };
            let spin = match spin(&call) {
                Ok(spin) => spin,
                Err(fault) => {
                    missed(&function.name, fault);
                    return None;
                }
            };
            launch.held = true;
            launch.duration = Some(spin.limit);
            let over = spin;
            Some(Effect::Spin {
                spinning: Box::new(move || over.is_over(&Reachable).unwrap_or(true)),
                give_up: Box::new(move || {
                    let _ = spin.give_up(&Reachable);
                }),
            })
        }
    }
}

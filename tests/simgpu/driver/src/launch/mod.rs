// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel launches.
//!
//! A launch whose kernel is only timed goes to the device as a name and a shape: no parameter is
//! read, nothing is allocated. Parameters are copied only for kernels that are executed, for
//! launches that a graph keeps, and while the process has managed memory (`memory/paging.rs`).
//!
//! A kernel node of a graph keeps a [`Launch`] and replays it by `Launch::submit`.

mod execute;
mod params;

use std::sync::Arc;

use simgpu_device::model::model;
use simgpu_device::{KernelLaunch, Op, Seq, TouchedAddresses};

use crate::abi::{Error, Handle, R};
use crate::away;
use crate::context::current;
use crate::device::attributes::{MAX_BLOCK, MAX_GRID, MAX_THREADS};
use crate::event::{self, Event};
use crate::kernels::Call;
use crate::memory::paging;
use crate::module::function::Function;
use crate::state::Driver;
use crate::stream::Stream;

pub(crate) use params::{GivenParams, Params};

/// Blocks, threads and dynamic shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
}

/// A launch attribute: its number and its value, which depends on the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) id: u32,
    pub(crate) value: [u64; 8],
}

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
pub(crate) const COOPERATIVE: u32 = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
const CLUSTER: u32 = 4;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const STREAM_SERIALIZATION: u32 = 6;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT` and `CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT`.
const EVENTS: [u32; 2] = [7, 12];

/// A launch with everything it needs to run, now or later, once or many times.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) function: Arc<Function>,
    pub(crate) shape: Shape,
    /// Empty if the image does not describe the parameters.
    pub(crate) params: Params,
    pub(crate) attributes: Vec<Attribute>,
}

impl Shape {
    /// Refuses a shape that no launch on this device may have.
    pub(crate) fn check(&self, function: &Function) -> R {
        let within =
            |values: [u32; 3], limits: [u32; 3]| values.iter().zip(limits).all(|(v, limit)| *v > 0 && *v <= limit);
        let threads = self
            .block
            .iter()
            .try_fold(1_u32, |product, side| product.checked_mul(*side));
        let fits = within(self.grid, MAX_GRID)
            && within(self.block, MAX_BLOCK)
            && threads.is_some_and(|threads| threads <= MAX_THREADS);
        if !fits || self.shared > function.max_dynamic_shared() {
            return Err(Error::INVALID_VALUE);
        }
        Ok(())
    }

    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    fn blocks(&self) -> u64 {
        self.grid.iter().map(|side| u64::from(*side)).product()
    }
}

/// Refuses attributes that no launch of this function may have.
pub(crate) fn check_attributes(function: &Function, shape: &Shape, attributes: &[Attribute]) -> R {
    for attribute in attributes {
        match attribute.id {
            COOPERATIVE if attribute.value[0] as u32 != 0 => {
                let resident = u64::from(function.resident_blocks(shape.threads(), shape.shared))
                    * u64::from(current::device()?.processors);
                if shape.blocks() > resident {
                    return Err(Error::COOPERATIVE_LAUNCH_TOO_LARGE);
                }
            }
            CLUSTER => {
                let [x, y, z] = [
                    attribute.value[0] as u32,
                    (attribute.value[0] >> 32) as u32,
                    attribute.value[1] as u32,
                ];
                let blocks = u64::from(x).saturating_mul(y.into()).saturating_mul(z.into());
                // One block a cluster is no cluster. Kernels may ask for twice the size that is
                // always available.
                if blocks == 0 || blocks > u64::from(2 * model().clusters).max(1) {
                    return Err(Error::INVALID_VALUE);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a launch may begin before the end of the kernel before it in its stream.
fn is_dependent(attributes: &[Attribute]) -> bool {
    let mut of_kind = attributes
        .iter()
        .filter(|attribute| attribute.id == STREAM_SERIALIZATION);
    of_kind.any(|attribute| attribute.value[0] as u32 != 0)
}

/// The events that a launch records: without a time, and of this process.
pub(crate) fn events(attributes: &[Attribute]) -> R<Vec<Arc<Event>>> {
    let of_event = |attribute: &&Attribute| EVENTS.contains(&attribute.id);
    let event = |attribute: &Attribute| {
        let event = event::EVENTS.get(attribute.value[0] as Handle)?;
        let valid = event.flags & event::DISABLE_TIMING != 0 && event.shared.is_none();
        if valid { Ok(event) } else { Err(Error::INVALID_VALUE) }
    };
    attributes.iter().filter(of_event).map(event).collect()
}

/// The managed memory that a launch touches.
fn touches(function: &Function, params: &Params, shape: Shape) -> Vec<TouchedAddresses> {
    let call = Call {
        buffer: &params.buffer,
        params: function.params(),
    };
    paging::touches(&function.pattern, &call, (shape.blocks(), shape.threads().into()))
}

impl Launch {
    /// A launch that is kept: takes its own copy of the parameters.
    pub(crate) fn new(
        function: Arc<Function>,
        shape: Shape,
        given: GivenParams,
        attributes: Vec<Attribute>,
    ) -> R<Launch> {
        shape.check(&function)?;
        check_attributes(&function, &shape, &attributes)?;
        let params = given.pack(&function)?;
        Ok(Launch {
            function,
            shape,
            params,
            attributes,
        })
    }

    /// The kernel's symbol.
    pub(crate) fn name(&self) -> &str {
        &self.function.name
    }

    fn device(&self) -> KernelLaunch {
        let Shape { grid, block, shared } = self.shape;
        KernelLaunch {
            name: self.function.name_id,
            grid,
            block,
            shared,
            duration: None,
            held: false,
            dependent: is_dependent(&self.attributes),
        }
    }

    /// Puts it on the device.
    pub(crate) fn submit(&self, driver: &Driver, stream: &Stream, graph: u64) -> R<Seq> {
        away::launched(self.name());
        let mut launch = self.device();
        let effect = execute::effect(&self.function, &self.params, &mut launch, &stream.context);
        let touches = touches(&self.function, &self.params, self.shape);
        stream.submit_touching(driver, Op::Kernel(launch), effect, graph, &touches)
    }
}

/// Puts a launch on the device at once, whose shape and attributes are checked.
pub(crate) fn submit(
    driver: &Driver,
    stream: &Stream,
    function: &Function,
    shape: Shape,
    given: GivenParams,
    attributes: &[Attribute],
) -> R<Seq> {
    away::launched(&function.name);
    let Shape { grid, block, shared } = shape;
    let mut op = KernelLaunch {
        name: function.name_id,
        grid,
        block,
        shared,
        duration: None,
        held: false,
        dependent: is_dependent(attributes),
    };
    if function.executed.is_none() && function.fault.is_none() && !paging::any() {
        return stream.submit(driver, Op::Kernel(op), None, 0);
    }
    let params = match function.executed {
        Some(_) => given.pack(function)?,
        // A kernel that is only timed runs with any parameters.
        None => given.pack(function).unwrap_or_default(),
    };
    let effect = execute::effect(function, &params, &mut op, &stream.context);
    let touches = touches(function, &params, shape);
    stream.submit_touching(driver, Op::Kernel(op), effect, 0, &touches)
}

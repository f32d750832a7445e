// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated `libcuda.so.1`: a driver whose device is the process `simgpu-device`.
//!
//! Real clients load it in place of NVIDIA's. Device memory is host memory. An operation goes to
//! the device as a name or a size, takes its time there, and has its effect here when the device
//! reports that it has ended. Kernels have no effect, except a few that are really executed
//! (`kernels`).
//!
//! A module uses those of its own row or of rows above it:
//!
//! | layer | modules | what |
//! |---|---|---|
//! | 0 | `abi`, `away`, `registry`, `dead`, `fork`, `export`, `errors`, `names`, `fd`, `thread`, `callback`, `table_log` | the C boundary: pointers, results, handles, entry points |
//! | 1 | `space`, `effect`, `shared_event`, `kernels` | addresses and allocations, effects, bodies of executed kernels |
//! | 2 | `timeline`, `state`, `helper` | the link to the devices, the initialised driver, its own threads |
//! | 3 | `device`, `capture`, `context` | devices, captures as streams know them, contexts |
//! | 4 | `stream`, `memory`, `event`, `module` | streams and their order, memory, events, modules and functions |
//! | 5 | `launch`, `copy`, `work` | what can be put on a stream, as values |
//! | 6 | `graph` | graphs, captures, instantiated graphs |
//! | 7 | `api`, `checkpoint`, `init`, `runtime`, `lookup`, `tools`, `tensor_map` | calls that need all of this; how clients find us |
//!
//! `scripts/layers` refuses a circle. A lower module gets things from a higher one as a value (an
//! effect, a condition, a point in a capture), or as a function that `init` registers. An entry
//! point lies in the module that keeps the state it reads or changes. It lies in `api` if its call
//! may go into a capture, or ends objects that several modules hold.
//!
//! Invariants: results are plain integers, and no panic leaves an entry point. An entry point that
//! is not implemented answers 801. A handle of a client is never followed without a check.

mod abi;
mod api;
mod away;
mod callback;
mod capture;
mod checkpoint;
mod context;
mod copy;
mod dead;
mod device;
mod effect;
mod errors;
mod event;
mod export;
mod fd;
mod fork;
mod graph;
mod helper;
mod init;
mod kernels;
mod launch;
mod lookup;
mod memory;
mod module;
mod names;
mod registry;
#[cfg(feature = "cuda-runtime")]
mod runtime;
mod shared_event;
mod space;
mod state;
mod stream;
mod table_log;
mod tensor_map;
mod thread;
mod timeline;
mod tools;
mod work;

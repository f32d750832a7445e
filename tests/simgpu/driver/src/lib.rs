//! The simulated `libcuda.so.1`: a driver whose device is the process `simgpu-device`.
//!
//! Real clients load it in place of NVIDIA's. Device memory is host memory; an operation goes to
//! the device as a name or a size, takes there the time it takes, and has its effect here when the
//! device says that it has ended. Kernels have none, but for a few that are really executed
//! (`kernels`).
//!
//! | where | what |
//! |---|---|
//! | `export.rs`, `abi.rs`, `registry.rs`, `dead.rs`, `lookup.rs` | the C boundary: entry points, pointers, handles, how clients find us |
//! | `state.rs`, `fork.rs`, `device/`, `context/` | initialisation, forks, the device, contexts |
//! | `timeline.rs`, `effect.rs`, `helper.rs` | the link to the device, effects, the driver's own threads |
//! | `work.rs`, `op.rs` | what can be put on a stream, and the one door to it |
//! | `stream/`, `event.rs`, `launch/`, `copy/`, `memory/`, `module/` | the API by topic |
//! | `graph/`, `kernels/` | graphs and captures; executed kernels |
//! | `runtime.rs` | what the CUDA runtime library asks beyond the driver API (feature `cuda-runtime`) |
//!
//! What holds: results are plain integers, no panic leaves an entry point, an entry point that is
//! not implemented says so (801), and what is handed to clients as a handle is never followed
//! without a check.

mod abi;
mod callback;
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
mod op;
mod registry;
#[cfg(feature = "cuda-runtime")]
mod runtime;
mod shared_event;
mod space;
mod state;
mod stream;
mod tensor_map;
mod thread;
mod timeline;
mod tools;
mod work;
#[cfg(not(feature = "cuda-runtime"))]
use lookup::none as runtime;

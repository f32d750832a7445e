//! A fork's child owns nothing of its parent's session.
//!
//! The child handler runs in a process that has one thread and whatever locks others held: it makes one system call a mapping and
//! stores a few words, no more. Nothing is closed or joined: descriptors and threads are the parent's business. The child is then like a process
//! in which the driver was never used; if it initialises CUDA itself it gets a session of its own.
#![allow(unsafe_code)]

use std::sync::Once;

/// Has `in_child` run in every forked child from now on.
pub fn watch(in_child: extern "C" fn()) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let in_child: unsafe extern "C" fn() = in_child;
        // SAFETY: the handler is a function of this library, which is preloaded and never unloaded, and does only what a forked child may do.
        let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if result != 0 {
            log::warn!("forked children can not be told apart: error {result}");
        }
    });
}

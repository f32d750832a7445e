// SPDX-License-Identifier: MIT OR Apache-2.0
//! AArch64, its procedure call standard. A stub passes the symbol's number in `w17`. `x16` and
//! `x17` are the linker's own between a call and the function, so no caller needs them.

/// Argument registers of a function.
pub const ARGUMENT_REGISTERS: usize = 8;

/// The kernel's name of the clock source that [`counter`] reads.
pub const CLOCK_SOURCE: &str = "arch_sys_counter";

/// Folders that only drivers for this processor are in.
pub const DRIVER_FOLDERS: [&str; 3] = [
    "/usr/lib/aarch64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
];

/// The processor's counter.
#[inline(always)]
pub fn counter() -> u64 {
    let count: u64;
    // SAFETY: Linux lets programs read the virtual counter; nothing is written.
    unsafe {
        std::arch::asm!("mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags));
    }
    count
}

/// The address of the thread's control block.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let block: u64;
    // SAFETY: the register is the C library's pointer to the thread's control block; nothing is
    // written.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) block, options(pure, nomem, nostack, preserves_flags));
    }
    block
}

/// Saves every register that can carry an argument, binds, restores, continues. `x8` is the place
/// of a structure that a function returns.
macro_rules! binder {
    ($bind:path) => {
        ::std::arch::naked_asm!(
            "stp x29, x30, [sp, #-224]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "str x8, [sp, #80]",
            "stp q0, q1, [sp, #96]",
            "stp q2, q3, [sp, #128]",
            "stp q4, q5, [sp, #160]",
            "stp q6, q7, [sp, #192]",
            "mov w0, w17",
            "bl {bind}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldr x8, [sp, #80]",
            "ldp q0, q1, [sp, #96]",
            "ldp q2, q3, [sp, #128]",
            "ldp q4, q5, [sp, #160]",
            "ldp q6, q7, [sp, #192]",
            "ldp x29, x30, [sp], #224",
            "br x16",
            bind = sym $bind,
        )
    };
}
pub(crate) use binder;

/// Informs the session, then continues to the driver with the caller's arguments.
macro_rules! ordered_gate {
    ($before:path) => {
        ::std::arch::naked_asm!(
            "stp x29, x30, [sp, #-80]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "mov w0, w17",
            "add x1, sp, #16",
            "add x2, sp, #80",
            "bl {ordered}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            "br x16",
            ordered = sym $before,
        )
    };
}
pub(crate) use ordered_gate;

/// Continues to the driver if the launch queue is empty, else at the address that the gate returns.
macro_rules! queue_gate {
    ($state:path, $real:path, $gate:path) => {
        ::std::arch::naked_asm!(
            "adrp x16, {state}",
            "ldr w16, [x16, :lo12:{state}]",
            "cbnz w16, 2f",
            "adrp x16, {real}",
            "add x16, x16, :lo12:{real}",
            "ldr x16, [x16, w17, uxtw #3]",
            "br x16",
            "2:",
            "stp x29, x30, [sp, #-208]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "stp q0, q1, [sp, #80]",
            "stp q2, q3, [sp, #112]",
            "stp q4, q5, [sp, #144]",
            "stp q6, q7, [sp, #176]",
            "mov w0, w17",
            "bl {gate}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldp q0, q1, [sp, #80]",
            "ldp q2, q3, [sp, #112]",
            "ldp q4, q5, [sp, #144]",
            "ldp q6, q7, [sp, #176]",
            "ldp x29, x30, [sp], #208",
            "br x16",
            state = sym $state,
            real = sym $real,
            gate = sym $gate,
        )
    };
}
pub(crate) use queue_gate;

/// Counts the thread in, calls, and counts the thread out.
macro_rules! counted_gate {
    ($enter:path, $leave:path) => {
        ::std::arch::naked_asm!(
            // The unwinder passes this frame: a thread may be cancelled in the driver.
            ".cfi_startproc",
            "stp x29, x30, [sp, #-96]!",
            ".cfi_def_cfa_offset 96",
            ".cfi_offset x29, -96",
            ".cfi_offset x30, -88",
            "mov x29, sp",
            ".cfi_def_cfa_register x29",
            "stp x0, x1, [x29, #16]",
            "stp x2, x3, [x29, #32]",
            "stp x4, x5, [x29, #48]",
            "stp x6, x7, [x29, #64]",
            "stp d0, d1, [x29, #80]",
            "mov w0, w17",
            "bl {enter}",
            "mov x16, x0",
            // The arguments on the stack.
            "ldp x9, x10, [x29, #96]",
            "ldp x11, x12, [x29, #112]",
            "ldp x13, x14, [x29, #128]",
            "sub sp, sp, #48",
            "stp x9, x10, [sp]",
            "stp x11, x12, [sp, #16]",
            "stp x13, x14, [sp, #32]",
            "ldp x0, x1, [x29, #16]",
            "ldp x2, x3, [x29, #32]",
            "ldp x4, x5, [x29, #48]",
            "ldp x6, x7, [x29, #64]",
            "ldp d0, d1, [x29, #80]",
            "blr x16",
            "str x0, [x29, #16]",
            "bl {leave}",
            "ldr x0, [x29, #16]",
            "mov sp, x29",
            "ldp x29, x30, [sp], #96",
            ".cfi_def_cfa sp, 0",
            ".cfi_restore x29",
            ".cfi_restore x30",
            "ret",
            ".cfi_endproc",
            enter = sym $enter,
            leave = sym $leave,
        )
    };
}
pub(crate) use counted_gate;

/// Lets `choose` exchange the name, then continues at the real function.
macro_rules! dlopen {
    ($choose:path, $next:path) => {
        ::std::arch::naked_asm!(
            "stp x29, x30, [sp, #-32]!",
            "mov x29, sp",
            "str x1, [sp, #16]",
            "mov x2, x30",
            "bl {choose}",
            "ldr x1, [sp, #16]",
            "ldp x29, x30, [sp], #32",
            "adrp x16, {next}",
            "ldr x16, [x16, :lo12:{next}]",
            "br x16",
            choose = sym $choose,
            next = sym $next,
        )
    };
}
pub(crate) use dlopen;

/// Returns the answer of `judge` to a name that starts with `cu`, or continues at the real
/// function. The caller's address is the argument after the last one.
macro_rules! lookup {
    ($caller:literal, $judge:path, $find:path, $next:path) => {
        ::std::arch::naked_asm!(
            "cbz x1, 2f",
            "ldrb w9, [x1]",
            "cmp w9, #0x63", // 'c'
            "b.ne 2f",
            "ldrb w9, [x1, #1]",
            "cmp w9, #0x75", // 'u'
            "b.eq 3f",
            "2:",
            "adrp x16, {next}",
            "ldr x16, [x16, :lo12:{next}]",
            "cbz x16, 4f",
            "br x16",
            "3:",
            "stp x29, x30, [sp, #-32]!",
            "mov x29, sp",
            "stp x1, x2, [sp, #16]",
            concat!("mov ", $caller, ", x30"),
            "bl {judge}",
            "mov x9, x0",
            "mov x0, x1",
            "ldp x1, x2, [sp, #16]",
            "ldp x29, x30, [sp], #32",
            "cbnz x9, 5f",
            "adrp x16, {next}",
            "ldr x16, [x16, :lo12:{next}]",
            "br x16",
            "4:",
            "stp x29, x30, [sp, #-48]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            "bl {find}",
            "ldp x0, x1, [sp, #16]",
            "ldr x2, [sp, #32]",
            "ldp x29, x30, [sp], #48",
            "adrp x16, {next}",
            "ldr x16, [x16, :lo12:{next}]",
            "br x16",
            "5:",
            "ret",
            judge = sym $judge,
            find = sym $find,
            next = sym $next,
        )
    };
}
pub(crate) use lookup;

/// [`lookup`] of two arguments.
macro_rules! dlsym {
    ($judge:path, $find:path, $next:path) => {
        $crate::processor::lookup!("x2", $judge, $find, $next)
    };
}
pub(crate) use dlsym;

/// [`lookup`] of three arguments.
macro_rules! dlvsym {
    ($judge:path, $find:path, $next:path) => {
        $crate::processor::lookup!("x3", $judge, $find, $next)
    };
}
pub(crate) use dlvsym;

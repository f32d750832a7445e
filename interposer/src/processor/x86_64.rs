// SPDX-License-Identifier: MIT OR Apache-2.0
//! x86-64, System V calling convention. A stub passes the symbol's number in `r11`.

/// Argument registers of a function.
pub const ARGUMENT_REGISTERS: usize = 6;

/// The kernel's name of the clock source that [`counter`] reads.
pub const CLOCK_SOURCE: &str = "tsc";

/// Folders that only drivers for this processor are in.
pub const DRIVER_FOLDERS: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
];

/// The processor's counter.
#[inline(always)]
pub fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The address of the thread's control block.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    let block: u64;
    // SAFETY: on x86-64 the word at the thread pointer is the thread pointer (System V ABI);
    // nothing is written.
    unsafe {
        std::arch::asm!("mov {}, fs:[0]", out(reg) block, options(pure, readonly, nostack, preserves_flags));
    }
    block
}

/// Saves every register that can carry an argument, binds, restores, continues. The stack pointer
/// is 8 off a multiple of 16, as at every function's start.
macro_rules! binder {
    ($bind:path) => {
        ::std::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 192",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "mov [rsp + 48], rax",
            "mov [rsp + 56], r10",
            "movaps [rsp + 64], xmm0",
            "movaps [rsp + 80], xmm1",
            "movaps [rsp + 96], xmm2",
            "movaps [rsp + 112], xmm3",
            "movaps [rsp + 128], xmm4",
            "movaps [rsp + 144], xmm5",
            "movaps [rsp + 160], xmm6",
            "movaps [rsp + 176], xmm7",
            "mov edi, r11d",
            "call {bind}",
            "mov r11, rax",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "mov rax, [rsp + 48]",
            "mov r10, [rsp + 56]",
            "movaps xmm0, [rsp + 64]",
            "movaps xmm1, [rsp + 80]",
            "movaps xmm2, [rsp + 96]",
            "movaps xmm3, [rsp + 112]",
            "movaps xmm4, [rsp + 128]",
            "movaps xmm5, [rsp + 144]",
            "movaps xmm6, [rsp + 160]",
            "movaps xmm7, [rsp + 176]",
            "leave",
            "jmp r11",
            bind = sym $bind,
        )
    };
}
pub(crate) use binder;

/// Informs the session, then continues to the driver with the caller's arguments.
macro_rules! ordered_gate {
    ($before:path) => {
        ::std::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 48",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "mov edi, r11d",
            "mov rsi, rsp",
            "lea rdx, [rbp + 16]",
            "call {ordered}",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "leave",
            "jmp rax",
            ordered = sym $before,
        )
    };
}
pub(crate) use ordered_gate;

/// Continues to the driver if the launch queue is empty, else at the address that the gate returns.
macro_rules! queue_gate {
    ($state:path, $real:path, $gate:path) => {
        ::std::arch::naked_asm!(
            "cmp dword ptr [rip + {state}], 0",
            "jne 2f",
            "lea rax, [rip + {real}]",
            "jmp qword ptr [rax + 8 * r11]",
            "2:",
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 176",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "movaps [rsp + 48], xmm0",
            "movaps [rsp + 64], xmm1",
            "movaps [rsp + 80], xmm2",
            "movaps [rsp + 96], xmm3",
            "movaps [rsp + 112], xmm4",
            "movaps [rsp + 128], xmm5",
            "movaps [rsp + 144], xmm6",
            "movaps [rsp + 160], xmm7",
            "mov edi, r11d",
            "call {gate}",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "movaps xmm0, [rsp + 48]",
            "movaps xmm1, [rsp + 64]",
            "movaps xmm2, [rsp + 80]",
            "movaps xmm3, [rsp + 96]",
            "movaps xmm4, [rsp + 112]",
            "movaps xmm5, [rsp + 128]",
            "movaps xmm6, [rsp + 144]",
            "movaps xmm7, [rsp + 160]",
            "leave",
            "jmp rax",
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
            "push rbp",
            ".cfi_def_cfa_offset 16",
            ".cfi_offset rbp, -16",
            "mov rbp, rsp",
            ".cfi_def_cfa_register rbp",
            "sub rsp, 80",
            "mov [rbp - 8], rdi",
            "mov [rbp - 16], rsi",
            "mov [rbp - 24], rdx",
            "mov [rbp - 32], rcx",
            "mov [rbp - 40], r8",
            "mov [rbp - 48], r9",
            "movsd [rbp - 56], xmm0",
            "movsd [rbp - 64], xmm1",
            "mov edi, r11d",
            "call {enter}",
            // The argument on the stack, last one first.
            "push qword ptr [rbp + 56]",
            "push qword ptr [rbp + 48]",
            "push qword ptr [rbp + 40]",
            "push qword ptr [rbp + 32]",
            "push qword ptr [rbp + 24]",
            "push qword ptr [rbp + 16]",
            "mov rdi, [rbp - 8]",
            "mov rsi, [rbp - 16]",
            "mov rdx, [rbp - 24]",
            "mov rcx, [rbp - 32]",
            "mov r8, [rbp - 40]",
            "mov r9, [rbp - 48]",
            "movsd xmm0, [rbp - 56]",
            "movsd xmm1, [rbp - 64]",
            "call rax",
            "mov [rbp - 8], rax",
            "call {leave}",
            "mov rax, [rbp - 8]",
            "leave",
            ".cfi_def_cfa rsp, 8",
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
            "mov rdx, [rsp]",
            "push rdi",
            "push rsi",
            "sub rsp, 8",
            "call {choose}",
            "add rsp, 8",
            "pop rsi",
            "pop rdi",
            "mov rdi, rax",
            "jmp qword ptr [rip + {next}]",
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
            "test rsi, rsi",
            "jz 2f",
            "cmp byte ptr [rsi], 0x63", // 'c'
            "jne 2f",
            "cmp byte ptr [rsi + 1], 0x75", // 'u'
            "je 3f",
            "2:",
            "cmp qword ptr [rip + {next}], 0",
            "je 4f",
            "jmp qword ptr [rip + {next}]",
            "3:",
            "push rdi",
            "push rsi",
            "push rdx",
            concat!("mov ", $caller, ", [rsp + 24]"),
            "call {judge}",
            "mov r11, rdx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "mov rax, r11",
            "jnz 5f",
            "mov rdi, r11",
            "jmp qword ptr [rip + {next}]",
            "4:",
            "push rdi",
            "push rsi",
            "push rdx",
            "call {find}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "jmp qword ptr [rip + {next}]",
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
        $crate::processor::lookup!("rdx", $judge, $find, $next)
    };
}
pub(crate) use dlsym;

/// [`lookup`] of three arguments.
macro_rules! dlvsym {
    ($judge:path, $find:path, $next:path) => {
        $crate::processor::lookup!("rcx", $judge, $find, $next)
    };
}
pub(crate) use dlvsym;

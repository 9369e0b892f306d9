//! Defines the instructions of system call filters (seccomp), and installs the filters.
//!
//! A filter sees the number of a call, its ABI and its six arguments. A filter cannot read the
//! memory to which arguments point.

use std::io;

use libc::sock_filter;

/// `BPF_LD | BPF_W | BPF_ABS`
pub(crate) const LOAD: u16 = 0x20;
/// `BPF_ALU | BPF_AND | BPF_K`
pub(crate) const AND: u16 = 0x54;
/// `BPF_JMP | BPF_JEQ | BPF_K`
const JUMP_IF_EQUAL: u16 = 0x15;
/// `BPF_JMP | BPF_JSET | BPF_K`
const JUMP_IF_ANY_BIT: u16 = 0x45;
/// `BPF_RET | BPF_K`
pub(crate) const RETURN: u16 = 0x06;

/// Offsets of the fields of `seccomp_data`.
pub(crate) const OFFSET_NUMBER: u32 = 0;
pub(crate) const OFFSET_ARCH: u32 = 4;

/// The offset of the lower half of an argument. The kernel also uses only 32 bits of families,
/// commands and flags.
pub(crate) const fn offset_of_argument(index: u32) -> u32 {
    let lower_half = if cfg!(target_endian = "big") { 4 } else { 0 };
    16 + 8 * index + lower_half
}

/// Skips `then` instructions if the loaded value is `value`, else `otherwise` instructions.
pub(crate) fn jump(value: u32, then: u8, otherwise: u8) -> sock_filter {
    sock_filter { code: JUMP_IF_EQUAL, jt: then, jf: otherwise, k: value }
}

/// Skips `then` instructions if the loaded value has any of `bits`, else `otherwise` instructions.
pub(crate) fn jump_if_any(bits: u32, then: u8, otherwise: u8) -> sock_filter {
    sock_filter { code: JUMP_IF_ANY_BIT, jt: then, jf: otherwise, k: bits }
}

pub(crate) fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

pub(crate) fn pass() -> sock_filter {
    statement(RETURN, libc::SECCOMP_RET_ALLOW)
}

pub(crate) fn error(errno: libc::c_int) -> sock_filter {
    statement(RETURN, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned())
}

/// A block has at most 255 instructions; the distance of a jump has 8 bits.
pub(crate) fn length(block: &[sock_filter]) -> u8 {
    debug_assert!(
        u8::try_from(block.len()).is_ok(),
        "the block has {} instructions, but a jump in a seccomp filter can skip at most 255",
        block.len()
    );
    u8::try_from(block.len()).unwrap_or(u8::MAX)
}

/// Installs a filter. Returns the result of the kernel: the listener, if a flag requests one.
///
/// # Errors
/// The error of the kernel, for example `EINVAL` for an unknown flag, or because a thread cannot
/// use the filter.
pub(crate) fn install(program: &[sock_filter], flags: libc::c_ulong) -> io::Result<libc::c_long> {
    let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    let operation = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the program is live, with its length; the kernel copies it and writes nothing.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, &raw const program) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Evaluates a filter program as the kernel would, for tests.
#[cfg(test)]
pub(crate) fn verdict(program: &[sock_filter], arch: u32, number: u32, arguments: [u32; 6]) -> u32 {
    let load = |offset: u32| match offset {
        OFFSET_NUMBER => number,
        OFFSET_ARCH => arch,
        other => {
            let index = (0..6).find(|index| offset_of_argument(*index) == other).unwrap();
            arguments[index as usize]
        }
    };
    let mut at = 0;
    let mut loaded = 0;
    loop {
        let instruction = program[at];
        at += 1;
        let then = match instruction.code {
            LOAD => {
                loaded = load(instruction.k);
                continue;
            }
            AND => {
                loaded &= instruction.k;
                continue;
            }
            RETURN => return instruction.k,
            JUMP_IF_EQUAL => loaded == instruction.k,
            JUMP_IF_ANY_BIT => loaded & instruction.k != 0,
            other => panic!("{other:#x}"),
        };
        at += usize::from(if then { instruction.jt } else { instruction.jf });
    }
}

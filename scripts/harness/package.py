"""What scripts/package makes: where it lies, and for which glibc."""

import re

from . import elf, paths

# The oldest glibc that the package runs on: RHEL 8 has it.
GLIBC = (2, 28)
GLIBC_TEXT = ".".join(map(str, GLIBC))
TRIPLE = "x86_64-unknown-linux-gnu"
BUILT = paths.TARGET / TRIPLE / "release"
FILES = ("weft", "libweft.so")

# Functions that glibc 2.28 has, too, by other versions or as part of each program (stat and its kind): what needs them newer was only linked on a newer system.
# From glibc's list of symbols for x86_64 (sysdeps/unix/sysv/linux/x86_64/64/libc.abilist): they moved into libc.so in 2.34, or got a new version there.
MOVED = (
    {"dladdr", "dladdr1", "dlclose", "dlerror", "dlinfo", "dlopen", "dlsym", "dlvsym", "__libc_start_main"}
    | {"fstat", "fstat64", "fstatat", "fstatat64", "lstat", "lstat64", "stat", "stat64", "mknod", "mknodat"}
    | {"pthread_attr_getguardsize", "pthread_attr_getstack", "pthread_attr_setguardsize", "pthread_attr_setstacksize", "pthread_getattr_np"}
    | {"pthread_create", "pthread_detach", "pthread_join", "pthread_key_create", "pthread_key_delete", "pthread_setspecific", "pthread_getspecific"}
    | {"pthread_mutex_trylock", "pthread_mutexattr_destroy", "pthread_mutexattr_init", "pthread_mutexattr_settype"}
    | {"pthread_kill", "pthread_once", "pthread_rwlock_rdlock", "pthread_rwlock_unlock", "pthread_rwlock_wrlock", "pthread_setname_np", "pthread_sigmask"}
    | {"exp2", "exp", "log", "log2", "pow", "sem_init", "sem_post", "sem_wait", "shm_open", "shm_unlink"}
)


def folder():
    (version,) = re.findall(r'^version = "(.+)"$', (paths.ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    return paths.TARGET / "package" / f"weft-{version}-x86_64"


def faults(file, moved=()):
    """Lines that say which symbol needs a newer glibc than GLIBC; names in `moved` may."""
    found = elf.too_new(file, GLIBC, weak=False)
    return [f"{file}: needs {symbol} of {version}, newer than glibc {GLIBC_TEXT}" for symbol, version in found if symbol not in moved]

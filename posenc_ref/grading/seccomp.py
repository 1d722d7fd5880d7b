"""A filter that the kernel applies to what an answer asks of it.

Namespaces, resource limits and a read-only root leave ways to more memory (a mount in a user namespace of one's own,
shared memory that is attached nowhere) and to parts of the kernel that an answer never needs. Those calls fail here.
"""

import platform
import struct

_SHARED = {  # the same numbers on all processors
    "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "fspick": 433,
    "mount_setattr": 442, "memfd_secret": 447,
}  # fmt: skip
_NAMES = (
    "unshare", "setns", "mount", "umount2", "pivot_root", "ptrace", "process_vm_readv", "process_vm_writev", "add_key",
    "request_key", "keyctl", "bpf", "userfaultfd", "perf_event_open", "memfd_create", "shmget", "msgget",
)  # fmt: skip
_PROCESSORS = {  # its mark in the kernel's audit.h, the number of clone, those of _NAMES
    "x86_64": (
        0xC000003E, 56,
        (272, 308, 165, 166, 155, 101, 310, 311, 248, 249, 250, 321, 323, 298, 319, 29, 68),
    ),
    "aarch64": (
        0xC00000B7, 220,
        (97, 268, 40, 39, 41, 117, 270, 271, 217, 218, 219, 280, 282, 241, 279, 194, 186),
    ),
}  # fmt: skip
_CLONE3, _NEW_NAMESPACE = 435, 0x7E020000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR, _EPERM, _ENOSYS = 0x7FFF0000, 0x80000000, 0x00050000, 1, 38


def program() -> bytes:
    """The filter for this processor as ``bwrap --seccomp`` reads it; empty for one that is not known here."""
    if platform.machine() not in _PROCESSORS:
        return b""
    mark, clone, numbers = _PROCESSORS[platform.machine()]
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, mark), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]  # no other ABI
    lines += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]  # nor the one that x86_64 has beside its own
    lines += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ERROR | _ENOSYS)]  # the C library then takes clone
    for number in (*numbers, *_SHARED.values()):
        lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | _EPERM)]
    lines += [(_EQUAL, 0, 3, clone), (_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, _NEW_NAMESPACE)]  # its flags
    lines += [(_RETURN, 0, 0, _ERROR | _EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)

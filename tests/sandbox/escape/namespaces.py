"""New namespaces, other namespaces, and mounts by the old and the new interface."""

from __future__ import annotations

import ctypes
import os
import subprocess

from tests.sandbox.escape.registry import attempt, checked, libc, system_call, table

FLAGS = {"user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000}
FLAGS |= {"cgroup": 0x02000000, "mount": 0x00020000}
SIGCHLD = 17
NEVER = ("EPERM",)
MISSING = ("ENOSYS",)
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_MOVE = 1, 32, 4096, 16384, 1 << 18, 8192


def clone(flags: int) -> object:
    """clone(2) by number, as no library would."""
    child = system_call("clone", flags | SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return child


for space, flag in FLAGS.items():
    attempt(f"clone: a {space} namespace", *NEVER)(lambda flag=flag: clone(flag))
    attempt(f"unshare: a {space} namespace", *NEVER)(lambda flag=flag: system_call("unshare", flag))
attempt("unshare: a time namespace", *NEVER)(lambda: system_call("unshare", 0x80))
attempt("clone: user and mount namespaces at once", *NEVER)(lambda: clone(FLAGS["user"] | FLAGS["mount"]))
attempt("clone: flags with high bits set", *NEVER)(lambda: clone(FLAGS["user"] | 1 << 33))
attempt("clone3", *MISSING)(lambda: system_call("clone3", ctypes.create_string_buffer(88), 88))
attempt("unshare -Ur", "refused")(lambda: _run("unshare", "-Ur", "true"))
attempt("unshare -m", "refused")(lambda: _run("unshare", "-m", "true"))
attempt("bwrap inside of bwrap", "refused", "ENOENT")(lambda: _run("/usr/bin/bwrap", "--ro-bind", "/", "/", "true"))
for space in ("mnt", "user", "net", "pid", "ipc", "uts", "cgroup"):
    attempt(f"setns: our own {space} namespace", *NEVER)(lambda space=space: _setns(f"/proc/self/ns/{space}"))
    attempt(f"setns: pid 1's {space} namespace", "EPERM", "EACCES")(lambda space=space: _setns(f"/proc/1/ns/{space}"))
attempt("setns: by pidfd", *NEVER)(lambda: system_call("setns", os.pidfd_open(os.getppid()), FLAGS["mount"]))


def _run(*argv: str) -> object:
    from tests.sandbox.escape.registry import Seen

    code = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode
    return Seen("refused") if code else "it worked"


def _setns(path: str) -> object:
    return system_call("setns", os.open(path, os.O_RDONLY), 0)


def mount(source: str, dest: str, kind: str, flags: int = 0, data: str = "") -> object:
    """mount(2)."""
    return checked(libc.mount(source.encode(), dest.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()))


MOUNTS = {
    "a tmpfs": ("none", "/tmp", "tmpfs", 0),
    "a proc": ("proc", "/tmp", "proc", 0),
    "a sysfs": ("sysfs", "/tmp", "sysfs", 0),
    "a cgroup2": ("none", "/tmp", "cgroup2", 0),
    "a devpts": ("none", "/tmp", "devpts", 0),
    "an overlay": ("none", "/tmp", "overlay", 0),
    "a fuse": ("none", "/tmp", "fuse", 0),
    "a disk": ("/dev/vda", "/tmp", "ext4", 0),
    "/ bound": ("/", "/tmp", "none", MS_BIND | MS_REC),
    "/ writable": ("none", "/", "none", MS_REMOUNT | MS_BIND),
    "/usr writable": ("none", "/usr", "none", MS_REMOUNT | MS_BIND),
    "/proc/sys writable": ("none", "/proc/sys", "none", MS_REMOUNT | MS_BIND),
    "/dev writable": ("none", "/dev", "none", MS_REMOUNT | MS_BIND),
    "propagation of /": ("none", "/", "none", MS_PRIVATE | MS_REC),
    "/tmp moved over /usr": ("/tmp", "/usr", "none", MS_MOVE),
    "a larger /tmp": ("none", "/tmp", "tmpfs", MS_REMOUNT),
}
for title, arguments in MOUNTS.items():
    attempt(f"mount: {title}", *NEVER)(lambda arguments=arguments: mount(*arguments))
for place in ("/proc/sys", "/usr", "/app", "/"):
    attempt(f"umount: {place}", *NEVER)(lambda place=place: checked(libc.umount2(place.encode(), 2)))
table(
    "new mount interface",
    MISSING,
    {
        "open_tree": (-100, b"/", 1),
        "open_tree_attr": (-100, b"/", 1, 0, 0),
        "move_mount": (-100, b"/tmp", -100, b"/usr", 0),
        "fsopen": (b"tmpfs", 0),
        "fsconfig": (0, 6, 0, 0, 0),
        "fsmount": (0, 0, 0),
        "fspick": (-100, b"/", 0),
        "mount_setattr": (-100, b"/", 0, ctypes.create_string_buffer(32), 32),
    },
)
table("roots", NEVER, {"pivot_root": (b"/tmp", b"/tmp"), "chroot": (b"/tmp",)})

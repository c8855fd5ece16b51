"""The small process that starts every sandbox of one host: `python -I -S spawner.py FD MODE…` (standard library only).

Why it exists: PDEATHSIG is per thread, so all sandboxes need one parent thread that lives as long as the supervisor;
forking costs time in proportion to the parent's memory, and this process stays small; and as root, the private mount
namespace and the change of uid belong to no other process. It holds no descriptors but those of the launch at hand,
so nothing of the supervisor can leak into a sandbox. When the supervisor is gone, it ends what is left, and itself.

Messages are JSON in SOCK_SEQPACKET packets, descriptors by SCM_RIGHTS:
  {"launch": id, "program": path, "argv": […], "targets": [fd…], "limits": {…}, "groups": [path…]}   no answer
  {"kill": id}                                                                                       no answer
  {"bind": source, "at": dest, "directory": bool, "owner": [uid, gid]|null}
  {"unbind": dest} · {"copy": {dest: source}} · {"leave": place}            these four answer {"error": …|null}
  {"ramdisk": place, "base": directory, "bytes": n, "inodes": n}      the same, with a descriptor of the new tmpfs' top
Ramdisks are tmpfs for upper layers. As root they lie in our own mount namespace; for a user in a pair of namespaces
(user and mount) that no process lives in: two descriptors of ours hold it till we end. `"inside"` launches join it.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_REC, MS_SLAVE, MS_BIND = 2, 4, 0x4000, 0x80000, 0x1000
MNT_DETACH = 2
CLONE_NEWUSER = 0x10000000
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442  # the same numbers on every architecture
AT_FDCWD, AT_EMPTY_PATH, OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH, MOUNT_ATTR_IDMAP = -100, 0x1000, 1, 4, 0x100000
MAX_PACKET = 1 << 20
MAX_DESCRIPTORS = 200
HIGH = 512  # received descriptors are parked above every target number

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise the OSError of a failed libc call."""
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


def mount(source: str, dest: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    arguments = (os.fsencode(source), os.fsencode(dest), kind.encode(), ctypes.c_ulong(flags), data.encode())
    check(libc.mount(*arguments), dest)


def receive(channel: socket.socket, most: int = MAX_PACKET) -> tuple[bytes, list[int]]:
    """One packet and its descriptors, close-on-exec from the start (socket.recv_fds ignores its flags)."""
    size = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
    data, ancillary, _, _ = channel.recvmsg(most, size, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, list(fds)


def reply(channel: socket.socket, error: str | None, fds: list[int]) -> None:
    """Answer a request; what is sent along is closed here."""
    data = json.dumps({"error": error}).encode()
    if fds:
        socket.send_fds(channel, [data], fds)
    else:
        channel.sendall(data)
    for fd in fds:
        os.close(fd)


class Spawner:
    """The loop. `uid` is None for a user; as root it is what sandboxes run as."""

    def __init__(self, channel: socket.socket, uid: int | None, neutral: str) -> None:
        self.channel, self.uid, self.neutral = channel, uid, neutral
        self.children: dict[int, int] = {}  # pid → launch id
        self.namespaces: list[int] = []  # of a user's ramdisks: user, mount
        self.stopping = False

    def prepare(self, supervisor: int) -> None:
        """Default signals, death with the supervisor, and as root a mount namespace of our own."""
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)  # ignored ones would be inherited by every sandbox
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.umask(0o022)
        signal.signal(signal.SIGTERM, self.stop)
        check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0), "prctl")  # EOF on the channel says the same
        if os.getppid() != supervisor:
            self.stopping = True  # it died before the line above
        if self.uid is not None:
            check(libc.unshare(CLONE_NEWNS), "unshare")
            mount("none", "/", "none", MS_REC | MS_SLAVE)  # the host's mounts come in, ours never go out
            mount("sia", self.neutral, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=16m")

    def stop(self, *_: object) -> None:
        """The supervisor is gone."""
        self.stopping = True

    def run(self) -> None:
        """Serve until the supervisor is gone; then end every sandbox that is left."""
        try:
            self.serve()
        except ConnectionError:
            pass  # it went away with an answer unread, or while one was sent
        finally:
            for pid in list(self.children):
                end(pid)
            deadline = time.monotonic() + 2
            while self.children and time.monotonic() < deadline:
                self.reap()
                time.sleep(0.002)

    def serve(self) -> None:
        """Handle messages until EOF, or SIGTERM."""
        wake, end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.channel.sendall(b'{"error": null}')
        while not self.stopping:
            for ready in select.select([self.channel.fileno(), wake], [], [])[0]:
                if ready == self.channel.fileno():
                    data, fds = receive(self.channel)
                    if not data:
                        return
                    self.handle(json.loads(data), fds)
                else:
                    os.read(wake, 4096)
                    self.reap()

    def reap(self) -> None:
        """Collect ended launches; their exit status says nothing that the control channel does not say better."""
        while self.children:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self.children.pop(pid, None)

    def handle(self, message: dict[str, Any], fds: list[int]) -> None:
        """One message."""
        try:
            if "launch" in message:
                self.launch(message, fds)
            elif "kill" in message:
                for pid in [pid for pid, launch in self.children.items() if launch == message["kill"]]:
                    end(pid)
            else:
                self.answer(message)
        finally:
            for fd in fds:
                os.close(fd)

    def answer(self, message: dict[str, Any]) -> None:
        """A request about mounts; the answer says what went wrong."""
        error, fds = None, list[int]()
        try:
            if "ramdisk" in message:
                fds = self.within(message["base"], lambda: make_ramdisk(message))
            elif "leave" in message:
                self.within("", lambda: leave_ramdisk(message["leave"]))
            elif "bind" in message:
                self.bind(message["bind"], message["at"], message["directory"])
                if message.get("owner") and self.uid is not None:
                    uid, gid = message["owner"]
                    map_owner(message["at"], uid, gid, self.uid)
            elif "unbind" in message:
                check(libc.umount2(os.fsencode(message["unbind"]), MNT_DETACH), message["unbind"])
            else:
                for dest, source in message["copy"].items():
                    copy_program(source, dest)
        except OSError as failure:
            error = f"{failure.filename}: {failure.strerror}"
        reply(self.channel, error, fds)

    def within(self, base: str, action: Callable[[], list[int]]) -> list[int]:
        """Do something where ramdisks lie; returns the descriptors that it opened.

        For a user that is done by a child, since who enters a user namespace can't come back. The first one makes it.
        """
        if self.uid is not None:
            return action()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            pid = os.fork()
            if pid == 0:
                try:
                    namespaces = [] if self.namespaces else new_namespaces(base)
                    self.enter()
                    reply(theirs, None, [*action(), *namespaces])
                except BaseException as failure:
                    reply(theirs, f"{getattr(failure, 'filename', '')}: {getattr(failure, 'strerror', failure)}", [])
                os._exit(0)
            theirs.close()
            data, fds = receive(ours)
            os.waitpid(pid, 0)
        error = json.loads(data)["error"] if data else "ended: it said nothing"
        if error:
            name, _, text = error.partition(": ")
            raise OSError(errno.EPERM, text, name)
        if not self.namespaces and len(fds) > 2:
            self.namespaces, fds = fds[-2:], fds[:-2]
        return fds

    def enter(self) -> None:
        """Join the namespaces of a user's ramdisks, if there are any yet."""
        for namespace in self.namespaces:
            check(libc.setns(namespace, 0), "setns")

    def bind(self, source: str, dest: str, directory: bool) -> None:
        """Show `source` at `dest`, which lies in our own tmpfs."""
        os.makedirs(dest if directory else os.path.dirname(dest), 0o755, exist_ok=True)  # noqa: PTH103, PTH120
        if not directory:
            os.close(os.open(dest, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        mount(source, dest, "none", MS_BIND | MS_REC)

    def launch(self, message: dict[str, Any], fds: list[int]) -> None:
        """Start bwrap. Where the child has nothing to do but exec, without copying this process's page tables."""
        if self.uid is None and not message["groups"] and not message.get("inside"):
            pid = self.spawn(message, fds)
            if pid:
                self.children[pid] = message["launch"]
            return
        pid = os.fork()
        if pid == 0:
            try:
                self.become(message, fds)
            except BaseException as error:
                os.write(2, f"sandbox: cannot start: {error}\n".encode())
            os._exit(127)
        self.children[pid] = message["launch"]

    def spawn(self, message: dict[str, Any], fds: list[int]) -> int:
        """posix_spawn: everything that we hold is close-on-exec, so only the targets arrive."""
        parked = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH) for fd in fds]
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for fd, target in zip(parked, message["targets"], strict=True)]
        try:
            return os.posix_spawn(message["program"], message["argv"], {}, file_actions=actions)
        except OSError as error:
            setup = fds[message["targets"].index(2)]
            os.write(setup, f"sandbox: cannot start: {error}\n".encode())
            return 0
        finally:
            for fd in parked:
                os.close(fd)

    def become(self, message: dict[str, Any], fds: list[int]) -> NoReturn:
        """In the child: groups and limits, descriptors, uid, exec."""
        targets: list[int] = message["targets"]
        if message.get("inside"):
            self.enter()
        parked = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH) for fd in fds]
        for fd, target in zip(parked, targets, strict=True):
            os.dup2(fd, target)
        low = 0
        for target in [*sorted(targets), HIGH]:
            if low < target:  # closerange(0, 0) would close everything
                os.closerange(low, target)
            low = target + 1
        os.closerange(HIGH, HIGH + 2 * MAX_DESCRIPTORS)
        for group in message["groups"]:
            file = os.open(group, os.O_WRONLY | os.O_CLOEXEC)
            os.write(file, b"0")
            os.close(file)
        for name, value in message["limits"].items():
            number = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(number)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(number, (value, value))
        if self.uid is not None:
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
        os.execve(message["program"], message["argv"], {})


def end(bwrap: int) -> None:
    """Kill a launch, however far it has come. `bwrap` has not been reaped, so the number is still its own.

    Killing bwrap alone would do once both its processes have set PDEATHSIG. Before that, its child would wait for ever
    for a parent that is dead; so bwrap is stopped first, lest it fork meanwhile, and its child is killed before it.
    """
    try:
        os.kill(bwrap, signal.SIGSTOP)
        for _ in range(1000):
            if state(bwrap) in "TZX":
                break
            time.sleep(0.0005)
        for child in children(bwrap):
            os.kill(child, signal.SIGKILL)
        os.kill(bwrap, signal.SIGKILL)
    except ProcessLookupError:
        pass


def state(pid: int) -> str:
    """One letter, as in /proc/PID/stat; X if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "X"


def children(pid: int) -> list[int]:
    """Direct children of a process with one thread."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


class MountAttributes(ctypes.Structure):
    """struct mount_attr."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


def map_owner(place: str, uid: int, gid: int, to: int) -> None:
    """Replace the mount at `place` by an id-mapped one, in which files of `uid`/`gid` are owned by `to`."""
    read, write = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        code = libc.unshare(CLONE_NEWUSER)
        os.write(write, b"x" if code == 0 else b"!")
        signal.pause()
        os._exit(0)
    try:
        if os.read(read, 1) != b"x":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), "user namespace")
        for name, number in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{child}/{name}", "wb", buffering=0) as file:
                file.write(b"%d %d 1" % (number, to))
        namespace = os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        tree = libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(place), OPEN_TREE_CLONE | os.O_CLOEXEC)
        check(min(tree, 0), place)
        attributes = MountAttributes(MOUNT_ATTR_IDMAP, 0, 0, namespace)
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        check(libc.syscall(MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, ctypes.byref(attributes), size), place)
        check(libc.umount2(os.fsencode(place), MNT_DETACH), place)
        check(libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(place), MOVE_MOUNT_F_EMPTY_PATH), place)
        os.close(tree)
        os.close(namespace)
    finally:
        os.close(read)
        os.close(write)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def new_namespaces(base: str) -> list[int]:
    """Leave for a user and a mount namespace of our own, with a small tmpfs over `base`; descriptors of both."""
    uid, gid = os.geteuid(), os.getegid()
    check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "a user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    mount("none", "/", "none", MS_REC | MS_SLAVE)
    mount("sia", base, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0700,size=64k")
    return [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("user", "mnt")]


def make_ramdisk(message: dict[str, Any]) -> list[int]:
    """A tmpfs of a given size that can hold uppers; a descriptor of its top."""
    place, size, inodes = message["ramdisk"], message["bytes"], message["inodes"]
    os.mkdir(place, 0o755)  # noqa: PTH102
    try:
        mount("sia", place, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=0711,size={size},nr_inodes={inodes}")
        try:
            os.setxattr(place, "user.sia", b"")
            os.removexattr(place, "user.sia")
            return [os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        except OSError:
            libc.umount2(os.fsencode(place), MNT_DETACH)
            raise
    except OSError:
        os.rmdir(place)  # noqa: PTH106
        raise


def leave_ramdisk(place: str) -> list[int]:
    """Undo `make_ramdisk`; what is still open in it stays until it is closed."""
    check(libc.umount2(os.fsencode(place), MNT_DETACH), place)
    os.rmdir(place)  # noqa: PTH106
    return []


def copy_program(source: str, dest: str) -> None:
    """Copy one file to our own tmpfs, executable and not writable."""
    os.makedirs(os.path.dirname(dest), 0o755, exist_ok=True)  # noqa: PTH103, PTH120
    with open(source, "rb") as file, open(dest, "wb") as copy:
        copy.write(file.read())
    os.chmod(dest, 0o555)  # noqa: PTH101


def main() -> None:
    """`spawner.py FD SUPERVISOR_PID [UID NEUTRAL]`."""
    fd, supervisor, *rest = sys.argv[1:]
    channel = socket.socket(fileno=int(fd))
    os.set_inheritable(channel.fileno(), False)
    spawner = Spawner(channel, int(rest[0]) if rest else None, rest[1] if rest else "")
    try:
        spawner.prepare(int(supervisor))
    except OSError as error:
        channel.sendall(json.dumps({"error": f"{error.filename}: {error.strerror}"}).encode())
        return
    spawner.run()


if __name__ == "__main__":
    main()

# ruff: noqa: PTH101, PTH102, PTH106, PTH108, PTH116, PTH118, PTH208
"""Random file operations in the current directory: `play SEED COUNT` chooses and logs them, `replay` repeats a log.

Runs inside a sandbox and on a plain copy (`python -I -S`, standard library only). Chosen from what the player sees,
so that most make sense; logged with what became of them, so that the plain copy does exactly what succeeded.
No operation follows a symlink.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import stat
import sys

NAMES = ["a", "b", "c", "dir", "-x", "with space", "new\nline", "ünïcode", "b\udcffd", ".wh.a", "a,b:c", "d\\e"]
FILE_MODES = [0o644, 0o600, 0o755, 0o444, 0o000, 0o4755, 0o2711]
DIRECTORY_MODES = [0o755, 0o700, 0o1777, 0o711, 0o000]
KEYS = ["user.note", "user.other", "user.overlay.opaque", "user.overlay.whiteout", "user.overlay.overlay.x"]
MAX_ENTRIES = 600
MAX_DEPTH = 6


def tree():
    """(directories, others) that can be seen, as relative paths."""
    directories, others, pending = ["."], [], ["."]
    while pending:
        here = pending.pop()
        try:
            names = sorted(os.listdir(here))
        except PermissionError:
            continue
        for name in names:
            path = os.path.join(here, name)
            if stat.S_ISDIR(os.lstat(path).st_mode):
                directories.append(path)
                pending.append(path)
            else:
                others.append(path)
    return directories, others


def remove_tree(path):
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.chmod(path, 0o700)
        for name in os.listdir(path):
            remove_tree(os.path.join(path, name))
        os.rmdir(path)
    else:
        os.unlink(path)


def clear(path):
    with contextlib.suppress(FileNotFoundError):
        remove_tree(path)


def content(seed, size):
    return random.Random(seed).randbytes(size)


def opened(path, mode):
    """A file object of a regular file, which may be made."""
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666))


def write(path, seed, size):
    with opened(path, "wb") as file:
        file.write(content(seed, size))


def append(path, seed):
    with opened(path, "ab") as file:
        file.write(content(seed, 17))


def patch(path, seed):
    with opened(path, "r+b") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() // 2))
        file.write(content(seed, 1))


def same(path):
    """Copied up, and not changed."""
    with opened(path, "r+b") as file:
        data = file.read()
        file.seek(0)
        file.write(data)


def sparse(path, size, at):
    with opened(path, "wb") as file:
        file.seek(at)
        file.write(b"data")
        file.truncate(size)


def chmod(path, mode):
    if stat.S_ISLNK(os.lstat(path).st_mode):
        raise OSError(errno.EINVAL, "a symlink")
    os.chmod(path, mode)


def link(path, new):
    os.link(path, new, follow_symlinks=False)


def again(path, seed):
    """A directory removed and made again, with some of the names that it had."""
    names = sorted(os.listdir(path))
    clear(path)
    os.mkdir(path, 0o755)
    for name in names[::2]:
        write(os.path.join(path, name), seed, 9)


OPERATIONS = {
    "write": write, "append": append, "patch": patch, "same": same, "sparse": sparse, "again": again,
    "chmod": chmod, "mkdir": lambda path: os.mkdir(path, 0o755), "rmdir": os.rmdir, "rmtree": remove_tree,
    "unlink": os.unlink, "symlink": os.symlink, "fifo": lambda path: os.mkfifo(path, 0o640),
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), "link": link, "rename": os.rename,
    "setxattr": lambda path, key, value: os.setxattr(path, key, value.encode(), follow_symlinks=False),
    "removexattr": lambda path, key: os.removexattr(path, key, follow_symlinks=False),
    "touch": lambda path, time: os.utime(path, (time, time), follow_symlinks=False),
    "to_directory": lambda path: (clear(path), os.mkdir(path, 0o755)),
    "to_file": lambda path, seed: (clear(path), write(path, seed, 30)),
}  # fmt: skip


def choose(rng, directories, others):
    """One operation and its arguments."""
    inner = [path for path in directories if path != "."]
    shallow = [path for path in directories if path.count("/") < MAX_DEPTH]
    new = os.path.join(rng.choice(shallow), rng.choice(NAMES) + rng.choice(["", "1", "2", "3"]))
    some, place = rng.choice([*others, new]), rng.choice([*inner, new])
    deep = max((rng.choice([*inner, new]) for _ in range(3)), key=lambda path: path.count("/"))
    if len(directories) + len(others) > MAX_ENTRIES and rng.random() < 0.7:
        return rng.choice([("unlink", some), ("rmtree", place)])
    seed, any_path = rng.randrange(1 << 30), rng.choice([some, place])
    common = [
        ("write", new, seed, rng.choice([0, 1, 100, 5000])), ("write", new, seed, 10), ("write", some, seed, 50),
        ("append", some, seed), ("patch", some, seed), ("same", some), ("sparse", new, 1 << 18, seed % 9999),
        ("chmod", some, rng.choice(FILE_MODES)), ("chmod", place, 0o755), ("mkdir", new), ("mkdir", new),
        ("symlink", rng.choice(["a", "dir/b", "nowhere"]), new), ("fifo", new), ("link", some, new),
        ("setxattr", any_path, rng.choice(KEYS), str(seed % 3)), ("touch", any_path, seed),
    ]  # fmt: skip
    rare = [
        ("again", deep, seed), ("chmod", deep, rng.choice(DIRECTORY_MODES)), ("rmdir", place), ("unlink", some),
        ("rmtree", deep), ("socket", new), ("rename", some, new), ("rename", place, new),
        ("rename", some, rng.choice([*others, new])), ("setxattr", any_path, rng.choice(KEYS), "y"),
        ("removexattr", any_path, rng.choice(KEYS)), ("to_directory", some), ("to_file", deep, seed),
    ]  # fmt: skip
    return rng.choice(common if rng.random() < 0.8 else rare)


def perform(operation):
    """0, or the error number."""
    name, *arguments = operation
    try:
        OPERATIONS[name](*arguments)
    except OSError as error:
        return error.errno
    return 0


def play(seed, count):
    rng = random.Random(seed)
    log = []
    for number in range(count):
        if number % 10 == 0:  # in between, some of what it chooses is gone: that fails, here and there
            directories, others = tree()
        operation = choose(rng, directories, others)
        log.append([operation, perform(operation)])
    print(json.dumps(log))


def replay():
    for operation, result in json.load(sys.stdin):
        if result == 0 and (code := perform(operation)) != 0:
            code = perform_on_a_stale_mode(operation) if code == errno.EACCES else code
            if code:
                sys.exit(f"{operation!r} succeeded inside, and fails on a plain copy: {os.strerror(code)}")


def perform_on_a_stale_mode(operation):
    """An overlay may remember the old mode of a file whose other hard link was closed, and let it be written."""
    path = operation[1]
    mode = stat.S_IMODE(os.lstat(path).st_mode)
    chmod(path, mode | 0o600)
    code = perform(operation)
    chmod(path, mode)
    return code


if __name__ == "__main__":
    os.umask(0o022)
    if os.geteuid() == 0:  # root keeps setuid bits where others lose them, and may do everything
        uid = os.stat(".").st_uid
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if sys.argv[1] == "play":
        play(int(sys.argv[2]), int(sys.argv[3]))
    else:
        replay()

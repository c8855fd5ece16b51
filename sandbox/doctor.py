"""A self-examination: each promise of a sandbox proved, or refuted, on this machine."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandbox import advice, bwrap, confine, filesystems, filter, runner
from sandbox.diff import diff
from sandbox.errors import SiaError
from sandbox.host import SANDBOX_UID, Host
from sandbox.process import Outcome, Sandbox
from sandbox.spec import Limits, Overlay, SandboxSpec

State = Literal["ok", "note", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of the report. `fail` means that no sandbox will be started; `note` that something is weaker."""

    topic: str
    state: State
    detail: str
    fix: str = ""


# Run inside. Prints one word per broken promise.
PROBE = r"""
[ "$(cat old)" = old ] && echo new > old && echo made > made || echo overlay
cat /proc/1/environ >/dev/null 2>&1 && echo environ
[ "$(grep -c . /proc/net/dev)" -le 3 ] || echo network
grep -q '^CapEff:.0*$' /proc/self/status && grep -q '^CapBnd:.0*$' /proc/self/status || echo capabilities
grep -q '^Seccomp:.2$' /proc/self/status || echo seccomp
grep -q '^NoNewPrivs:.1$' /proc/self/status || echo privileges
unshare -U true 2>/dev/null && echo namespaces
[ "$(cat /proc/sys/user/max_user_namespaces)" = 0 ] || [ ! -w /proc/sys/user/max_user_namespaces ] || echo namespaces
(echo x > /proc/sys/kernel/domainname) 2>/dev/null && echo sysctl
(echo x > /usr/.probe) 2>/dev/null && echo system
(echo x > /dev/probe) 2>/dev/null && echo devices
[ -e /root/.bashrc ] && echo home
for p in /proc/[0-9]*; do [ "${p#/proc/}" -gt 200 ] && echo processes; done
exit 0
"""
PROMISES = {
    "overlay": "an overlay can be read and written",
    "environ": "the environment of pid 1 is closed",
    "network": "there is no network",
    "capabilities": "no capabilities are left",
    "seccomp": "the system call filter is on",
    "privileges": "no privileges can be gained",
    "namespaces": "no further user namespaces",
    "sysctl": "kernel settings are read-only",
    "system": "the system is read-only",
    "devices": "/dev is read-only",
    "home": "the home directory is hidden",
    "processes": "other processes are hidden",
}


def examine(state: Path) -> list[Finding]:
    """Everything worth knowing, in the order in which a launch depends on it. Never raises for a bad machine."""
    findings = [_kernel(), _user()]
    for topic, find in (("bubblewrap", _bubblewrap), ("pid 1", _pid1), ("system call filter", _filter)):
        try:
            findings.append(find())
        except SiaError as error:
            findings.append(Finding(topic, "fail", f"{error.where}: {error.what}".lstrip(": "), error.fix))
    findings += _launches(state)
    return [*findings, _landlock()]


def prove(host: Host, directory: Path) -> list[Finding]:
    """Launch one sandbox with everything, and ask it from inside; files go below `directory`."""
    lower = directory / "lower"
    lower.mkdir()
    (lower / "old").write_text("old\n")
    host.own(lower)
    upper, work = host.make_upper(directory, "overlay")
    spec = SandboxSpec(
        command=("sh", "-c", PROBE),
        workdir="/app",
        overlays=(Overlay("/app", (lower,), upper, work),),
        limits=Limits(seconds=20),
    )
    read, write = os.pipe()
    with open(read, "rb") as output:
        try:
            with Sandbox.start(host, spec, stdout=write) as sandbox:
                os.close(write)
                broken = output.read(1 << 16).decode("ascii", "replace").split()
                outcome = sandbox.wait()
        finally:
            host.remove(directory / "overlay")
    assert outcome is not None
    return _verdict(host, outcome, broken)


def _verdict(host: Host, outcome: Outcome, broken: list[str]) -> list[Finding]:
    if outcome.setup_error is not None:
        found = advice.advise(outcome.setup_error, host.bwrap)
        return [Finding("a launch", "fail", f"{found.cause}: {outcome.setup_error}", found.fix)]
    if outcome.exit_code != 0:
        fix = "free memory and processor time, then try again; if it stays so, please report it"
        return [Finding("a launch", "fail", f"the probe did not end as it should: {_ending(outcome)}", fix)]
    findings = [
        Finding("a launch", "ok", f"with everything, in {outcome.seconds * 1000:.0f} ms after the start signal")
    ]
    for word, promise in PROMISES.items():
        if word in broken:
            findings.append(
                Finding("promise", "fail", f"broken: {promise}", "please report this with your kernel's version")
            )
        else:
            findings.append(Finding("promise", "ok", promise))
    return findings


def _ending(outcome: Outcome) -> str:
    """How a probe ended, in words."""
    if outcome.limit is not None:
        return f"the limit of its {outcome.limit} was reached after {outcome.seconds:.1f} s"
    return f"signal {outcome.signal}" if outcome.signal is not None else f"exit code {outcome.exit_code}"


def _kernel() -> Finding:
    release = platform.release()
    numbers = [int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit()]
    if numbers < [5, 11]:
        return Finding("kernel", "fail", f"{release}: no overlays in user namespaces", "use Linux 5.11 or newer")
    return Finding("kernel", "ok", f"Linux {release} {platform.machine()}")


def _user() -> Finding:
    if os.geteuid() == 0:
        return Finding("user", "ok", f"root: sandboxes run as uid {SANDBOX_UID}, which should belong to nobody")
    return Finding("user", "ok", f"uid {os.getuid()}, without privileges")


def _bubblewrap() -> Finding:
    found = bwrap.find()
    if found.version < bwrap.SAFE:
        detail = f"{found.path}: {found.why}; below 0.12, so layers are mounted last and nothing below them"
        return Finding("bubblewrap", "note", detail, "nothing to do; a bubblewrap 0.12 in PATH will be preferred")
    return Finding("bubblewrap", "ok", f"{found.path}: {found.why}")


def _pid1() -> Finding:
    return Finding("pid 1", "ok", f"{len(runner.program())} bytes, the build that was checked")


def _filter() -> Finding:
    return Finding("system call filter", "ok", f"{len(filter.program()) // 8} instructions")


def _landlock() -> Finding:
    if confine.supported():
        return Finding("Landlock", "ok", f"version {confine.version()}: verifiers can confine the code they test")
    fix = "boot with lsm=landlock,… (Linux 5.13 or newer)"
    return Finding("Landlock", "note", "missing: every task counts as forgeable", fix)


def _launches(state: Path) -> list[Finding]:
    try:
        with Host.detect(state) as host, tempfile.TemporaryDirectory(prefix="doctor-", dir=state) as directory:
            place = Path(directory)
            place.chmod(0o711)
            kind = filesystems.kind(place)
            findings = [Finding("uppers", "ok", f"{state} ({kind})"), _memory(host)]
            return [*findings, *prove(host, place), _ramdisks(host, place)]
    except SiaError as error:
        return [Finding("a launch", "fail", f"{error.where}: {error.what}".lstrip(": "), error.fix)]
    except OSError as error:
        return [Finding("a launch", "fail", f"{state}: {error.strerror}", "set SIA_HOME to a directory you can write")]


def _ramdisks(host: Host, place: Path) -> Finding:
    """Whether uppers can lie in memory: tried by a launch that deletes, adds and fills. Nothing needs them."""
    topic, top = "uppers in memory", place / "ramdisk"
    limits = Limits(disk_mb=1, inodes=64, upper="memory", seconds=20)
    try:
        upper, work = host.make_upper(host.space(top, limits), "0")
        overlay = Overlay("/app", (place / "lower",), upper, work)
        command = ("sh", "-c", "rm old; head -c 2000000 /dev/zero > new 2>/dev/null; exit 0")
        with Sandbox.start(host, SandboxSpec(command, "/app", overlays=(overlay,), limits=limits)) as sandbox:
            outcome = sandbox.wait()
        changes = {change.path: change.kind for change in diff(overlay.lowers, upper)}
        assert outcome is not None
    except SiaError as error:
        return Finding(topic, "note", error.what, error.fix)
    finally:
        host.remove(top)
    return _in_memory(topic, outcome, changes)


def _in_memory(topic: str, outcome: Outcome, changes: Mapping[str, str]) -> Finding:
    fix = 'keep them on disk (upper = "disk", which is the default)'
    if outcome.setup_error is not None:
        return Finding(topic, "note", outcome.setup_error, fix)
    if outcome.limit != "disk":
        return Finding(topic, "note", f"filling one has to end the probe; it ended with {_ending(outcome)}", fix)
    if changes != {"old": "deleted", "new": "added"}:
        seen = ", ".join(f"{name} {kind}" for name, kind in changes.items()) or "nothing"
        return Finding(topic, "note", f"one file was deleted and one added, to be seen is: {seen}", fix)
    return Finding(
        topic, "ok", 'can be had: `upper = "memory"` in [limits] of a campaign, `sia sandbox run --upper-mb`'
    )


def _memory(host: Host) -> Finding:
    if host.memory_enforcer == "watchdog":
        detail = f"memory of a tree is watched (and killed), not capped: {host.memory.why}"
        return Finding("memory", "note", detail, "run in a systemd user session, or with a delegated cgroup v2 subtree")
    return Finding("memory", "ok", f"{host.memory_enforcer}: {host.memory.why}")

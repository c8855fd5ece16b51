"""What the agent can see of the machine: processor, graphics, memory, disk."""

from __future__ import annotations

import os
import threading
from datetime import datetime
from pathlib import Path

import psutil
from lxml import etree

from instance.clock import Clock, FixedClock, stamp

_GRAPHICS = Path("/sys/class/drm")


class SystemMetrics:
    """Samples in a background thread, every `sample_interval` seconds, so that an iteration never waits for it."""

    def __init__(self, sample_interval: float, disk: Path, clock: Clock) -> None:
        self._interval, self._disk, self._clock = sample_interval, disk, clock
        self._gpu_files = list(_GRAPHICS.glob("card*/device/gpu_busy_percent"))
        self._stop = threading.Event()
        self._values = self._first()
        self._thread = threading.Thread(target=self._monitor_loop, name="metrics", daemon=True)
        self._thread.start()

    def attributes(self, context_usage: float) -> dict[str, str]:
        """The attributes of the root of a context; `context_usage` in percent of the token limit."""
        return {"time": stamp(self._clock.now()), **self._values, "context": f"{context_usage:.0f}"}

    def generate_context(self, context_usage: float) -> etree._Element:
        """The same as an element."""
        return etree.Element("context", self.attributes(context_usage))

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(timeout=2.0)

    def _monitor_loop(self) -> None:
        while not self._stop.wait(self._interval):
            self._values = self._sample(psutil.cpu_percent())

    def _first(self) -> dict[str, str]:
        psutil.cpu_percent()  # starts the measurement; until an interval is over, the average since boot stands in
        times = psutil.cpu_times()
        total = sum(times[:8])
        return self._sample(100.0 * (1 - (times.idle + getattr(times, "iowait", 0.0)) / total) if total else 0.0)

    def _sample(self, cpu: float) -> dict[str, str]:
        values = {"cpu": f"{cpu:.0f}"}
        gpu = self._gpu()
        if gpu is not None:
            values["gpu"] = f"{gpu:.0f}"
        memory = psutil.virtual_memory()
        values |= {"memory_used": str(memory.total - memory.available), "memory_total": str(memory.total)}
        try:
            disk = os.statvfs(self._disk)
        except OSError:
            return values | {"disk_used": "0", "disk_total": "0"}
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        return values | {"disk_used": str(used), "disk_total": str(disk.f_blocks * disk.f_frsize)}

    def _gpu(self) -> float | None:
        """The busiest graphics processor in percent, where the kernel tells."""
        busy = []
        for name in self._gpu_files:
            try:
                busy.append(float(name.read_text()))
            except (OSError, ValueError):
                continue
        return max(busy, default=None)


class FixedMetrics(SystemMetrics):
    """Values that never change, for tests that expect exact bytes."""

    def __init__(self, moment: datetime) -> None:
        self._clock = FixedClock(moment)
        self._values = {"cpu": "0", "memory_used": "0", "memory_total": "1", "disk_used": "0", "disk_total": "1"}

    def stop(self) -> None:
        """Nothing runs."""

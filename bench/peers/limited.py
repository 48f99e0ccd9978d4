"""Processes under a memory limit of their own (control groups, version 1), and their reads."""

import os
import subprocess
import sys
import time
from pathlib import Path

from meter import process_read_bytes

MOUNT = Path("/sys/fs/cgroup")
# Starts the command behind the first argument in the group whose cgroup.procs that names.
JOIN = 'echo $$ > "$1" || exit 125; shift; exec "$@"'
SECTOR_BYTES = 512
PAGE_FAULT_FIELD = 9  # of /proc/PID/stat after the name: major faults


class LimitedGroup:
    """A memory limit for one process; pages of files that it is the first to read count.

    The group is made below the one that this process is in; root is needed.
    """

    def __init__(self, name, limit_bytes):
        self._folder = own_group("memory") / f"{name}_{os.getpid()}"
        self._folder.mkdir()
        (self._folder / "memory.limit_in_bytes").write_text(str(limit_bytes))

    def command(self, command):
        """`command` such that it runs in the group, under the pid that it is started with."""
        return ["sh", "-c", JOIN, "join", str(self._folder / "cgroup.procs"), *command]

    def memory(self):
        """Bytes by use, now and at most."""
        text = (self._folder / "memory.stat").read_text()
        stat = dict(line.split() for line in text.splitlines())
        return {
            "anonymous": int(stat["rss"]),
            "cache": int(stat["cache"]),
            "most": int((self._folder / "memory.max_usage_in_bytes").read_text()),
        }

    def remove(self):
        """Removes the group, whose process must have ended."""
        (self._folder / "memory.force_empty").write_text("1")
        self._folder.rmdir()


def own_group(controller):
    """The folder of this process's group in a hierarchy of version 1."""
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controller in controllers.split(","):
                return MOUNT / controller / path.lstrip("/")
    sys.exit(f"no version 1 control group for {controller}: pressure.py needs one")


def drop_caches():
    """Empties the page cache of the machine."""
    subprocess.run(["sync"], check=True)
    Path("/proc/sys/vm/drop_caches").write_text("3")
    time.sleep(0.5)


def machine_read_bytes():
    """Bytes that the drives delivered to anybody since boot."""
    stats = [path.read_text().split() for path in Path("/sys/block").glob("*/stat")
             if (path.parent / "device").exists()]
    return sum(int(fields[2]) for fields in stats) * SECTOR_BYTES


def read_counters(pid):
    """What was read so far: for a process, by its own counter, and from the drives in all."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return {
        "process_bytes": process_read_bytes(pid),
        "drive_bytes": machine_read_bytes(),
        "major_faults": int(fields[PAGE_FAULT_FIELD]),
    }

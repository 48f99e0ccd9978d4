"""What the machine does around a measurement: memory bandwidth, and CPU time by owner."""

import ctypes
import os
import time

JIFFIES_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Bandwidth:
    """Read-only memory bandwidth in GB/s, measured when called."""

    def __init__(self, library, gib, threads):
        self._lib = ctypes.CDLL(library)
        self._lib.bandwidth_alloc.restype = ctypes.c_void_p
        self._lib.bandwidth_alloc.argtypes = [ctypes.c_size_t]
        self._lib.bandwidth_read.restype = ctypes.c_double
        self._lib.bandwidth_read.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._bytes = int(gib * (1 << 30))
        self._threads = threads
        self._start = self._lib.bandwidth_alloc(self._bytes)
        if not self._start:
            raise MemoryError(f"no {gib} GiB for the bandwidth probe")

    def __call__(self):
        rate = self._lib.bandwidth_read(self._start, self._bytes, self._threads)
        if rate <= 0:
            raise RuntimeError("the bandwidth probe could not start its threads")
        return rate


def machine_cpu_seconds():
    """(busy, stolen) CPU seconds of the whole machine since boot."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(
            int, file.readline().split()[1:9]
        )
    return (user + nice + system + irq + softirq) / JIFFIES_PER_SECOND, steal / JIFFIES_PER_SECOND


class Patience:
    """Waits for other processes to be done, for so many seconds in all."""

    POLL_SECONDS = 0.2

    def __init__(self, seconds, foreign_max):
        self._left = seconds
        self._foreign_max = foreign_max

    def wait(self):
        """Returns once the machine is idle, or the patience is spent."""
        while self._left > 0:
            busy, _ = machine_cpu_seconds()
            time.sleep(self.POLL_SECONDS)
            cores = (machine_cpu_seconds()[0] - busy) / self.POLL_SECONDS
            if cores <= self._foreign_max:
                return
            self._left -= self.POLL_SECONDS


def process_cpu_seconds(pid):
    """CPU seconds (user + system) that the process has used."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / JIFFIES_PER_SECOND


def process_read_bytes(pid):
    """Bytes that the process made the kernel fetch from a block device, page faults included."""
    with open(f"/proc/{pid}/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))


class CpuMeter:
    """Cores used by the process at work, by those that should be idle meanwhile, by anything
    else, and stolen by the hypervisor: of the last `with` block, and of all of them."""

    OWNERS = ("working", "idle_peer", "foreign", "stolen")

    def __init__(self, working_pid, idle_pids):
        self._working = working_pid
        self._idle = idle_pids
        self._sum = [0.0] * 5
        self.last = None

    def _sample(self):
        busy, stolen = machine_cpu_seconds()
        working = process_cpu_seconds(self._working)
        idle = sum(process_cpu_seconds(pid) for pid in self._idle)
        return time.perf_counter(), working, idle, busy - working - idle, stolen

    def __enter__(self):
        self._before = self._sample()
        return self

    def __exit__(self, *_exception):
        spent = [after - before for before, after in zip(self._before, self._sample())]
        self._sum = [total + seconds for total, seconds in zip(self._sum, spent)]
        self.last = self._cores(spent)

    def mean(self):
        """Mean cores by owner over all blocks."""
        return self._cores(self._sum)

    def _cores(self, spent):
        wall, *seconds = spent
        return {name: round(s / max(wall, 1e-9), 3) for name, s in zip(self.OWNERS, seconds)}

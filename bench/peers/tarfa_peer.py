"""tarfa as a child process."""

from line_peer import LinePeer


class TarfaPeer(LinePeer):
    """Drives `tarfa bench --model DIR --stdio`."""

    def __init__(self, command, model, threads, options=()):
        command = [*command, "bench", "--model", str(model), "--stdio"]
        super().__init__("tarfa", [*command, "--threads", str(threads), *options])

"""A peer as a child process that answers one JSON line per request line."""

import json
import subprocess


class LinePeer:
    """The operations of a peer: reset, prompt, decode."""

    def __init__(self, name, command):
        self.name = name
        self._command = command
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.pid = self._child.pid
        ready = self._answer()
        if not ready.get("ready"):
            raise RuntimeError(f"{name} did not become ready: {ready}")
        self.active_bytes = int(ready["active_bytes"])

    def describe(self):
        """The command that was started."""
        return " ".join(self._command)

    def reset(self):
        """Forgets the sequence."""
        self._ask({"op": "reset"})

    def prompt(self, ids):
        """Appends `ids` as one prompt; the answer is about the last token's logits."""
        return self._ask({"op": "prompt", "ids": ids}, len(ids))

    def decode(self, ids):
        """Appends `ids` one step at a time."""
        return self._ask({"op": "decode", "ids": ids}, len(ids))

    def _ask(self, request, tokens=None):
        self._child.stdin.write(json.dumps(request) + "\n")
        self._child.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(f"{self.name} refused {request['op']}: {answer['error']}")
        if tokens is not None and answer.get("tokens") != tokens:
            raise RuntimeError(f"{self.name} answered {answer} to {tokens} tokens")
        return answer

    def _answer(self):
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with exit code {self._child.wait()}")
        return json.loads(line)

    def close(self):
        """Ends the child by closing its input."""
        self._child.stdin.close()
        self._child.wait(timeout=60)
